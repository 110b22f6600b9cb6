"""What the tests share. A test that cannot run somewhere says why, in a line that begins with `skipped: `."""

import json
import os
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest

# Calibrations, baselines and tuned plans of these tests alone.
os.environ.setdefault("SCHWANN_DATA", tempfile.mkdtemp(prefix="schwann-tests-"))

REPOSITORY = Path(__file__).resolve().parents[3]
GOLDEN = REPOSITORY / "crates" / "nn" / "tests" / "golden"


def pytest_terminal_summary(terminalreporter):
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    for reason in reasons:
        terminalreporter.write_line("skipped: " + reason.removeprefix("Skipped: "))


def read_safetensors(path):
    """Arrays and metadata of a file."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    kinds = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8"}
    arrays = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        raw = data[8 + length + start : 8 + length + end]
        arrays[name] = np.frombuffer(raw, kinds[entry["dtype"]]).reshape(entry["shape"])
    return arrays, metadata


@pytest.fixture
def x():
    return np.random.default_rng(1).standard_normal((4, 12, 8)).astype("float32")


@pytest.fixture(scope="session")
def cfc():
    import schwann

    return schwann.load("wired-cfc")


@pytest.fixture(scope="session")
def dense():
    import schwann

    return schwann.load("projected-cfc")
