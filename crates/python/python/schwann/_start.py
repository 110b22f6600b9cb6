"""A start of Python that measures and ends: what verdicts rest on. It reads a request and prints what it measured."""

import sys

from . import _schwann

if __name__ == "__main__":
    sys.stdout.write(_schwann._turns(sys.stdin.read()))
