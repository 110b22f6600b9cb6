#!/usr/bin/env python3
"""Trains small networks with ncps and PyTorch and writes what came of it, for the tests to follow.

    make_training_golden.py FOLDER

Needs torch, ncps and safetensors. Each file is what `export` writes, with the samples `x`, `target`, `mask` (where there
is one) and `timespans` (where there are some), and the `losses` and lengths of gradients (`norms`) of 100 steps. The
metadata entry `training` says how they were taken, as JSON: loss, optimizer, rate, decay, clip_norm, and whether LTC's
weights are kept from being negative.

Rates are such that the losses depend on the network alone: at four times the rate, those of the first two networks in
float32 and in float64 differ by more than half after 100 steps, in PyTorch itself.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from export_ncps import export
from ncps.torch import CfC, LTC
from ncps.wirings import AutoNCP
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

STEPS = 100


class Chain(nn.Module):
    """Layers one after the other; of recurrent ones the output alone."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


def loss_of(kind, y, target, mask):
    """The mean over what the mask keeps."""
    if kind == "cross_entropy":
        rows = F.cross_entropy(y.flatten(0, -2), target.flatten().long(), reduction="none").reshape(target.shape)
    else:
        function = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": lambda *a, **k: F.huber_loss(*a, delta=0.5, **k)}[kind]
        rows = function(y, target, reduction="none").mean(-1)
    return rows.mean() if mask is None else (rows * mask).sum() / mask.sum()


CASES = {
    "cfc_adam_mse": dict(
        model=lambda: CfC(3, 8, proj_size=2, backbone_units=16, backbone_layers=2), loss="mse", optimizer="adam", rate=0.0025
    ),
    "cfc_pure_adamw_huber": dict(
        model=lambda: CfC(3, 6, mode="pure", proj_size=2), loss="huber", optimizer="adamw", rate=0.0025, decay=0.1, clip_norm=0.05
    ),
    "wired_cfc_adam_mse_masked": dict(
        model=lambda: CfC(3, AutoNCP(12, 2, seed=3)), loss="mse", optimizer="adam", rate=0.01, masked=True
    ),
    "wired_cfc_memory_adam_l2": dict(
        model=lambda: CfC(3, AutoNCP(9, 2, seed=4), mixed_memory=True), loss="mae", optimizer="adam", rate=0.01, decay=0.01
    ),
    "ltc_adam_mse": dict(model=lambda: LTC(3, AutoNCP(12, 2, seed=5)), loss="mse", optimizer="adam", rate=0.01),
    "ltc_explicit_sgd_mse": dict(
        model=lambda: LTC(3, AutoNCP(9, 2, seed=6), implicit_param_constraints=False),
        loss="mse",
        optimizer="sgd",
        momentum=0.9,
        rate=0.02,
        constrain=True,
    ),
    "lstm_adam_cross_entropy_masked": dict(
        model=lambda: Chain(nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 4)),
        loss="cross_entropy",
        optimizer="adam",
        rate=0.01,
        masked=True,
        classes=4,
    ),
    "gru_nesterov_mse": dict(
        model=lambda: Chain(nn.Linear(3, 5), nn.Tanh(), nn.GRU(5, 8, batch_first=True), nn.LayerNorm(8), nn.Linear(8, 2)),
        loss="mse",
        optimizer="sgd",
        momentum=0.8,
        nesterov=True,
        rate=0.02,
        clip_norm=1.0,
    ),
    "mlp_adamw_cross_entropy": dict(
        model=lambda: nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4)),
        loss="cross_entropy",
        optimizer="adamw",
        rate=0.02,
        decay=0.05,
        classes=4,
        flat=True,
    ),
}


def optimizer_of(case, model):
    decay = case.get("decay", 0.0)
    if case["optimizer"] == "sgd":
        nesterov = case.get("nesterov", False)
        return torch.optim.SGD(model.parameters(), case["rate"], case["momentum"], weight_decay=decay, nesterov=nesterov)
    kind = torch.optim.AdamW if case["optimizer"] == "adamw" else torch.optim.Adam
    return kind(model.parameters(), case["rate"], weight_decay=decay)


def make(name, case, folder):
    torch.manual_seed(sum(map(ord, name)))
    model = case["model"]()
    shape = (12, 3) if case.get("flat") else (5, 7, 3)
    x = torch.randn(shape)
    rows = shape[:-1]
    classes = case.get("classes")
    target = torch.randint(classes, rows, dtype=torch.int32) if classes else torch.randn(*rows, 2) * 0.5
    mask = None
    if case.get("masked"):
        lengths = torch.tensor([7, 3, 1, 6, 5])
        mask = (torch.arange(7)[None] < lengths[:, None]).float()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.safetensors"
        export(model, path, sample=x, quiet=True)
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}
            metadata = file.metadata()
    optimizer = optimizer_of(case, model)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        y = model(x)
        y = y[0] if isinstance(y, tuple) else y
        loss = loss_of(case["loss"], y, target, mask)
        loss.backward()
        most = case.get("clip_norm", float("inf"))
        norms.append(float(nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], most)))
        optimizer.step()
        if case.get("constrain"):
            model.rnn_cell.apply_weight_constraints()
        losses.append(float(loss.detach()))
    keep = {key: value for key, value in tensors.items() if key.startswith("model.") or key.endswith("adjacency")}
    keep.update(x=x, target=target, losses=torch.tensor(losses), norms=torch.tensor(norms))
    if mask is not None:
        keep["mask"] = mask
    told = {key: value for key, value in case.items() if key not in ("model", "masked", "classes", "flat")}
    metadata["training"] = json.dumps(told)
    save_file(keep, Path(folder) / f"{name}.safetensors", metadata)
    print(f"{name}: {losses[0]:.5f} -> {losses[-1]:.5f}")


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        make(name, case, sys.argv[1])
