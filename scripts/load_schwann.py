#!/usr/bin/env python3
"""Makes the PyTorch layers of a model that `schwann export ncps` wrote, with its weights.

    from load_schwann import load
    model = load("for_python.safetensors")
    y, state = model(x)          # a single CfC or LTC, as ncps has it
    y = model(x)                 # several layers: the output of the last

Needs torch, ncps and safetensors. `load_schwann.py FILE x.npy y.npy` runs the model on `x` and says how far its results
are from `y`, such as `schwann run` gives.
"""

import sys
from pathlib import Path

import torch
from safetensors import safe_open

sys.path.append(str(Path(__file__).resolve().parent))
from shared_with_package import part  # noqa: E402

Chain = part("build").Chain


def load(path):
    """The module of a file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        return part("build").build(tensors, file.metadata())


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
