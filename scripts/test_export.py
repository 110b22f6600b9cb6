#!/usr/bin/env python3
"""Checks export_ncps.py: networks that come over give in Schwann what they give in PyTorch, others are refused by name.

    test_export.py [SCHWANN]      the command to verify with; `schwann` unless told

Needs torch, ncps and safetensors.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from export_ncps import CannotExport, export
from ncps.torch import LTC, CfC
from ncps.wirings import AutoNCP, Wiring
from torch import nn


class Own(nn.Module):
    """Modules by name, and what is done with them."""

    def __init__(self, does, **modules):
        super().__init__()
        self.does = does
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.does(self, *inputs)


class ByHand(Wiring):
    def __init__(self):
        super().__init__(6)
        self.set_output_dim(2)
        for src, dest, polarity in [(0, 1, 1), (3, 4, -1), (5, 0, 1)]:
            self.add_synapse(src, dest, polarity)

    def build(self, inputs):
        super().build(inputs)
        for i in range(inputs):
            self.add_sensory_synapse(i, 2 * i % 6, 1)


def linear(inputs=8, outputs=8):
    return nn.Linear(inputs, outputs)


def lstm(**options):
    return nn.LSTM(8, 6, batch_first=True, **options)


def gru():
    return nn.GRU(8, 6, batch_first=True)


def steer(m, x, hx=None):
    y, hx = m.rnn(torch.relu(m.encoder(x)), hx)
    return 2.0 * torch.tanh(m.head(y)), hx


def by_rows(m, x):
    y, _ = m.r(x, torch.zeros(1, x.shape[0], 6))
    return m.a(y.reshape(-1, 6)).view(*x.shape[:2], -1)


def come_over(x):
    """Networks and their samples, by name."""
    times = torch.rand(1, x.shape[1]) + 0.1
    head = lambda: linear(6, 2)  # noqa: E731
    return {
        "encoder, circuit, head": (Own(steer, encoder=linear(8, 16), rnn=CfC(16, AutoNCP(24, 4)), head=linear(4, 2)), x),
        "functions": (Own(lambda m, x: F.gelu(F.elu(F.leaky_relu(m.a(x), 0.3), alpha=0.4), approximate="tanh"), a=linear()), x),
        "methods": (Own(lambda m, x: m.b(m.a(x).relu().sigmoid()).tanh_(), a=linear(), b=linear()), x),
        "in place": (nn.Sequential(linear(), nn.ReLU(inplace=True), linear(), nn.Dropout()), x),
        "factors": (Own(lambda m, x: -(3 - m.a((x - 0.5) / torch.arange(1, 9))) / 4, a=linear()), x),
        "shared": (Own(lambda m, x: m.a(torch.tanh(m.a(x))), a=linear()), x),
        "last step": (Own(lambda m, x: F.softmax(m.a(m.n(m.r(x)[0][:, -1])), -1), r=lstm(), n=nn.LayerNorm(6), a=head()), x),
        "last step of the head": (Own(lambda m, x: m.a(m.r(x)[0])[..., -1, :], r=gru(), a=head()), x),
        "state of two layers": (Own(lambda m, x: m.a(m.r(x)[1][0][-1]), r=lstm(num_layers=2), a=head()), x),
        "state of one layer": (Own(lambda m, x: m.a(m.r(x)[1].squeeze(0)), r=gru(), a=head()), x),
        "state of a CfC": (Own(lambda m, x: m.a(m.r(x)[1]), r=CfC(8, 6), a=head()), x),
        "time first": (Own(lambda m, x: m.a(m.r(x)[0][-1]), r=nn.LSTM(8, 6), a=head()), x),
        "transposed": (Own(lambda m, x: m.a(m.r(x.transpose(0, 1))[0]).transpose(0, 1), r=nn.LSTM(8, 6), a=head()), x),
        "row by row": (Own(by_rows, r=gru(), a=head()), x),
        "squeezed": (Own(lambda m, x: torch.sigmoid(m.a(m.r(x)[0]).squeeze(-1)), r=gru(), a=linear(6, 1)), x),
        "nested": (nn.Sequential(linear(), nn.Sequential(nn.SiLU(), lstm(proj_size=3)), CfC(3, 9), nn.LogSoftmax(-1)), x),
        "a lambda in order": (nn.Sequential(lstm(), Own(lambda m, out: out[0][:, -1]), head()), x),
        "by hand": (nn.Sequential(linear(8, 4), LTC(4, ByHand()), linear(2, 3), LTC(3, AutoNCP(9, 2)), CfC(2, ByHand())), x),
        "symbols": (nn.Sequential(nn.Embedding(9, 4), LTC(4, 5), linear(5, 2)), torch.randint(0, 9, (3, 5))),
        "time spans": (Own(lambda m, x, t: m.a(m.r(x, timespans=t)[0]), r=CfC(8, 6), a=head()), (x[:1], times)),
        "without a batch": (nn.Sequential(nn.RNN(8, 6, nonlinearity="relu"), head()), x[0]),
        "one sample": (nn.Sequential(linear(), nn.Tanh()), x[0, 0]),
        "float64": (nn.Sequential(linear(8, 4), CfC(4, 4)).double(), x.double()),
        "bfloat16": (nn.Sequential(linear(8, 4), CfC(4, 4)).bfloat16(), x.bfloat16()),
        "flattened first": (nn.Sequential(nn.Flatten(), linear(40, 4)), x),
    }


def refused(x):
    """Networks, samples and what must be said of them."""
    return [
        (Own(lambda m, x: m.a(x) + x, a=linear()), x, "`add` joins two branches"),
        (Own(lambda m, x: (lambda y: y * y)(m.a(x)), a=linear()), x, "`mul` joins two branches"),
        (Own(lambda m, x: m.a(torch.cat([x, x], -1)), a=linear(16)), x, "`cat` joins two branches"),
        (Own(lambda m, x: m.part["c"](x), part=nn.ModuleDict({"c": nn.Conv1d(5, 5, 3)})), x, "`part.c` is a torch.nn.modules.conv.Conv1d"),
        (nn.Sequential(linear(), nn.MultiheadAttention(8, 2)), x, "`1` is a torch.nn.modules.activation.MultiheadAttention"),
        (Own(lambda m, x: m.r(x)[0].mean(1), r=gru()), x, "`mean` is called on what `r` gave"),
        (Own(lambda m, x: m.r(x)[0][:, 0], r=gru()), x, "`y[:, 0]` takes a part of what `r` gave"),
        (Own(lambda m, x: m.r(x)[0][:, -2:], r=gru()), x, "`y[:, -2:]` takes a part"),
        (Own(lambda m, x: m.r(x)[1][1][-1], r=lstm()), x, "the state of `r` is read"),
        (Own(lambda m, x: m.r(x)[1], r=CfC(8, AutoNCP(12, 3))), x, "the state of `r` is read"),
        (Own(lambda m, x: (m.a(x), m.b(x)), a=linear(), b=linear()), x, "more than one result"),
        (Own(lambda m, x: m.r(x)[0], r=lstm(bidirectional=True)), x, "bidirectional"),
        (Own(lambda m, x: m.r(x, torch.ones(1, 3, 6))[0], r=gru()), x, "a state that is given"),
        (Own(lambda m, x: m.a(x) * x.max().item(), a=linear()), x, "a number is read out of a tensor"),
        (Own(lambda m, x: m.a(torch.from_numpy(x.numpy())), a=linear()), x, "a number is read out of a tensor"),
        (Own(lambda m, x: m.r(x.transpose(0, 1))[0], r=nn.LSTM(8, 6)), x, "the other way round"),
        (nn.Sequential(nn.LSTM(8, 4), CfC(4, 3)), x, "some recurrent layers have batch_first=True"),
        (Own(lambda m, x: m.r(m.r(x)[0])[0], r=nn.GRU(8, 8, batch_first=True)), x, "`r` is called twice"),
        (Own(lambda m, x: {"y": m.a(x)}, a=linear()), x, "gives a dict"),
        (Own(lambda m, x: m.a(x), a=linear()), None, "add sample=x"),
    ]


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else "schwann"
    torch.manual_seed(1)
    x = torch.randn(3, 5, 8)
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, (network, sample) in come_over(x).items():
            path = Path(folder) / (name.replace(" ", "_").replace(",", "") + ".safetensors")
            export(network, path, sample=sample, gradients=name != "shared", quiet=True)
            files.append(path)
        done = subprocess.run([command, "verify", "--grad", *files])
        wrong += [f"schwann verify ended with {done.returncode}"] if done.returncode else []
        for network, sample, expected in refused(x):
            try:
                export(network, Path(folder) / "refused.safetensors", sample=sample, quiet=True)
                wrong.append(f"was written, and should be refused: {expected}")
            except CannotExport as problem:
                wrong += [] if expected in str(problem) else [f"expected {expected!r}: {problem}"]
    print("\n".join(wrong) or f"{len(files)} networks came over, {len(refused(x))} were refused by name")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
