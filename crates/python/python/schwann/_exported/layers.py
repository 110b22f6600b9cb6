"""What each layer of PyTorch and ncps is in Schwann: its options as JSON, and its weights."""

import json
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

try:
    from ncps.torch import CfC, LTC
    from ncps.wirings import NCP, AutoNCP, FullyConnected, Random, Wiring
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.split(".")[0] != "ncps":
        raise

    # Networks without circuits need no ncps: these are classes that no module is of.
    class CfC(nn.Module):
        pass

    class LTC(nn.Module):
        pass

    class Wiring:
        pass

    NCP = AutoNCP = FullyConnected = Random = Wiring

WIRINGS = {"AutoNCP": AutoNCP, "FullyConnected": FullyConnected, "NCP": NCP, "Random": Random}
ACTIVATIONS = {"LeCun": "lecun_tanh", "SiLU": "silu", "ReLU": "relu", "Tanh": "tanh", "GELU": "gelu"}
SUPPORTED = (
    "CfC and LTC of ncps.torch, Linear, LSTM, GRU, RNN, LayerNorm, Embedding (first), Softmax, LogSoftmax, activations "
    "(ReLU, Tanh, Sigmoid, GELU, SiLU, LeakyReLU, ELU, ...), Dropout, Flatten and Identity"
)


class CannotExport(TypeError):
    """A network that is no chain of layers that Schwann has."""


@dataclass(frozen=True)
class Step:
    """A layer of the chain."""

    where: str  # the module's name, or the function's
    config: dict
    # Weights by their names in the layer; parameters as they are, so that their gradients can be read.
    tensors: dict = field(default_factory=dict)
    # The last states by name, for recurrent layers.
    states: dict = field(default_factory=dict)
    metadata: dict = field(default_factory=dict)
    matrices: dict = field(default_factory=dict)
    module: object = None
    timed: bool = False

    @property
    def recurrent(self):
        return "batch_first" in self.config


# Circuits.


def cfc_arguments(model):
    """The constructor arguments of a CfC, without units."""
    arguments = {
        "input_size": model.input_size,
        "proj_size": model.proj_size,
        "return_sequences": model.return_sequences,
        "batch_first": model.batch_first,
        "mixed_memory": model.use_mixed,
    }
    cell = model.rnn_cell
    if isinstance(model.wiring_or_units, Wiring):
        arguments["mode"] = cell.layer_0.mode
        return arguments
    arguments["mode"] = cell.mode
    arguments["backbone_layers"] = cell.backbone_layers
    if cell.backbone_layers > 0:
        modules = list(cell.backbone)
        arguments["backbone_units"] = modules[0].out_features
        arguments["activation"] = ACTIVATIONS[type(modules[1]).__name__]
        rates = [module.p for module in modules if isinstance(module, torch.nn.Dropout)]
        arguments["backbone_dropout"] = rates[0] if rates else 0.0
    return arguments


def ltc_arguments(model):
    """The constructor arguments of an LTC, without units."""
    cell = model.rnn_cell
    return {
        "input_size": model.input_size,
        "return_sequences": model.return_sequences,
        "batch_first": model.batch_first,
        "mixed_memory": model.use_mixed,
        "input_mapping": cell._input_mapping,
        "output_mapping": cell._output_mapping,
        "ode_unfolds": cell._ode_unfolds,
        "epsilon": cell._epsilon,
        "implicit_param_constraints": cell._implicit_param_constraints,
    }


def layers_of(wiring):
    return [[int(n) for n in wiring.get_neurons_of_layer(i)] for i in range(wiring.num_layers)]


def expected_masks(model, wiring):
    """The masks that the model would have on this wiring, named as in the state dict."""
    inner, sensory = np.abs(wiring.adjacency_matrix), np.abs(wiring.sensory_adjacency_matrix)
    if isinstance(model, LTC):
        return {"rnn_cell.sparsity_mask": inner, "rnn_cell.sensory_sparsity_mask": sensory}
    masks, before = {}, None
    for i, layer in enumerate(layers_of(wiring)):
        part = sensory[:, layer] if i == 0 else inner[np.ix_(before, layer)]
        masks[f"rnn_cell.layer_{i}.sparsity_mask"] = np.concatenate([part, np.ones((len(layer), len(layer)))]).T
        before = layer
    return masks


def masks_of(model):
    return {name: value.cpu().numpy() for name, value in model.state_dict().items() if name.endswith("sparsity_mask")}


def has_circuit(model, wiring):
    """Whether the model's masks are those of this wiring."""
    found, expected = masks_of(model), expected_masks(model, wiring)
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)


