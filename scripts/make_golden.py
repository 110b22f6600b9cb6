#!/usr/bin/env python3
"""Draws random ncps models and writes what they give, for `schwann verify` and the tests to compare with.

    make_golden.py FOLDER [--count N] [--seed S]
    make_golden.py FOLDER --networks [--count N] [--seed S]

The second draws whole networks (encoder, recurrent layers of ncps and PyTorch, head) and writes them with `export`.

Needs torch, ncps and safetensors. Each file holds the model's class and constructor arguments (metadata `config`), its
state dict (`model.<name>`), a sample (`x`, and where drawn `timespans`, `h0`, `c0`), the results (`y`, `hn`, `cn`), a
`target`, the `loss` mean((y - target)^2) and its gradients (`grad.<parameter>`).

What ncps does with timespans of several samples is wrong (it drops the batch axis, which then meets the units), so such
samples are run one by one. Without a batch axis, with time first and only the last output, it leaves an axis of size 1;
that is dropped here.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from export_ncps import export
from ncps.torch import CfC, LTC
from ncps.wirings import NCP, AutoNCP, FullyConnected, Random
from safetensors.torch import save_file
from torch import nn

WIRINGS = {"AutoNCP": AutoNCP, "FullyConnected": FullyConnected, "NCP": NCP, "Random": Random}
SIZES = [1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 24, 31]


def draw_wiring(rng):
    kind = rng.choice(list(WIRINGS))
    if kind == "AutoNCP":
        units = rng.choice([5, 9, 12, 19, 20, 33])
        options = {"units": units, "output_size": rng.randint(1, max(1, min(units - 3, 6)))}
        options["sparsity_level"] = rng.choice([0.1, 0.3, 0.5, 0.75, 0.9])
        options["seed"] = rng.randint(0, 99999)
    elif kind == "NCP":
        inter, command, motor = rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 6)
        options = {"inter_neurons": inter, "command_neurons": command, "motor_neurons": motor}
        options["sensory_fanout"] = rng.randint(1, inter)
        options["inter_fanout"] = rng.randint(1, command)
        options["recurrent_command_synapses"] = rng.randint(0, 2 * command)
        options["motor_fanin"] = rng.randint(1, command)
        options["seed"] = rng.randint(0, 99999)
    else:
        units = rng.choice([1, 2, 5, 9, 14, 17])
        options = {"units": units, "output_dim": rng.randint(1, units)}
        if kind == "Random":
            options["sparsity_level"] = rng.choice([0.0, 0.25, 0.6, 0.95])
            options["random_seed"] = rng.randint(0, 99999)
        else:
            options["erev_init_seed"] = rng.randint(0, 99999)
            options["self_connections"] = rng.random() < 0.5
    return {"class": kind, **options}


def draw_config(rng):
    """Class and constructor arguments."""
    config = {"class": rng.choice(["CfC", "CfC", "LTC"]), "input_size": rng.choice(SIZES)}
    wired = rng.random() < 0.5
    if wired:
        config["wiring"] = draw_wiring(rng)
    else:
        config["units"] = rng.choice(SIZES)
    if rng.random() < 0.3:
        config["mixed_memory"] = True
    if rng.random() < 0.25:
        config["return_sequences"] = False
    if rng.random() < 0.25:
        config["batch_first"] = False
    if config["class"] == "CfC":
        if rng.random() < 0.7:
            config["mode"] = rng.choice(["default", "pure", "no_gate"])
        # With fewer outputs than units, ncps' projection of an unlayered circuit does not fit its state.
        fits = not wired or "output_dim" not in config["wiring"]
        if fits and rng.random() < 0.3:
            config["proj_size"] = rng.choice([1, 2, 5])
        if not wired:
            if rng.random() < 0.8:
                config["activation"] = rng.choice(["lecun_tanh", "silu", "relu", "tanh", "gelu"])
            if rng.random() < 0.8:
                config["backbone_layers"] = rng.randint(0, 3)
            if rng.random() < 0.8:
                config["backbone_units"] = rng.choice(SIZES + [40])
            if rng.random() < 0.2:
                config["backbone_dropout"] = 0.25
    else:
        if rng.random() < 0.5:
            config["implicit_param_constraints"] = False
        if rng.random() < 0.7:
            config["ode_unfolds"] = rng.randint(1, 8)
        for mapping in ["input_mapping", "output_mapping"]:
            if rng.random() < 0.5:
                config[mapping] = rng.choice(["affine", "linear", None])
        if rng.random() < 0.2:
            config["epsilon"] = rng.choice([1e-6, 1e-3])
    return config


def build(config):
    """The ncps model of a configuration."""
    options = {name: value for name, value in config.items() if name not in ("class", "wiring", "units")}
    units = config.get("units")
    if "wiring" in config:
        wiring = dict(config["wiring"])
        units = WIRINGS[wiring.pop("class")](**wiring)
    return {"CfC": CfC, "LTC": LTC}[config["class"]](units=units, **options)


def shake(model, rng):
    """Moves every parameter from its start, as training would: polarities and mappings are no longer round numbers."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * rng.choice([0.0, 0.05, 0.2]))
                if name.split(".")[-1] in ("w", "sensory_w", "cm", "gleak"):
                    parameter.clamp_(min=0.001)


