#!/usr/bin/env python3
"""What calls from Python cost beside the same runs in Rust, and what layers for PyTorch take beside ncps' own.

    VENV/bin/pip install torch ncps schwann-*.whl && VENV/bin/python benches/peers/python.py

Sides take turns within each round. A cell is the least of all rounds and, in brackets, the median, in µs.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy

import schwann
from schwann import _schwann


def per_call(call, seconds):
    """Seconds of a call: the mean of each of many blocks, so that reading the clock does not count; the least of them."""
    call()
    started = time.perf_counter()
    call()
    once = max(time.perf_counter() - started, 1e-9)
    block = max(1, int(2e-3 / once))
    found, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 3:
        started = time.perf_counter()
        for _ in range(block):
            call()
        found.append((time.perf_counter() - started) / block)
    return min(found)


def in_rust(path, batch, steps, seconds):
    """Seconds of the same run in this process without Python: the least block of the profiler's."""
    options = {
        "batch": batch, "steps": steps, "sizes": [], "runs": 200, "seconds": 2.0, "threads": 1, "backend": "cpu", "isa": None,
        "dtype": "f32", "fused": True,
    }  # fmt: skip
    request = {"sides": [[str(path), options]], "yardstick": False, "seconds": seconds}
    return min(json.loads(_schwann._turns(json.dumps(request)))["sides"][0])


def cell(values):
    return f"{1e6 * min(values):.4g} ({1e6 * statistics.median(values):.4g})"


def calls(rounds, seconds):
    print("| model | batch × steps | in Rust | `Session.run(x, out=y)` | `Session.run(x)` | `model.run(x)` | the call itself | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for letter, name in [("P", "projected-cfc"), ("W", "wired-cfc"), ("L", "wired-ltc")]:
        model = schwann.load(name, threads=1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.safetensors"
            model.save(path)
            for batch, steps in [(1, 1), (1, 16), (32, 16), (256, 64), (1024, 64)]:
                x = numpy.random.default_rng(1).uniform(-1, 1, (batch, steps, 8)).astype("float32")
                out, session = numpy.empty((batch, steps, 16), "float32"), model.session()
                sides = {
                    "rust": lambda: in_rust(path, batch, steps, seconds),
                    "into": lambda: per_call(lambda: session.run(x, out=out), seconds),
                    "new": lambda: per_call(lambda: session.run(x), seconds),
                    "model": lambda: per_call(lambda: model.run(x), seconds),
                }
                found = {side: [] for side in sides}
                for _ in range(rounds):
                    for side, measure in sides.items():
                        found[side].append(measure())
                cost = 1e6 * (min(found["into"]) - min(found["rust"]))
                ratio = min(found["into"]) / min(found["rust"])
                shown = " | ".join(cell(found[side]) for side in sides)
                print(f"| {letter} | {batch} × {steps} | {shown} | {cost:.3g} | {ratio:.3f} |", flush=True)


def trainings(rounds, seconds, threads):
    import ncps.torch
    import torch
    from ncps.wirings import AutoNCP

    import schwann.torch

    torch.set_num_threads(threads)
    schwann.torch.set_num_threads(threads)
    print("| training | ncps, eager | schwann.torch | ratio |")
    print("|---|---|---|---|")

    # The first example of ncps' documentation: a wave of 48 steps, one sequence, 16 neurons.
    n = 48
    wave = numpy.stack([numpy.sin(numpy.linspace(0, 3 * numpy.pi, n)), numpy.cos(numpy.linspace(0, 3 * numpy.pi, n))], axis=1)
    target = numpy.sin(numpy.linspace(0, 6 * numpy.pi, n)).reshape(1, n, 1)
    example = torch.from_numpy(wave[None].astype("float32")), torch.from_numpy(target.astype("float32"))
    many = torch.randn(32, 16, 8), torch.randn(32, 16, 16)
    cases = [
        ("ncps' example, CfC(2, AutoNCP(16, 1))", "CfC", lambda: (2, AutoNCP(16, 1)), {}, example),
        ("ncps' example, LTC(2, AutoNCP(16, 1))", "LTC", lambda: (2, AutoNCP(16, 1)), {}, example),
        ("P, 32 × 16", "CfC", lambda: (8, 64), {"proj_size": 16, "backbone_units": 64, "backbone_layers": 2}, many),
        ("W, 32 × 16", "CfC", lambda: (8, AutoNCP(64, 16)), {}, many),
        ("L, 32 × 16", "LTC", lambda: (8, AutoNCP(64, 16)), {}, many),
    ]
    for told, kind, arguments, options, (x, y) in cases:
        steps = {}
        for side, module in [("ncps", ncps.torch), ("ours", schwann.torch)]:
            torch.manual_seed(1)
            layer = getattr(module, kind)(*arguments(), **options)
            optimizer = torch.optim.Adam(layer.parameters(), 0.005)

            def step(layer=layer, optimizer=optimizer):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(layer(x)[0], y)
                loss.backward()
                optimizer.step()

            steps[side] = step
        found = {side: [] for side in steps}
        for _ in range(rounds):
            for side, step in steps.items():
                found[side].append(per_call(step, seconds))
        ratio = min(found["ncps"]) / min(found["ours"])
        print(f"| {told} | {cell(found['ncps'])} | {cell(found['ours'])} | {ratio:.2f}× |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=1, help="of both, for trainings")
    parser.add_argument("--kind", choices=["calls", "train"], action="append")
    arguments = parser.parse_args()
    kinds = arguments.kind or ["calls", "train"]
    print(f"schwann {schwann.__version__}, Python {platform.python_version()}, NumPy {numpy.__version__}, {os.cpu_count()} cores")
    if "calls" in kinds:
        calls(arguments.rounds, arguments.seconds)
    if "train" in kinds:
        trainings(arguments.rounds, arguments.seconds, arguments.threads)


if __name__ == "__main__":
    sys.exit(main())
