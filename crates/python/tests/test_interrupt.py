"""Ctrl-C ends what runs for long."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

RUNS = {
    "train": "schwann.train(schwann.load('projected-cfc'), x, y, steps=10**9, progress=lambda told: go())",
    "profile": "schwann.profile(model, seconds=600, runs=1_000_000, roof=False, progress=lambda *told: go())",
    "tune": "schwann.tune(model, budget=600, keep=False, progress=lambda *told: go())",
    "run": "go(); model.run(numpy.zeros((2000, 4000, 8), 'float32'))",
}


@pytest.mark.skipif(os.name == "nt", reason="signals are another matter on Windows")
@pytest.mark.parametrize("what", RUNS)
def test_ctrl_c_ends_it(what):
    program = textwrap.dedent(
        f"""
        import numpy, schwann, sys
        model = schwann.load("projected-cfc", threads=1)
        x, y = numpy.zeros((64, 100, 8), "float32"), numpy.zeros((64, 100, 16), "float32")
        def go():
            print("running", flush=True)
        try:
            {RUNS[what]}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            model.run(x)
            sys.exit(7)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout.readline() == "running\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    try:
        out, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 7 and "interrupted" in out
    assert time.monotonic() - began < 20