def generator_of(model, wiring):
    """The class and arguments that draw the model's circuit again, or None."""
    kind = type(wiring).__name__
    if WIRINGS.get(kind) is not type(wiring):
        return None
    if kind == "NCP":
        # Its get_config draws new random numbers and does not know the seed: ncps' default is all that can be tried.
        names = ["sensory_fanout", "inter_fanout", "recurrent_command_synapses", "motor_fanin"]
        options = {f"{layer}_neurons": getattr(wiring, f"_num_{layer}_neurons") for layer in ["inter", "command", "motor"]}
        options.update({name: getattr(wiring, f"_{name}") for name in names})
    else:
        options = wiring.get_config()
    again = WIRINGS[kind](**options)
    again.build(wiring.input_dim)
    return {"class": kind, **options} if has_circuit(model, again) else None


def matrices_of(model, wiring):
    """The matrices of the model's circuit. Its masks say which synapses exist; a wiring that was built again for another
    model may have lost some, whose polarity is then taken as +1 (weights do not depend on it)."""
    found = masks_of(model)
    inner, sensory = np.zeros_like(wiring.adjacency_matrix), np.zeros_like(wiring.sensory_adjacency_matrix)
    if isinstance(model, LTC):
        inner[:] = found["rnn_cell.sparsity_mask"]
        sensory[:] = found["rnn_cell.sensory_sparsity_mask"]
    elif has_circuit(model, wiring):
        return wiring.adjacency_matrix, wiring.sensory_adjacency_matrix
    else:
        before = None
        for i, layer in enumerate(layers_of(wiring)):
            mask = found[f"rnn_cell.layer_{i}.sparsity_mask"].T[: -len(layer)]
            if i == 0:
                sensory[:, layer] = mask
            else:
                inner[np.ix_(before, layer)] = mask
            before = layer
    for matrix, polarity in [(inner, wiring.adjacency_matrix), (sensory, wiring.sensory_adjacency_matrix)]:
        known = (matrix != 0) & (polarity != 0)
        matrix[known] = polarity[known]
    return inner, sensory


def keep(key, value):
    """None is ncps' word for "as usual", except of mappings, where it means that there is none."""
    return value is not None or key in ("input_mapping", "output_mapping")


