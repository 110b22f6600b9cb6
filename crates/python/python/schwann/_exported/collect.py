"""What a PyTorch network is as a file for Schwann: its tensors and its metadata."""

import copy
import json
from dataclasses import dataclass, replace

import torch
from torch import nn

from .chain import trace
from .layers import RECURRENT, SUPPORTED, CannotExport, Wiring, circuit_step, leaf_class, plain


@dataclass(frozen=True)
class Collected:
    """A network as Schwann's files have it."""

    tensors: dict
    metadata: dict
    steps: list
    notes: list
    x: object  # the sample, where one was given


def finished(value, sample, notes):
    """The model's input and output as the file has them."""
    steps = value.steps
    if not steps:
        raise CannotExport(f"the network has no layer; expected {SUPPORTED}")
    recurrent = [step for step in steps if step.recurrent]
    if not value.last and value.swapped:
        raise CannotExport("the first two axes of the output are the other way round than the input's; expected the same order")
    if len({step.config["batch_first"] for step in recurrent}) > 1:
        raise CannotExport("some recurrent layers have batch_first=True and others not; expected the same of all")
    x, y = sample[0] if value.start is None else value.start, value.tensor
    if value.squeezed:
        notes.append("the last `squeeze` is left out: `y` keeps its last axis, of size 1")
        y = y.unsqueeze(-1)
    if recurrent:
        if value.merged:
            raise CannotExport("the output's steps and samples are one axis; expected them as they came in, or the last step")
    else:
        features = 0 if steps[0].config["class"] == "Embedding" else 1
        if x.dim() > features + 1:
            notes.append("no layer has a state: the axes before the features are written as one")
            x, y = x.reshape(-1, *x.shape[x.dim() - features :]), y.reshape(-1, y.shape[-1])
        elif value.merged:
            y = y.reshape(*x.shape[: x.dim() - features], y.shape[-1])
    if not x.is_floating_point():
        x = x.to(torch.int32)
    return x, y


def made_up(model):
    """A sample for a network whose layers are in order; None where their sizes do not tell."""
    if not (isinstance(model, nn.Sequential) or leaf_class(model)):
        return None
    leaves = [module for module in model.modules() if leaf_class(module)]
    weights = [p for p in model.parameters() if p.is_floating_point()]
    like = weights[0] if weights else torch.zeros(())
    leading = (1, 2) if any(isinstance(module, RECURRENT) for module in leaves) else (2,)
    for module in leaves:
        if isinstance(module, nn.Embedding):
            return torch.zeros(leading, dtype=torch.int64, device=like.device)
        if isinstance(module, nn.LayerNorm):
            return torch.zeros(*leading, module.normalized_shape[-1], dtype=like.dtype, device=like.device)
        for size in ("in_features", "input_size"):
            if hasattr(module, size):
                return torch.zeros(*leading, getattr(module, size), dtype=like.dtype, device=like.device)
    return None


def collect(model, sample=None, gradients=False, **constructor_args):
    """Runs `model` on the sample and gives its tensors and metadata. `scripts/export_ncps.py` describes them."""
    given = sample
    if sample is None:
        sample = made_up(model)
        if sample is None:
            kind = type(model).__name__
            raise CannotExport(f"{kind} is a module of its own: what it does is seen by running it; add sample=x, an input of it")
    sample = tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)
    if not 1 <= len(sample) <= 2 or not all(torch.is_tensor(part) for part in sample):
        raise CannotExport("the sample is expected to be a tensor, or a tensor and time spans")
    notes = []
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if torch.float64 in kinds:
        notes.append("weights are float64: Schwann rounds them to float32 as it reads them")
    if kinds & {torch.float16, torch.bfloat16}:
        notes.append("weights are of 16 bits: they are written, and the sample is run, in float32")
        model = copy.deepcopy(model).float()
        sample = tuple(part.float() if part.is_floating_point() else part for part in sample)
    with torch.enable_grad() if gradients else torch.no_grad():
        value, more = trace(model, sample)
        notes += more
        x, y = finished(value, sample, notes)
    steps = list(value.steps)
    if any(step.timed for step in steps):
        if not all(step.timed for step in steps if step.config["class"] in ("CfC", "LTC")):
            raise CannotExport("some CfC and LTC layers take the time spans and others not; expected all of them")
        if x.dim() == 3 and x.shape[1 - steps_axis(steps)] != 1:
            raise CannotExport("ncps gives wrong numbers for time spans of several samples; expected a sample of one sequence")

    single = len(steps) == 1
    prefix = lambda i: "" if single else f"{i}."  # noqa: E731
    tensors, metadata = {}, {}
    recurrent = [i for i, step in enumerate(steps) if step.recurrent]
    for i, step in enumerate(steps):
        tensors.update({f"model.{prefix(i)}{name}": tensor for name, tensor in step.tensors.items()})
        tensors.update({prefix(i) + name: matrix for name, matrix in step.matrices.items()})
        metadata.update({prefix(i) + name: text for name, text in step.metadata.items()})
        if given is not None:
            tensors.update({("" if len(recurrent) == 1 else f"{i}.") + name: state for name, state in step.states.items()})
    if single and constructor_args:
        override = {k: v for k, v in constructor_args.items() if not isinstance(v, Wiring)}
        steps[0] = replace(steps[0], config={**steps[0].config, **override})
    elif constructor_args:
        raise CannotExport(f"{', '.join(constructor_args)}: constructor arguments are for a single CfC or LTC")
    config = steps[0].config if single else {"class": "Sequential", "layers": [step.config for step in steps]}
    metadata["config"] = json.dumps(config, default=plain)
    metadata["names"] = json.dumps([step.where for step in steps])
    metadata["made_with"] = f"ncps, torch {torch.__version__}"
    if given is not None:
        tensors.update(x=x, y=y)
        if any(step.timed for step in steps):
            tensors["timespans"] = sample[1]
        if gradients:
            tensors.update(gradients_of(steps, y, prefix))
    return Collected(tensors, metadata, steps, notes, x if given is not None else None)


def steps_axis(steps):
    return int(next(step.config["batch_first"] for step in steps if step.recurrent))


def gradients_of(steps, y, prefix):
    target = torch.randn_like(y)
    loss = ((y - target) ** 2).mean()
    parameters = [t for step in steps for t in step.tensors.values() if isinstance(t, nn.Parameter) and t.requires_grad]
    if len({id(p) for p in parameters}) < len(parameters):
        raise CannotExport("a layer is used twice; its gradient is of both uses, and cannot be compared with that of one")
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    found = {id(p): torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found)}
    tensors = {"target": target, "loss": loss.reshape(1)}
    for i, step in enumerate(steps):
        tensors.update({f"grad.{prefix(i)}{n}": found[id(t)] for n, t in step.tensors.items() if id(t) in found})
    return tensors


def collect_layer(module):
    """A single CfC or LTC, without running it."""
    step = circuit_step(type(module).__name__, module)
    tensors = {f"model.{name}": tensor for name, tensor in step.tensors.items()}
    tensors.update(step.matrices)
    metadata = {**step.metadata, "config": json.dumps(step.config, default=plain)}
    return Collected(tensors, metadata, [step], [], None)
