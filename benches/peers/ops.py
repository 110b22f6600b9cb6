#!/usr/bin/env python3
"""Schwann's operations against PyTorch and the Rust matrix libraries, interleaved in one run.

    python3 -m venv VENV && VENV/bin/pip install torch numpy
    cargo build --release && cargo build --release --manifest-path benches/peers/rust/Cargo.toml
    VENV/bin/python benches/peers/ops.py [--threads 1,2] [--filter gemm] [--rounds 7] [--seconds 0.3] [--malloc tuned] [--json]

Each round gives every contender of a case `seconds`, one after the other; the least of all minima and the median of the
medians are kept. Run it with both settings of `--malloc` and take PyTorch's better figure. PyTorch runs in this process, the others are started once a round. Run it on a quiet machine.
"""
import argparse, json, os, pathlib, platform, statistics, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
OURS = ROOT / "target/release/schwann"
RUST = ROOT / "benches/peers/rust/target/release/schwann-peers"

# case of `schwann bench ops` -> (what to beat, at least)
CASES = {
    "gemm/f32/512x512x512": 1.0, "gemm/f32/1024x1024x1024": 1.0, "gemm/f32/2048x2048x2048": 1.0,
    "gemm/f32/prepacked/32x64x64": 2.0, "gemm/f32/prepacked/32x256x256": 1.2, "gemv/f32/prepacked/1x1024x256": 1.0,
    "gemm/bf16/2048x2048x2048": 0.9,
    "chain/fused/6-ops/16M": 4.0, "softmax/f32/4096x1024": 1.2, "layer_norm/f32/4096x1024": 1.2,
    "attention/f32/1x8x1024x64/plain": 1.0, "attention/f32/1x8x1024x64/causal": 1.0,
    "unary/tanh/f32/4096": 1.5, "unary/sigmoid/f32/4096": 1.5, "unary/exp/f32/4096": 1.5,
}
# Contenders that are no peers: the chain unfused, a plain copy of as many bytes, a loop over the standard library.
EXTRA = ("unfused", "copy", "std")


def torch_run(case):
    import torch
    from torch.nn import functional as F
    torch.set_grad_enabled(False)
    parts = case.split("/")
    if parts[0] in ("gemm", "gemv"):
        m, k, n = map(int, parts[-1].split("x"))
        dtype = torch.bfloat16 if parts[1] == "bf16" else torch.float32
        a, b, c = torch.rand(m, k).to(dtype), torch.rand(k, n).to(dtype), torch.empty(m, n, dtype=dtype)
        return lambda: torch.mm(a, b, out=c)
    if parts[0] == "chain":
        x = torch.rand(16 << 20) * 2 - 1
        return lambda: torch.abs(torch.relu(x * 1.1 + 0.5) * 0.9 - 0.1)
    x = torch.rand(4096, 1024) * 8 - 4
    if parts[0] == "softmax":
        return lambda: F.softmax(x, -1)
    if parts[0] == "layer_norm":
        return lambda: F.layer_norm(x, (1024,))
    if parts[0] == "attention":
        q, k, v = (torch.rand(1, 8, 1024, 64) * 2 - 1 for _ in range(3))
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=parts[-1] == "causal")
    if parts[0] == "unary":
        x, y = torch.rand(4096) * 8 - 4, torch.empty(4096)
        f = getattr(torch, parts[1])
        return lambda: f(x, out=y)
    return None


def samples(run, seconds):
    run()
    start = time.perf_counter(); run(); once = max(time.perf_counter() - start, 1e-9)
    inner = max(1, int(2e-5 / once)); kept = []; end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(kept) < 5:
        start = time.perf_counter()
        for _ in range(inner): run()
        kept.append((time.perf_counter() - start) / inner)
    return min(kept), statistics.median(kept)


