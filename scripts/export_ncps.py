#!/usr/bin/env python3
"""Writes a PyTorch network as one safetensors file that Schwann reads.

    from export_ncps import export
    export(model, "model.safetensors", sample=x)

A network is a chain: layers one after the other, as an `nn.Sequential` (nested ones too, in which recurrent layers are
followed by their output alone) or as a module of one's own whose `forward` calls them. Layers may be `CfC` and `LTC` of
ncps.torch with any wiring, `Linear`, `LSTM`, `GRU`, `RNN`, `LayerNorm`, `Embedding`, and activations as modules or as
functions; dropout is left out. Between them may stand: the last step (`y[:, -1]`, or `h[-1]` of an LSTM's or GRU's state),
factors and shifts (`2.0 * y`, `(x - mean) / std`), and axes that are swapped or flattened and put back. Anything else
(sums of two branches, convolutions, attention) is refused with its name.

What a module of one's own does is seen by running it on `sample`, a tensor such as it takes, or `(x, timespans)`. The
sample and its results are then in the file, so that `schwann verify model.safetensors` compares at once. Without a sample,
only a single layer or an `nn.Sequential` can be written.

For a state dict that was saved with `torch.save(model.state_dict(), "model.pt")`:

    export_ncps.py model.pt model.safetensors --config '{"class": "CfC", "input_size": 8, "units": 32}'

Needs torch, ncps and safetensors. The file holds the weights (`model.<name>`; `model.<layer>.<name>` where there are
several layers) and, as JSON in the metadata entry `config`, the class and its constructor arguments; of several layers, the
class `Sequential` and the list `layers`.

The circuit is the one that the model has. Where a wiring's class and arguments draw that circuit again, they are what is
written. Where they do not (a wiring made by hand, of a class of one's own, with another seed than can be known, or built
twice, which draws more synapses), its matrices are written too, as `adjacency` and `sensory_adjacency`.
"""

import argparse
import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from ncps.torch import CfC, LTC
from ncps.wirings import Wiring
from safetensors.torch import save_file
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent))
from exported_chain import trace  # noqa: E402
from exported_layers import RECURRENT, SUPPORTED, WIRINGS, CannotExport, leaf_class, plain  # noqa: E402

__all__ = ["CannotExport", "build", "export"]


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


def export(model, path, sample=None, gradients=False, quiet=False, **constructor_args):
    """Writes `model` to `path`. See the module's description.

    With `gradients`, the file also has a `target`, the loss mean((y - target)^2) and the gradients of all weights, which
    `schwann verify --grad` compares. Constructor arguments of a single CfC or LTC are read off it; those given win.
    """
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
    save_file({key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}, path, metadata)
    if not quiet:
        report(path, steps, notes, x if given is not None else None)


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


def report(path, steps, notes, x):
    """What was written, and what to know about it."""
    chain = []
    for step in steps:
        name = step.config["class"]
        if name == "Activation":
            name = step.config["function"]
            name = name if isinstance(name, str) else next(iter(name))
        chain.append(name)
    count = sum(t.numel() for step in steps for n, t in step.tensors.items() if not n.endswith("sparsity_mask"))
    print(f"wrote {path}: {', '.join(chain)}; {count} weights" + ("" if x is None else f"; a sample of {list(x.shape)}"))
    for note in notes:
        print(f"note: {note}")
    if x is not None:
        print(f"next: schwann verify {path}")


def build(config):
    """The ncps model of a configuration."""
    config = dict(config)
    kind = {"CfC": CfC, "LTC": LTC}[config.pop("class")]
    if "wiring" in config:
        wiring = dict(config.pop("wiring"))
        config["units"] = WIRINGS[wiring.pop("class")](**wiring)
    return kind(**config)


def main():
    parser = argparse.ArgumentParser(description="Writes an ncps state dict as a safetensors file that Schwann reads.")
    parser.add_argument("checkpoint", help="what torch.save(model.state_dict(), ...) wrote")
    parser.add_argument("output", help="the safetensors file to write")
    parser.add_argument("--config", required=True, help="class and constructor arguments as JSON, or @file")
    arguments = parser.parse_args()
    text = arguments.config
    if text.startswith("@"):
        with open(text[1:], encoding="utf-8") as file:
            text = file.read()
    model = build(json.loads(text))
    # Only tensors are read, never programs.
    model.load_state_dict(torch.load(arguments.checkpoint, map_location="cpu", weights_only=True))
    export(model, arguments.output)


if __name__ == "__main__":
    sys.exit(main())
