#!/usr/bin/env python3
"""Schwann's products with low-bit weights against bitnet.cpp, ggml and PyTorch, interleaved in one run.

    cargo build --release -p schwann-kernels --example lowbit
    VENV/bin/python benches/peers/lowbit.py --peer ggml=PATH/lowbit_ggml --peer bitnet.cpp=PATH/lowbit_bitnet --torch \\
        [--threads 1,2] [--filter "ternary M=1"] [--rounds 5] [--seconds 0.1] [--json]

A peer is a command line that is started with the number of threads as its last word; `lowbit_timing.h` says what it reads
and answers. `lowbit_ggml.cpp` and `lowbit_bitnet.cpp` are such programs, and say how to build them. PyTorch's dynamic int8
layers (FBGEMM) are timed by this script, in a process of their own.

Every contender prepares its weights for a case, then they take turns: in each round every one gets `seconds`. The least of all
times and the median of the rounds' medians are kept. `hot` repeats the same weights, `memory` passes over copies of more than
256 MiB. Rows of activations are f32 and are rounded by each contender, in its time. Run it on a quiet machine.
"""
import argparse, json, pathlib, statistics, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = [(2560, 2560), (2560, 6912), (6912, 2560)]
# weights -> (what is wanted of one row, of 32)
WANTED = {"ternary": (1.4, 1.8), "int4": (1.5, 1.8), "int8": (1.0, 1.0)}


def serve_torch(threads):
    """PyTorch as a contender."""
    import warnings
    import torch
    warnings.filterwarnings("ignore")
    torch.set_grad_enabled(False)
    torch.set_num_threads(threads)
    last = None
    for line in sys.stdin:
        weights, m, k, n, origin, seconds = line.split()
        m, k, n, seconds = int(m), int(k), int(n), float(seconds)
        if weights != "int8":
            print("-", flush=True)
            continue
        if last != (m, k, n, origin):
            last = (m, k, n, origin)
            copies = 1 if origin == "hot" else (256 << 20) // (k * n) + 1
            layer = lambda: torch.ao.quantization.quantize_dynamic(
                torch.nn.Sequential(torch.nn.Linear(k, n, bias=False)), {torch.nn.Linear}, dtype=torch.qint8)[0]
            layers = [layer() for _ in range(copies)] * (8 if copies == 1 else 1)
            x = torch.rand(m, k) - 0.5
        for layer in layers:
            layer(x)
        times, began = [], time.perf_counter()
        while not times or time.perf_counter() - began < seconds:
            start = time.perf_counter()
            for layer in layers:
                layer(x)
            times.append((time.perf_counter() - start) / len(layers) * 1e6)
        print(f"{min(times):.3f} {statistics.median(times):.3f}", flush=True)


class Contender:
    def __init__(self, name, command, threads):
        self.name = name
        self.process = subprocess.Popen([*command, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def time(self, case, seconds):
        """The least and the median in µs, or nothing if it has no such product."""
        print(*case, seconds, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().split()
        if not answer:
            sys.exit(f"{self.name} ended with {self.process.wait()} at {case}; run it by hand to see why")
        return None if answer == ["-"] else tuple(map(float, answer))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", default=f"{ROOT}/target/release/examples/lowbit serve", help="our own contender")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--torch", action="store_true", help="PyTorch of the Python that runs this")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--filter", default="", help="only cases that contain all of these words")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve-torch", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_torch:
        return serve_torch(args.serve_torch)
    commands = [("schwann", args.ours.split())]
    for peer in args.peer:
        name, command = peer.split("=", 1)
        commands.append((name, command.split()))
    if args.torch:
        commands.append(("torch", [sys.executable, __file__, "--serve-torch"]))
    for threads in map(int, args.threads.split(",")):
        contenders = [Contender(name, command, threads) for name, command in commands]
        for weights, (one, many) in WANTED.items():
            for k, n in SIZES:
                for m, origin in [(1, "hot"), (1, "memory"), (32, "hot")]:
                    name = f"{weights} M={m} {k}x{n} {origin} threads={threads}"
                    if all(word in name for word in args.filter.split()):
                        compare(args, name, contenders, (weights, m, k, n, origin), one if m == 1 else many)
        for contender in contenders:
            contender.process.stdin.close()
            contender.process.wait()


def compare(args, name, contenders, case, wanted):
    found = {}
    for round in range(args.rounds + 1):
        for contender in contenders:
            # The first round prepares weights and wakes threads.
            times = contender.time(case, args.seconds if round else 0.0)
            if times and round:
                found.setdefault(contender.name, []).append(times)
    _, m, k, n, _ = case
    least = {who: min(t[0] for t in times) for who, times in found.items()}
    median = {who: statistics.median(t[1] for t in times) for who, times in found.items()}
    gops = {who: 2e-3 * m * k * n / us for who, us in least.items()}
    peers = [who for who in least if who != "schwann"]
    best = min(peers, key=least.get, default=None)
    ratio = least[best] / least["schwann"] if best else None
    if args.json:
        print(json.dumps({"case": name, "least_us": least, "median_us": median, "gops": gops, "best_peer": best,
                          "ratio": ratio, "median_ratio": median[best] / median["schwann"] if best else None,
                          "wanted": wanted}), flush=True)
        return
    each = ", ".join(f"{who} {us:.1f} ({median[who]:.1f}) µs {gops[who]:.0f} GOP/s" for who, us in least.items())
    mark = "" if ratio is None else f"  {ratio:.2f}× {best} (by medians {median[best] / median['schwann']:.2f}×), wanted {wanted}"
    print(f"{name}: {each}{mark}", flush=True)


if __name__ == "__main__":
    main()
