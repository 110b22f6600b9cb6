#!/usr/bin/env python3
"""Trains the same networks with Schwann and with ncps on PyTorch: same start, same data in the same order, same steps.

    test_training.py target/release/schwann [FOLDER]

Needs torch, ncps, numpy and safetensors. The wave of ncps' first example (a wired CfC), and the cart and pole at irregular
times (CfC, LTC, LSTM). Losses are compared, the trained weights are read back by ncps and must give what Schwann gives.
FOLDER gets the losses of both as curves.json and curves.svg. Exit code 1: they differ.

ncps cannot take time spans of several samples as they are: it drops an axis. Given one number for each neuron, it computes
what it means to. That serves a CfC and an LTC; a wired CfC has layers of several widths, and is compared on the wave.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from export_ncps import export
from load_schwann import Chain, load
from ncps.torch import CfC, LTC
from ncps.wirings import AutoNCP
from torch import nn

CONFIG = """
[model]
file = "start.safetensors"
[data]
inputs = "x.npy"
targets = "y.npy"
{more}
shuffle = false
[train]
steps = {steps}
batch = {batch}
rate = {rate}
clip_norm = 1.0
validate_every = 10
[output]
folder = "run"
"""


def forward(model, x, timespans):
    y = model(x) if timespans is None else model(x, timespans=timespans)
    return y[0] if isinstance(y, tuple) else y


def there(model, x, y, timespans, steps, batch, rate):
    """Losses of training with PyTorch, step by step."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    losses = []
    for step in range(steps):
        rows = [(step * batch + i) % len(x) for i in range(batch)]
        optimizer.zero_grad()
        loss = ((forward(model, x[rows], None if timespans is None else timespans[rows]) - y[rows]) ** 2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def compare(program, name, model, x, y, dt, units, steps, batch, rate):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        run = lambda *args: subprocess.run([program, *args], cwd=folder, check=True, capture_output=True, text=True)  # noqa: E731
        sample = x[:1, :3]
        export(model, folder / "exported.safetensors", sample=sample, quiet=True)
        run("import", "ncps", "exported.safetensors", "-o", "start.safetensors")
        numpy.save(folder / "x.npy", x.numpy())
        numpy.save(folder / "y.npy", y.numpy())
        more = ""
        if dt is not None:
            numpy.save(folder / "dt.npy", dt.numpy())
            more = 'timespans = "dt.npy"'
        (folder / "my.toml").write_text(CONFIG.format(steps=steps, batch=batch, rate=rate, more=more))
        run("train", "my.toml", "--threads", "1")
        here = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
        spans = None if dt is None else dt[:, :, None].expand(-1, -1, units)
        losses = there(model, x, y, spans, steps, batch, rate)
        mean = [sum(losses[max(0, r["step"] - 10) : r["step"]]) / 10 for r in here]
        ours = [r["loss"] for r in here]
        # The trained weights, back in ncps.
        run("export", "ncps", "run/last.safetensors", "-o", "back.safetensors")
        off = None
        if dt is None:
            run("run", "run/last.safetensors", "--input", "x.npy", "--output", "got.npy")
            with torch.no_grad():
                want = forward(load(folder / "back.safetensors"), x, None)
            off = float((want - torch.from_numpy(numpy.load(folder / "got.npy"))).abs().max())
    worst = max(abs(a - b) / b for a, b in zip(ours[:10], mean[:10]))
    good = worst < 1e-3 and ours[-1] < 1.1 * mean[-1] + 1e-5 and (off is None or off < 1e-4)
    back = "" if off is None else f"; weights back in PyTorch give results within {off:.1e}"
    print(f"{name}: after {steps} steps {ours[-1]:.6f} here, {mean[-1]:.6f} there; first 100 within {worst:.1e}{back}  {'ok' if good else 'OFF'}")
    return good, {"step": [r["step"] for r in here], "here": ours, "there": mean}


def picture(found):
    """Losses here as lines, there as dots, on a logarithmic scale."""
    width, height = 480, 220
    panels = []
    for number, (name, curve) in enumerate(found.items()):
        left, top = number % 2 * width, number // 2 * height
        low, high = math.log10(min(curve["here"] + curve["there"])), math.log10(max(curve["here"] + curve["there"]))
        x = lambda step: left + 46 + (width - 66) * step / curve["step"][-1]  # noqa: B023, E731
        y = lambda loss: top + 34 + (height - 74) * (high - math.log10(loss)) / (high - low)  # noqa: B023, E731
        points = lambda losses: [(x(s), y(v)) for s, v in zip(curve["step"], losses)]  # noqa: B023, E731
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points(curve["here"]))
        panels.append(f'<text x="{left + 46}" y="{top + 20}" font-weight="600">{name}</text>')
        for tick in range(math.ceil(low), math.floor(high) + 1):
            at = y(10**tick)
            panels.append(f'<path d="M{left + 46} {at:.1f}H{left + width - 20}" stroke="#e1e5ea"/>')
            panels.append(f'<text x="{left + 40}" y="{at + 4:.1f}" text-anchor="end" fill="#5a6574">1e{tick}</text>')
        panels.append(f'<polyline points="{line}" fill="none" stroke="#2c6da3" stroke-width="1.8"/>')
        panels += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.4" fill="#c46f1f"/>' for a, b in points(curve["there"])[::2]]
        panels.append(f'<text x="{left + width - 20}" y="{top + height - 18}" text-anchor="end" fill="#5a6574">{curve["step"][-1]} steps</text>')
    rows = (len(found) + 1) // 2
    legend = '<text x="46" y="{0}" fill="#2c6da3">line: Schwann</text><text x="150" y="{0}" fill="#c46f1f">dots: ncps on PyTorch</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width} {rows * height + 24}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(panels)}{legend.format(rows * height + 10)}</svg>\n'
    )


def main():
    program = str(Path(sys.argv[1]).resolve())
    torch.manual_seed(1)
    torch.set_num_threads(1)
    n = 48
    at = torch.linspace(0, 1, n)
    x = torch.stack([torch.sin(3 * torch.pi * at), torch.cos(3 * torch.pi * at)], -1)[None]
    y = torch.sin(6 * torch.pi * at)[None, :, None]
    found = {}
    results = []
    results.append(compare(program, "wave, wired CfC", CfC(2, AutoNCP(16, 1)), x, y, None, 16, 400, 1, 0.01))
    found["wave, wired CfC"] = results[-1][1]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        subprocess.run([program, "train", "--example", "cart-pole", "--write-data", path], check=True, capture_output=True)
        arrays = {name: torch.from_numpy(array) for name, array in numpy.load(path).items()}
    x, y, dt = arrays["x"][:64], arrays["target"][:64], arrays["timespans"][:64]
    timed = torch.cat([x, dt[:, :, None]], -1)
    cases = {
        "cart and pole, CfC": (CfC(2, 32, proj_size=1, backbone_units=64), x, dt, 32),
        "cart and pole, LTC": (LTC(2, AutoNCP(32, 1)), x, dt, 32),
        "cart and pole, LSTM": (Chain([nn.LSTM(3, 32, batch_first=True), nn.Linear(32, 1)]), timed, None, 32),
    }
    for name, (model, x, dt, units) in cases.items():
        results.append(compare(program, name, model, x, y, dt, units, 200, 16, 0.003))
        found[name] = results[-1][1]
    if len(sys.argv) > 2:
        (Path(sys.argv[2]) / "curves.json").write_text(json.dumps(found) + "\n")
        (Path(sys.argv[2]) / "curves.svg").write_text(picture(found))
    return 0 if all(good for good, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
