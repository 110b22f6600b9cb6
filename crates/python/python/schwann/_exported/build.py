"""PyTorch layers of a model's state dict and metadata."""

import json

import torch
from ncps.torch import CfC, LTC
from ncps.wirings import AutoNCP, FullyConnected, NCP, Random, Wiring
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


def build(tensors, metadata):
    """The module of tensors by name and of the metadata that says which layers they are of."""
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
