#!/usr/bin/env python3
"""Makes the PyTorch layers of a model that `schwann export ncps` wrote, with its weights.

    from load_schwann import load
    model = load("for_python.safetensors")
    y, state = model(x)          # a single CfC or LTC, as ncps has it
    y = model(x)                 # several layers: the output of the last

Needs torch, ncps and safetensors. `load_schwann.py FILE x.npy y.npy` runs the model on `x` and says how far its results
are from `y`, such as `schwann run` gives.
"""

import json
import sys

import torch
from ncps.torch import CfC, LTC
from ncps.wirings import AutoNCP, FullyConnected, NCP, Random, Wiring
from safetensors import safe_open
from torch import nn

WIRINGS = {"AutoNCP": AutoNCP, "FullyConnected": FullyConnected, "NCP": NCP, "Random": Random}
FUNCTIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "sigmoid": nn.Sigmoid, "silu": nn.SiLU, "gelu": nn.GELU}


class Affine(nn.Module):
    """x * weight + bias, feature by feature."""

    def __init__(self, features):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return x * self.weight + self.bias


class Chain(nn.ModuleList):
    """Layers one after the other; CfC and LTC take the time spans, and of recurrent ones the output alone goes on."""

    def forward(self, x, timespans=None):
        for layer in self:
            x = layer(x, timespans=timespans) if isinstance(layer, (CfC, LTC)) else layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


def wiring_of(config, matrices, layers):
    config = dict(config)
    kind = config.pop("class")
    if kind in WIRINGS:
        return WIRINGS[kind](**config)
    adjacency = matrices["adjacency"]
    wiring = Wiring(adjacency.shape[0])
    wiring.set_output_dim(config["output_dim"])
    wiring.build(matrices["sensory_adjacency"].shape[0])
    wiring.adjacency_matrix = adjacency.numpy()
    wiring.sensory_adjacency_matrix = matrices["sensory_adjacency"].numpy()
    if layers:
        wiring._num_layers, wiring.get_neurons_of_layer = len(layers), lambda i: layers[i]
    return wiring


def layer_of(config, matrices, layers):
    config = dict(config)
    kind = config.pop("class")
    if kind in ("CfC", "LTC"):
        if isinstance(config["units"], dict):
            config["units"] = wiring_of(config["units"], matrices, layers)
        for mapping in ("input_mapping", "output_mapping"):
            if config.get(mapping) == "none":
                config[mapping] = None
        return {"CfC": CfC, "LTC": LTC}[kind](**config)
    if kind == "Activation":
        return FUNCTIONS[config["function"]]()
    if kind == "Affine":
        return Affine(**config)
    config.pop("return_sequences", None)
    return getattr(nn, kind)(**config)


def load(path):
    """The module of a file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        metadata = file.metadata()
    config = json.loads(metadata["config"])
    single = config["class"] != "Sequential"
    configs = [config] if single else config["layers"]
    modules = []
    for i, layer in enumerate(configs):
        prefix = "" if single else f"{i}."
        names = {name: prefix + name for name in ("adjacency", "sensory_adjacency")}
        matrices = {name: tensors.pop(key) for name, key in names.items() if key in tensors}
        layers = json.loads(metadata.get(prefix + "layers", "[]"))
        modules.append(layer_of(layer, matrices, layers))
    model = modules[0] if single else Chain(modules)
    model.load_state_dict(tensors)
    return model.eval()


def main():
    import numpy

    model = load(sys.argv[1])
    x, y = (torch.from_numpy(numpy.load(path)) for path in sys.argv[2:4])
    with torch.no_grad():
        got = model(x)
    got = got[0] if isinstance(got, tuple) else got
    off = float((got - y).abs().max())
    print(f"{list(y.shape)}: largest difference {off:.2e}")
    return 0 if off < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