def plain(value):
    """NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} has no place in a configuration")


# Layers of PyTorch.


def function(name, **options):
    return {"class": "Activation", "function": {name: options} if options else name}


def softplus(module):
    if module.threshold < 20:
        raise CannotExport(f"a Softplus with threshold {module.threshold}; expected PyTorch's own, 20")
    return function("softplus", beta=float(module.beta))


def softmax(module, rank, log=False):
    if module.dim not in (-1, rank - 1):
        raise CannotExport(f"a softmax over axis {module.dim}; expected the last one, dim=-1")
    return {"class": "Softmax", "log": log}


FUNCTIONS = {
    nn.ReLU: lambda m: function("relu"),
    nn.Tanh: lambda m: function("tanh"),
    nn.Sigmoid: lambda m: function("sigmoid"),
    nn.SiLU: lambda m: function("silu"),
    nn.GELU: lambda m: function("gelu_tanh" if m.approximate == "tanh" else "gelu"),
    nn.LeakyReLU: lambda m: function("leaky_relu", slope=float(m.negative_slope)),
    nn.ELU: lambda m: function("elu", alpha=float(m.alpha)),
    nn.SELU: lambda m: function("selu"),
    nn.Softplus: softplus,
    nn.Softsign: lambda m: function("softsign"),
    nn.ReLU6: lambda m: function("hardtanh", low=0.0, high=6.0),
    nn.Hardtanh: lambda m: function("hardtanh", low=float(m.min_val), high=float(m.max_val)),
    nn.Hardsigmoid: lambda m: function("hardsigmoid"),
    nn.Hardswish: lambda m: function("hardswish"),
    nn.Mish: lambda m: function("mish"),
    nn.LogSigmoid: lambda m: function("log_sigmoid"),
}
# PyTorch's functions and methods of these names take what the modules' constructors take.
CALLED = {
    "relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "silu": nn.SiLU, "gelu": nn.GELU, "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU, "selu": nn.SELU, "softplus": nn.Softplus, "softsign": nn.Softsign, "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh, "hardsigmoid": nn.Hardsigmoid, "hardswish": nn.Hardswish, "mish": nn.Mish,
    "logsigmoid": nn.LogSigmoid, "log_sigmoid": nn.LogSigmoid, "softmax": nn.Softmax, "log_softmax": nn.LogSoftmax,
}  # fmt: skip
NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
RECURRENT = (CfC, LTC, nn.LSTM, nn.GRU, nn.RNN)
LEAVES = RECURRENT + (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Softmax, nn.LogSoftmax, nn.Flatten) + NOTHING + tuple(FUNCTIONS)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def leaf_class(module):
    """The class of a module that is one layer; None for modules whose `forward` is looked into."""
    for kind in LEAVES:
        # Layers of `schwann.torch` compute the same by other means.
        same = type(module).forward is kind.forward or getattr(type(module), "computes_as", None) is kind
        if isinstance(module, kind) and same:
            return kind
    if type(module).__name__ == "LeCun" and type(module).__module__.startswith("ncps."):
        return type(module)
    home = type(module).__module__
    if home.startswith(("torch.nn.", "torch.ao.", "ncps.")) and not isinstance(module, CONTAINERS):
        return type(module)
    return None


def supported(kind):
    return kind in LEAVES or kind.__name__ == "LeCun"


def unknown(where, kind):
    return f"`{where}` is a {kind.__module__}.{kind.__name__}; expected {SUPPORTED}"


def circuit_step(where, module):
    """A CfC or an LTC."""
    kind = "CfC" if isinstance(module, CfC) else "LTC"
    config = {"class": kind, **(cfc_arguments(module) if kind == "CfC" else ltc_arguments(module))}
    tensors = {**module.state_dict(), **dict(module.named_parameters())}
    metadata, matrices = {}, {}
    wiring = module.wiring_or_units
    if isinstance(wiring, Wiring):
        generator = generator_of(module, wiring)
        if generator is None:
            outputs = wiring.units if wiring.output_dim is None else wiring.output_dim
            generator = {"class": "Custom", "units": wiring.units, "output_dim": outputs}
            for key, matrix in zip(["adjacency", "sensory_adjacency"], matrices_of(module, wiring)):
                matrices[key] = torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.int32))
            if wiring.num_layers > 1:
                metadata["layers"] = json.dumps(layers_of(wiring))
        config["wiring"] = generator
    else:
        config["units"] = wiring
    config = {key: value for key, value in config.items() if keep(key, value)}
    return Step(where, config, tensors, metadata=metadata, matrices=matrices, module=module)


def pytorch_steps(where, module):
    """An LSTM, GRU or RNN: one step for each of its layers."""
    if module.bidirectional:
        raise CannotExport(f"`{where}` is a bidirectional {type(module).__name__}, which hears the future; a stream has none")
    name = {nn.LSTM: "LSTM", nn.GRU: "GRU", nn.RNN: "RNN"}[leaf_class(module)]
    config = {"class": name, "hidden_size": module.hidden_size, "bias": bool(module.bias), "return_sequences": True}
    config["batch_first"] = module.batch_first
    if module.proj_size:
        config["proj_size"] = module.proj_size
    if name == "RNN":
        config["nonlinearity"] = module.nonlinearity
    names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if module.bias else [])
    names += ["weight_hr"] if module.proj_size else []
    steps = []
    for layer in range(module.num_layers):
        inputs = module.input_size if layer == 0 else (module.proj_size or module.hidden_size)
        tensors = {f"{n}_l0": getattr(module, f"{n}_l{layer}") for n in names}
        at = where if module.num_layers == 1 else f"{where}, layer {layer}"
        steps.append(Step(at, {**config, "input_size": inputs}, tensors, module=module))
    return steps


def plain_step(where, module, rank):
    """A layer without a state; None where it does nothing."""
    kind = leaf_class(module)
    if kind in NOTHING:
        return None
    if kind is nn.Linear:
        config = {"class": "Linear", "in_features": module.in_features, "out_features": module.out_features}
        config["bias"] = module.bias is not None
        names = ["weight", "bias"] if module.bias is not None else ["weight"]
    elif kind is nn.LayerNorm:
        if len(module.normalized_shape) != 1:
            raise CannotExport(f"`{where}` is a LayerNorm over {tuple(module.normalized_shape)}; expected the last axis alone")
        affine = module.weight is not None
        config = {"class": "LayerNorm", "normalized_shape": module.normalized_shape[0], "eps": module.eps}
        config.update(elementwise_affine=affine, bias=module.bias is not None)
        names = [n for n in ["weight", "bias"] if getattr(module, n) is not None]
    elif kind is nn.Embedding:
        if module.max_norm is not None:
            raise CannotExport(f"`{where}` is an Embedding with max_norm, which changes its weights as it runs")
        config = {"class": "Embedding", "num_embeddings": module.num_embeddings, "embedding_dim": module.embedding_dim}
        names = ["weight"]
    elif kind in (nn.Softmax, nn.LogSoftmax):
        return Step(where, softmax(module, rank, log=kind is nn.LogSoftmax))
    elif kind in FUNCTIONS:
        return Step(where, FUNCTIONS[kind](module))
    elif kind.__name__ == "LeCun":
        return Step(where, function("lecun_tanh"))
    else:
        raise CannotExport(unknown(where, kind))
    return Step(where, config, {n: getattr(module, n) for n in names}, module=module)