def lines(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def one_thread_count(args, threads):
    import torch
    torch.set_num_threads(threads)
    for case, least in CASES.items():
        if args.filter not in case: continue
        kept, runs = {}, torch_run(case)
        for _ in range(args.rounds):
            if runs:
                kept.setdefault("torch", []).append(samples(runs, args.seconds))
            for d in lines([OURS, "bench", "ops", "--json", "--no-roof", "--filter", case, "--threads", threads, "--seconds", args.seconds]):
                if d.get("case") == case: kept.setdefault("schwann", []).append((d["min_s"], d["median_s"]))
            if case.startswith("chain/"):       # as many bytes read and written, and nothing computed
                import torch
                x, y = torch.rand(16 << 20), torch.empty(16 << 20)
                kept.setdefault("copy", []).append(samples(lambda: y.copy_(x), args.seconds))
                unfused = case.replace("/fused/", "/unfused/")
                for d in lines([OURS, "bench", "ops", "--json", "--no-roof", "--filter", unfused, "--threads", threads, "--seconds", args.seconds]):
                    if d.get("case") == unfused: kept.setdefault("unfused", []).append((d["min_s"], d["median_s"]))
            if RUST.exists():
                for d in lines([RUST, case, threads, args.seconds]): kept.setdefault(d["peer"], []).append((d["min_s"], d["median_s"]))
        best = {peer: (min(a for a, _ in v), statistics.median(b for _, b in v)) for peer, v in kept.items()}
        print(json.dumps({"case": case, "threads": threads, "at_least": least, "peers": best}), flush=True)


def table(rows):
    print("| case | threads | schwann, µs (median) | peers, µs (median) | ratio to the best peer | wanted |\n|---|---|---|---|---|---|")
    for r in rows:
        us = lambda t: f"{t[0] * 1e6:.4g} ({t[1] * 1e6:.4g})"
        ours = r["peers"]["schwann"]
        others = {p: t for p, t in r["peers"].items() if p != "schwann"}
        named = {p: t for p, t in others.items() if p not in EXTRA}
        best = min(named.values())[0] if named else float("nan")
        extra = "".join(f"; {ours and t[0] / ours[0]:.1f}× {p}" for p, t in others.items() if p in EXTRA)
        print(f"| {r['case']} | {r['threads']} | {us(ours)} | {', '.join(f'{p} {us(t)}' for p, t in others.items())} | {best / ours[0]:.2f}×{extra} | {r['at_least']}× |")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--threads", default="1,2"); a.add_argument("--filter", default=""); a.add_argument("--rounds", type=int, default=7)
    a.add_argument("--malloc", default="default", choices=["default", "tuned"], help="tuned: glibc keeps large blocks, so that PyTorch's temporaries are not paged in anew")
    a.add_argument("--seconds", type=float, default=0.3); a.add_argument("--json", action="store_true"); a.add_argument("--child", type=int, default=0)
    args = a.parse_args()
    if args.child:
        return one_thread_count(args, args.child)
    for needed in (OURS,):
        if not needed.exists(): sys.exit(f"{needed} is not there: cargo build --release")
    rows = []
    for n in args.threads.split(","):           # one process a thread count: PyTorch fixes its pools when it starts
        env = dict(os.environ, OMP_NUM_THREADS=n, MKL_NUM_THREADS=n, RAYON_NUM_THREADS=n, CUDA_VISIBLE_DEVICES="", KMP_BLOCKTIME="1")
        if args.malloc == "tuned":
            env.update(MALLOC_MMAP_THRESHOLD_="4000000000", MALLOC_TRIM_THRESHOLD_="8000000000", MALLOC_TOP_PAD_="268435456")
        p = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--child", n], env=env, stdout=subprocess.PIPE, text=True)
        for line in p.stdout:
            rows.append(json.loads(line))
            if args.json: print(line, end="", flush=True)
            else: print(f"# {rows[-1]['case']}, {n} threads", file=sys.stderr, flush=True)
        if p.wait(): sys.exit(p.returncode)
    if not args.json:
        import torch
        print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}\n")
        table(rows)


main()
