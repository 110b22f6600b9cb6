#!/usr/bin/env python3
"""Circuits as the Python package ncps draws them, one JSON line each, for crates/nn/tests/wiring_numpy.rs.

    pip install ncps==1.0.1 numpy
    scripts/wiring-table.py > crates/nn/tests/golden/wirings.jsonl      the stored table
    scripts/wiring-table.py --random 500 --seed 1 > table.jsonl         more, of random options
    WIRING_TABLE=$PWD/table.jsonl cargo test -p schwann-nn --test nn_tests wiring_numpy::

A line holds the options, the numbers of synapses, and a checksum (FNV-1a, 64 bits) over the polarities + 1 of the
adjacency matrix and then of the sensory one, row by row.
"""

import argparse
import importlib.util
import json
import pathlib
import random

import numpy

# The wirings alone: the package itself would import a machine-learning framework.
package = pathlib.Path(importlib.util.find_spec("ncps").origin).parent
spec = importlib.util.spec_from_file_location("ncps_wirings", package / "wirings" / "wirings.py")
wirings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wirings)


def full(units, inputs, **options):
    return {"class": "FullyConnected", "units": units, **options}, inputs


def rand(units, inputs, **options):
    return {"class": "Random", "units": units, **options}, inputs


def ncp(sizes, fans, inputs, **options):
    names = ["inter_neurons", "command_neurons", "motor_neurons"]
    fan_names = ["sensory_fanout", "inter_fanout", "recurrent_command_synapses", "motor_fanin"]
    return {"class": "NCP", **dict(zip(names, sizes)), **dict(zip(fan_names, fans)), **options}, inputs


def auto(units, outputs, inputs, **options):
    return {"class": "AutoNCP", "units": units, "output_size": outputs, **options}, inputs


STORED = [
    full(1, 1),
    full(1, 1, self_connections=False),
    full(2, 1, erev_init_seed=0),
    full(7, 3, output_dim=2, erev_init_seed=2**32 - 1),
    full(33, 17, erev_init_seed=2**32, self_connections=False),
    full(64, 8, output_dim=1, erev_init_seed=2**64 - 1),
    full(110, 100, erev_init_seed=123456789012345),
    rand(1, 1),
    rand(1, 1, sparsity_level=0.75),
    rand(2, 3, sparsity_level=0.5, random_seed=0),
    rand(5, 5, sparsity_level=0.5),  # 12.5 synapses: half to even
    rand(3, 1, sparsity_level=0.5),  # 4.5
    rand(19, 4, output_dim=3, sparsity_level=0.9, random_seed=2**32 - 1),
    rand(50, 7, sparsity_level=0.999, random_seed=2**40 + 3),
    rand(100, 100, sparsity_level=0.3),  # 10000 pairs: the last with Floyd's method
    rand(101, 100, sparsity_level=0.3),  # 10201 pairs: the tail shuffle
    rand(101, 100, sparsity_level=0.0),
    rand(101, 99, sparsity_level=0.98),  # 204 of 10201: not more than a fiftieth
    rand(101, 99, sparsity_level=0.979),
    rand(150, 130, output_dim=10, sparsity_level=0.5, random_seed=2**63),
    rand(300, 40, sparsity_level=0.95, random_seed=7),
    ncp((1, 1, 1), (1, 1, 1, 1), 1),
    ncp((1, 1, 1), (0, 0, 0, 0), 1, seed=0),
    ncp((12, 6, 1), (4, 3, 6, 3), 32),
    ncp((3, 9, 5), (1, 1, 0, 1), 2, seed=1),
    ncp((9, 2, 14), (9, 2, 40, 2), 3, seed=2**32 - 1),
    ncp((40, 3, 2), (1, 1, 9, 1), 1, seed=2**31),
    ncp((2, 30, 1), (2, 1, 5, 1), 50, seed=99),
    ncp((5, 20, 20), (3, 0, 3, 0), 4, seed=12),
    auto(4, 1, 1),
    auto(5, 2, 1, sparsity_level=1.0),
    auto(5, 1, 3, sparsity_level=0.1, seed=0),
    auto(8, 1, 2, seed=2**32 - 1),
    auto(19, 1, 5, sparsity_level=0.75),
    auto(20, 17 - 1, 40, sparsity_level=0.9),
    auto(28, 4, 8, seed=3),
    auto(33, 30, 2, sparsity_level=0.3),
    auto(64, 16, 8, sparsity_level=0.2, seed=4294967),
    auto(100, 10, 64, sparsity_level=0.95, seed=42),
    auto(128, 32, 24, sparsity_level=0.6),
    auto(257, 20, 3, sparsity_level=0.85, seed=5),
    auto(512, 64, 100, seed=17),
]


def any_circuit(rng):
    kind = rng.choice([full, rand, ncp, auto])
    inputs = rng.choice([1, 2, rng.randint(1, 20), rng.randint(1, 150)])
    short = rng.choice([0, 1, rng.getrandbits(16), rng.getrandbits(32), 2**32 - 1])
    long = rng.choice([short, rng.getrandbits(33), rng.getrandbits(64), 2**32])
    units = rng.choice([1, 2, rng.randint(1, 30), rng.randint(1, 160)])
    if kind is full:
        outputs = rng.randint(1, units)
        return full(units, inputs, output_dim=outputs, erev_init_seed=long, self_connections=rng.random() < 0.5)
    if kind is rand:
        sparsity = rng.choice([0.0, 0.5, 0.98, 0.999, rng.random(), round(rng.random(), 1) * 0.9])
        return rand(units, inputs, sparsity_level=sparsity, random_seed=long)
    if kind is ncp:
        inter, command, motor = (rng.choice([1, rng.randint(1, 12), rng.randint(1, 60)]) for _ in range(3))
        fans = rng.randint(0, inter), rng.randint(0, command), rng.randint(0, 3 * command), rng.randint(0, command)
        return ncp((inter, command, motor), fans, inputs, seed=short)
    units += 3
    sparsity = rng.choice([0.1, 1.0, 0.5, rng.uniform(0.1, 1.0), round(rng.uniform(0.1, 1.0), 1)])
    return auto(units, rng.randint(1, units - 3), inputs, sparsity_level=sparsity, seed=short)


def checksum(matrices):
    value = 0xCBF29CE484222325
    for matrix in matrices:
        for byte in (matrix + 1).astype(numpy.uint8).tobytes():
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def line(options, inputs):
    arguments = {name: value for name, value in options.items() if name != "class"}
    wiring = getattr(wirings, options["class"])(**arguments)
    wiring.build(inputs)
    matrices = wiring.adjacency_matrix, wiring.sensory_adjacency_matrix
    synapses, sensory = (int(numpy.abs(m).sum()) for m in matrices)
    result = {"synapses": synapses, "sensory_synapses": sensory, "checksum": checksum(matrices)}
    return json.dumps({"wiring": options, "input_size": inputs, **result})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, metavar="N", help="N circuits of random options, not the stored ones")
    parser.add_argument("--seed", type=int, default=0, help="decides the random options")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    circuits = STORED if args.random is None else (any_circuit(rng) for _ in range(args.random))
    for options, inputs in circuits:
        print(line(options, inputs))


main()
