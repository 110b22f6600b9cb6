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
import json
import sys
from pathlib import Path

import torch
from ncps.torch import CfC, LTC
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).resolve().parent))
from shared_with_package import part  # noqa: E402

collect = part("collect").collect
CannotExport, WIRINGS = part("layers").CannotExport, part("layers").WIRINGS

__all__ = ["CannotExport", "build", "export"]


def export(model, path, sample=None, gradients=False, quiet=False, **constructor_args):
    """Writes `model` to `path`. See the module's description.

    With `gradients`, the file also has a `target`, the loss mean((y - target)^2) and the gradients of all weights, which
    `schwann verify --grad` compares. Constructor arguments of a single CfC or LTC are read off it; those given win.
    """
    found = collect(model, sample, gradients, **constructor_args)
    tensors = {key: value.detach().cpu().clone().contiguous() for key, value in found.tensors.items()}
    save_file(tensors, path, found.metadata)
    if not quiet:
        report(path, found.steps, found.notes, found.x)


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