def run(model, x, state, timespans, time_first):
    """The model's results; samples with their own timespans go one by one."""
    batch_axis = 1 if time_first else 0
    if timespans is None or x.dim() == 2 or x.shape[batch_axis] == 1:
        return model(x, state, timespans)
    rows = []
    for i in range(x.shape[batch_axis]):
        pick = (slice(None), slice(i, i + 1)) if time_first else (slice(i, i + 1),)
        own = state
        if isinstance(state, tuple):
            own = tuple(s[i : i + 1] for s in state)
        elif state is not None:
            own = state[i : i + 1]
        rows.append(model(x[pick], own, timespans[pick]))
    sequences = model.return_sequences
    y = torch.cat([y for y, _ in rows], dim=batch_axis if sequences else 0)
    if isinstance(rows[0][1], tuple):
        return y, tuple(torch.cat(parts) for parts in zip(*(state for _, state in rows)))
    return y, torch.cat([state for _, state in rows])


def make(config, rng):
    """The tensors of one file."""
    torch.manual_seed(rng.randint(0, 2**31))
    model = build(config).eval()
    shake(model, rng)
    time_first = config.get("batch_first") is False
    batched = rng.random() < 0.8
    batch, steps = rng.choice([1, 1, 2, 3, 5, 17]), rng.choice([1, 1, 2, 5, 9, 14])
    scale = rng.choice([1.0, 1.0, 1.0, 0.01, 50.0])
    leading = ((steps, batch) if time_first else (batch, steps)) if batched else (steps,)
    x = torch.randn(*leading, config["input_size"]) * scale
    tensors = {"x": x}

    state = None
    rows = (batch,) if batched else ()
    if rng.random() < 0.4:
        tensors["h0"] = state = torch.randn(*rows, model.state_size) * 0.5
        if config.get("mixed_memory"):
            tensors["c0"] = torch.randn(*rows, model.state_size) * 0.5
            state = (state, tensors["c0"])
    timespans = None
    if rng.random() < 0.4:
        timespans = torch.rand(*leading) * 2 + 0.05
        # Without a batch axis ncps takes one number a step.
        if batched and rng.random() < 0.5:
            timespans = timespans.unsqueeze(-1)
        tensors["timespans"] = timespans

    y, last = run(model, x, state, timespans, time_first)
    if not batched and time_first and not config.get("return_sequences", True):
        y = y.reshape(-1)
    tensors["y"] = y
    tensors["hn"], cn = last if isinstance(last, tuple) else (last, None)
    if cn is not None:
        tensors["cn"] = cn
    tensors["target"] = torch.randn_like(y)
    loss = ((y - tensors["target"]) ** 2).mean()
    loss.backward()
    tensors["loss"] = loss.reshape(1)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found = parameter.grad
            tensors[f"grad.{name}"] = torch.zeros_like(parameter) if found is None else found
    for name, value in model.state_dict().items():
        tensors[f"model.{name}"] = value
    return {name: value.detach().clone().contiguous() for name, value in tensors.items()}


ELEMENTWISE = [
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU, lambda: nn.GELU(approximate="tanh"), lambda: nn.LeakyReLU(0.2),
    lambda: nn.ELU(0.7), nn.SELU, nn.Softplus, lambda: nn.Softplus(2.5), nn.Softsign, nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid,
    nn.Hardswish, nn.Mish, nn.LogSigmoid,
]  # fmt: skip


def draw_recurrent(rng, inputs, batch_first):
    """A recurrent layer and the features that it gives."""
    kind = rng.choice(["ncps", "ncps", "LSTM", "GRU", "RNN"])
    if kind == "ncps":
        config = draw_config(rng)
        config.update(input_size=inputs, batch_first=batch_first, return_sequences=True)
        layer = build(config)
        shake(layer, rng)
        # What it says of its own output is not always so.
        return layer, layer(torch.zeros(1, 1, inputs))[0].shape[-1]
    units = rng.choice(SIZES)
    options = {"num_layers": rng.choice([1, 1, 2, 3]), "batch_first": batch_first, "bias": rng.random() < 0.8}
    if kind == "LSTM" and units > 1 and rng.random() < 0.3:
        options["proj_size"] = rng.randint(1, units - 1)
    if kind == "RNN":
        options["nonlinearity"] = rng.choice(["tanh", "relu"])
    return getattr(nn, kind)(inputs, units, **options), options.get("proj_size", units)


