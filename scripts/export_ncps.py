#!/usr/bin/env python3
"""Writes an ncps model (`CfC` or `LTC` of `ncps.torch`) as one safetensors file that Schwann reads.

    from export_ncps import export
    export(model, "model.safetensors")

or, for a state dict that was saved with `torch.save(model.state_dict(), "model.pt")`,

    export_ncps.py model.pt model.safetensors --config '{"class": "CfC", "input_size": 8, "units": 32}'

Needs torch, ncps and safetensors. The file holds the state dict (`model.<name>`) and, as JSON in the metadata entry
`config`, the class and its constructor arguments. These are read off the model; what is passed to `export` by name wins.

The circuit is the one that the model has. Where a wiring's class and arguments draw that circuit again, they are what is
written. Where they do not (a wiring made by hand, of a class of one's own, with another seed than can be known, or built
twice, which draws more synapses), its matrices are written too, as `adjacency` and `sensory_adjacency`.

Of a network of one's own, export the layer: `export(network.rnn, path)`.
"""

import argparse
import json
import sys

import numpy as np
import torch
from ncps.torch import CfC, LTC
from ncps.wirings import NCP, AutoNCP, FullyConnected, Random, Wiring
from safetensors.torch import save_file

WIRINGS = {"AutoNCP": AutoNCP, "FullyConnected": FullyConnected, "NCP": NCP, "Random": Random}
ACTIVATIONS = {"LeCun": "lecun_tanh", "SiLU": "silu", "ReLU": "relu", "Tanh": "tanh", "GELU": "gelu"}


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


def export(model, path, **constructor_args):
    """Writes `model` to `path`. Constructor arguments are read off the model; those given here win."""
    if not isinstance(model, (CfC, LTC)):
        raise TypeError(f"expected ncps.torch.CfC or LTC, got {type(model).__name__}; of a network, export that layer")
    name = "CfC" if isinstance(model, CfC) else "LTC"
    config = {"class": name, **(cfc_arguments(model) if name == "CfC" else ltc_arguments(model))}
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    metadata = {}

    wiring = model.wiring_or_units
    if isinstance(wiring, Wiring):
        generator = generator_of(model, wiring)
        if generator is None:
            outputs = wiring.units if wiring.output_dim is None else wiring.output_dim
            generator = {"class": "Custom", "units": wiring.units, "output_dim": outputs}
            for key, matrix in zip(["adjacency", "sensory_adjacency"], matrices_of(model, wiring)):
                tensors[key] = torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.int32))
            if wiring.num_layers > 1:
                metadata["layers"] = json.dumps(layers_of(wiring))
        config["wiring"] = generator
    else:
        config["units"] = wiring
    given = dict(constructor_args)
    for key in ["units", "wiring"]:
        if isinstance(given.get(key), Wiring):
            del given[key]
    config.update(given)

    metadata["config"] = json.dumps({key: value for key, value in config.items() if keep(key, value)}, default=plain)
    save_file({key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}, path, metadata)


def keep(key, value):
    """None is ncps' word for "as usual", except of mappings, where it means that there is none."""
    return value is not None or key in ("input_mapping", "output_mapping")


def plain(value):
    """NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} has no place in a configuration")


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
