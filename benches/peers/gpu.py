#!/usr/bin/env python3
"""Schwann's neural circuits on an NVIDIA GPU against ncps on PyTorch and JAX, in turns in one run.

    pip install torch ncps jax[cuda13]                       # on the machine with the GPU
    python benches/peers/gpu.py --schwann target/release/schwann [--models P,W,L] [--shapes 1x16,256x64,4096x64,65536x64]
        [--backends cuda,cuda:split,cuda:f16] [--peers graph,compile_cell,jax,lstm] [--rounds 3] [--json out.json]

Times are the device's: for PyTorch by events around a call that is captured in a CUDA graph, for JAX the least time of a call
whose inputs and results stay on the device (which includes some 20 µs of the host), for Schwann by events around its kernels.
P, W and L are those of circuits.py; `lstm` is cuDNN's LSTM of P's width, as a yardstick. Clocks are read after each figure.
A warm-up of a second precedes each.
"""
import argparse, json, os, statistics, subprocess, sys, time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
INPUTS = 8


def clock():
    query = ["nvidia-smi", "--query-gpu=clocks.sm,temperature.gpu,power.draw", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True).stdout.split("\n")[0].split(",")
    return dict(zip(("sm_mhz", "celsius", "watts"), (float(value) for value in said)))


def build(name):
    import torch
    from ncps.torch import CfC, LTC
    from ncps.wirings import AutoNCP
    torch.manual_seed(0)
    match name:
        case "P": return CfC(INPUTS, 64, proj_size=16, backbone_units=64, backbone_layers=2)
        case "W": return CfC(INPUTS, AutoNCP(64, 16))
        case "L": return LTC(INPUTS, AutoNCP(64, 16))
    sys.exit(f"model {name}: expected P, W or L")


def captured(call):
    """The call as a CUDA graph."""
    import torch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def torch_peer(peer, name, batch, steps):
    import torch
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)
    x = torch.randn(batch, steps, INPUTS, device="cuda")
    if peer == "lstm":
        model = torch.nn.LSTM(INPUTS, 64, batch_first=True).cuda().eval()
        return captured(lambda: model(x)[0])
    model = build(name).cuda().eval()
    if peer == "eager":
        return lambda: model(x)[0]
    if peer == "compile_cell":
        model.rnn_cell.forward = torch.compile(model.rnn_cell.forward, dynamic=False)
    if peer == "compile":
        whole = torch.compile(model, mode="reduce-overhead", dynamic=False)
        return lambda: whole(x)[0]
    return captured(lambda: model(x)[0])


def time_torch(call, seconds):
    import torch
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times, until = [], time.time() + seconds
    while not times or time.time() < until:
        begin.record(); call(); end.record(); torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def jax_peer(name, batch, steps):
    import numpy
    import circuits_jax
    x = numpy.random.default_rng(0).standard_normal((batch, steps, INPUTS)).astype("float32")
    return circuits_jax.on_device(name, build(name).eval(), x)


def time_jax(call, seconds):
    times, until = [], time.time() + seconds
    while not times or time.time() < until:
        begin = time.perf_counter(); call(); times.append((time.perf_counter() - begin) * 1e3)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schwann", default="target/release/schwann")
    parser.add_argument("--models", default="P,W,L")
    parser.add_argument("--shapes", default="1x16,256x64,4096x64,65536x64")
    parser.add_argument("--backends", default="cuda,cuda:split,cuda:f16")
    parser.add_argument("--peers", default="graph,compile_cell,jax,lstm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    for name in args.models.split(","):
        for shape in args.shapes.split(","):
            batch, steps = (int(n) for n in shape.split("x"))
            contenders = {}
            for peer in filter(None, args.peers.split(",")):
                if peer == "lstm" and name != "P":
                    continue
                try:
                    make, timer = (jax_peer, time_jax) if peer == "jax" else (lambda *of, p=peer: torch_peer(p, *of), time_torch)
                    call = make(name, batch, steps)
                    timer(call, 1.0)
                    contenders[peer] = lambda call=call, timer=timer: timer(call, args.seconds)
                except Exception as problem:
                    print(f"{name} {shape} {peer}: {str(problem)[:200]!r}", file=sys.stderr)
            for backend in filter(None, args.backends.split(",")):
                command = [args.schwann, "bench", "circuits", "--model", name, "--batch", str(batch), "--steps", str(steps),
                           "--backend", backend, "--seconds", str(args.seconds), "--json"]
                def ours(command=command):
                    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                    device = json.loads(said.splitlines()[0])["device"]
                    return [device["min_ms"], device["median_ms"]]
                contenders[backend] = ours
            times = {contender: [] for contender in contenders}
            clocks = {}
            for _ in range(args.rounds):
                for contender, measure in list(contenders.items()):
                    try:
                        times[contender] += measure()
                        clocks[contender] = clock()
                    except Exception as problem:
                        print(f"{name} {shape} {contender}: {str(problem)[:200]!r}", file=sys.stderr)
            for contender, all_times in times.items():
                if all_times:
                    row = {"model": name, "B": batch, "T": steps, "contender": contender, "min_ms": min(all_times),
                           "median_ms": statistics.median(all_times), "n": len(all_times), "gpu": clocks[contender]}
                    rows.append(row)
                    print(f"{name} {shape:>9} {contender:>13}: min {row['min_ms'] * 1e3:10.1f} µs, median {row['median_ms'] * 1e3:10.1f} µs"
                          f"  ({row['gpu']['sm_mhz']:.0f} MHz, {row['gpu']['celsius']:.0f} °C)", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