def draw_plain(rng, width):
    """A few layers without a state, and the features that they give."""
    layers = []
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        kind = rng.choice(["linear", "linear", "function", "norm", "dropout"])
        if kind == "linear":
            after = rng.choice(SIZES)
            layers.append(nn.Linear(width, after, bias=rng.random() < 0.8))
            width = after
        elif kind == "function":
            layers.append(rng.choice(ELEMENTWISE)())
        elif kind == "norm" and width > 1:
            layers.append(nn.LayerNorm(width, elementwise_affine=rng.random() < 0.7, eps=rng.choice([1e-5, 1e-3])))
        else:
            layers.append(nn.Dropout(0.3))
    return layers, width


class Network(nn.Module):
    """Encoder, recurrent layers, head, with what people write between them."""

    def __init__(self, rng):
        super().__init__()
        self.batch_first = rng.random() < 0.7
        self.symbols = rng.randint(2, 30) if rng.random() < 0.15 else None
        self.input_size = width = rng.choice(SIZES)
        first = [nn.Embedding(self.symbols, width)] if self.symbols else []
        layers, width = draw_plain(rng, width)
        self.encoder = nn.Sequential(*first, *layers)
        self.circuits = nn.ModuleList()
        self.norms = nn.ModuleList()
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            layer, width = draw_recurrent(rng, width, self.batch_first)
            self.circuits.append(layer)
            layers, width = draw_plain(rng, width)
            self.norms.append(nn.Sequential(*layers))
        layers, width = draw_plain(rng, width)
        self.head = nn.Sequential(*layers, nn.Linear(width, rng.choice([1, 2, 5, 9])))
        self.shift = rng.random() < 0.3
        self.last = rng.choice(["all", "last", "last"])
        self.end = rng.choice(["none", "tanh", "scale", "softmax", "log_softmax", "squeeze"])
        self.swap = rng.random() < 0.2

    def forward(self, x):
        if self.shift and not self.symbols:
            x = (x - 0.25) / torch.linspace(0.5, 2, x.shape[-1])
        y = self.encoder(x)
        time = int(self.batch_first)
        for circuit, between in zip(self.circuits, self.norms):
            y, _ = circuit(y)
            y = between(y)
        if self.swap and y.dim() == 3:
            y = y.transpose(0, 1).contiguous().transpose(1, 0)
        if self.circuits and self.last == "last":
            y = y[:, -1] if time and y.dim() == 3 else y[-1]
        y = self.head(y)
        if self.end == "tanh":
            y = torch.tanh(y)
        elif self.end == "scale":
            y = 1.5 - y * 2.0
        elif self.end == "softmax":
            y = torch.softmax(y, -1)
        elif self.end == "log_softmax":
            y = nn.functional.log_softmax(y, dim=-1)
        elif self.end == "squeeze" and y.shape[-1] == 1:
            y = y.squeeze(-1)
        return y


def make_network(rng, path):
    torch.manual_seed(rng.randint(0, 2**31))
    network = Network(rng)
    batch, steps = rng.choice([1, 2, 3, 5, 17]), rng.choice([1, 2, 5, 9])
    leading = (batch, steps) if network.batch_first else (steps, batch)
    if rng.random() < 0.2 and network.circuits:
        leading = (steps,)
    if network.symbols:
        x = torch.randint(0, network.symbols, leading)
    else:
        x = torch.randn(*leading, network.input_size) * rng.choice([1.0, 1.0, 0.01, 5.0])
    export(network, path, sample=x, gradients=True, quiet=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--networks", action="store_true", help="whole networks instead of single layers")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    made_with = f"ncps, torch {torch.__version__}"
    for i in range(arguments.count):
        # Each file has a generator of its own, so that it can be made again alone.
        rng = random.Random(arguments.seed * 1_000_000 + i)
        if arguments.networks:
            make_network(rng, arguments.folder / f"network_{arguments.seed}_{i:04}.safetensors")
            continue
        config = draw_config(rng)
        metadata = {"config": json.dumps(config), "made_with": made_with}
        name = f"{config['class'].lower()}_{arguments.seed}_{i:04}.safetensors"
        save_file(make(config, rng), arguments.folder / name, metadata)


if __name__ == "__main__":
    main()
