#!/usr/bin/env python3
"""Schwann's neural circuits against ncps on PyTorch, ONNX Runtime, OpenVINO and JAX, interleaved in one run.

    python3 -m venv VENV && VENV/bin/pip install torch ncps numpy onnx onnxscript onnxruntime openvino jax
    cargo build --release
    VENV/bin/python benches/peers/circuits.py [--kind infer,train] [--models P,W,L] [--shapes 1x1,1x16,32x16,256x64]
        [--threads 1,2] [--malloc default,tuned] [--peers jax,openvino,onnx] [--rounds 5] [--seconds 0.4] [--json out.json]
        [--units 64] [--outputs 16] [--backbone-layers 2] [--sparsity 0.5]

P is CfC(8, 64, proj_size=16, backbone_units=64, backbone_layers=2), W is CfC(8, AutoNCP(64, 16)) and L is
LTC(8, AutoNCP(64, 16)). A call takes a batch of sequences [B, T, 8] from states of zero. Training is a full step: forward,
mean squared error, gradients, Adam.

Each round gives every contender `seconds`, one after the other; the least of all samples and the median of the rounds'
medians are kept. One process for each number of threads and setting of malloc ("tuned": glibc keeps large blocks, which
helps PyTorch), pinned to as many cores as it has threads; of a peer, the better setting counts. Compiling and exporting
takes minutes. Run it on a quiet machine.
"""
import argparse, gc, json, os, pathlib, platform, signal, statistics, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(tempfile.gettempdir()) / "schwann-peers"
TUNED = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000", "MALLOC_TOP_PAD_": "268435456"}
INPUTS, RATE = 8, 1e-3
PEERS = {
    "infer": ["eager", "compile", "compile_tuned", "compile_cell", "trace", "onnx", "openvino", "jax"],
    "train": ["eager", "eager_fused_adam", "compile", "compile_cell", "jax"],
}


def build(args, name):
    import numpy, torch
    from ncps.torch import CfC, LTC
    from ncps.wirings import AutoNCP
    torch.manual_seed(0); numpy.random.seed(0)
    match name:
        case "P": return CfC(INPUTS, args.units, proj_size=args.outputs, backbone_units=64, backbone_layers=args.backbone_layers)
        case "W": return CfC(INPUTS, AutoNCP(args.units, args.outputs, sparsity_level=args.sparsity))
        case "L": return LTC(INPUTS, AutoNCP(args.units, args.outputs, sparsity_level=args.sparsity))
    sys.exit(f"model {name}: expected P, W or L")


def infer(args, peer, name, x, threads):
    """A function that runs the model once and gives its output."""
    import torch
    model = build(args, name).eval()
    if peer == "jax":
        import circuits_jax
        run_jax = circuits_jax.infer(name, model, x.numpy())
        return lambda: torch.from_numpy(run_jax())
    if peer in ("onnx", "openvino"):
        path = exported(model, f"{name}-{args.units}-{args.outputs}-{args.backbone_layers}-{args.sparsity}", x)
        return (onnx if peer == "onnx" else openvino)(path, x, threads)
    if peer == "trace":
        with torch.no_grad():
            run = torch.jit.freeze(torch.jit.trace(model, x, check_trace=False))
    elif peer.startswith("compile"):
        torch._dynamo.reset()
        options = {"options": {"cpp_wrapper": True, "freezing": True}} if peer == "compile_tuned" else {}
        if peer == "compile_cell":                          # the loop over time stays in Python
            model.rnn_cell.forward = torch.compile(model.rnn_cell.forward, dynamic=False)
            run = model
        else:
            run = torch.compile(model, dynamic=False, **options)
    else:
        run = model

    def once():
        with torch.no_grad(): return run(x)[0]
    for _ in range(4): once()                               # compiles, and lets the tracer's profiler settle
    return once


def exported(model, name, x):
    """The model as an ONNX file for this shape."""
    import torch
    path = CACHE / f"{name}-{x.shape[0]}x{x.shape[1]}.onnx"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        with torch.no_grad():
            torch.onnx.export(model, (x,), str(part), input_names=["x"], output_names=["y", "hn"], dynamo=False, opset_version=17)
        part.rename(path)
    return path


def onnx(path, x, threads):
    import onnxruntime, torch
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(threads > 1)))
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = {"x": x.numpy()}
    return lambda: torch.from_numpy(session.run(["y"], given)[0])


def openvino(path, x, threads):
    import openvino as ov, torch
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"})
    request = core.compile_model(str(path), "CPU").create_infer_request()
    request.set_input_tensor(ov.Tensor(x.numpy().copy()))

    def once():
        request.infer()
        return torch.from_numpy(request.get_output_tensor(0).data)
    return once


def train(args, peer, name, x, _):
    import torch
    model = build(args, name).train()
    target = torch.rand(x.shape[0], x.shape[1], args.outputs) * 2 - 1
    if peer == "jax":
        import circuits_jax
        return circuits_jax.train(name, model, x.numpy(), target.numpy(), RATE)
    adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=RATE, **({} if peer == "eager" else {"fused": True}))
    if peer == "compile_cell":
        model.rnn_cell.forward = torch.compile(model.rnn_cell.forward, dynamic=False)
    loss_of = lambda: torch.nn.functional.mse_loss(model(x)[0], target)
    if peer == "compile":
        torch._dynamo.reset()
        loss_of = torch.compile(loss_of, dynamic=False)

    def once():
        adam.zero_grad(set_to_none=True)
        loss = loss_of(); loss.backward(); adam.step()
        return loss.detach()
    once(); once()
    return once


def samples(run, seconds):
    run()
    start = time.perf_counter(); run(); each = max(time.perf_counter() - start, 1e-9)
    inner, kept, end = max(1, int(5e-5 / each)), [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(kept) < 3:
        start = time.perf_counter()
        for _ in range(inner): run()
        kept.append((time.perf_counter() - start) / inner)
    return min(kept) * 1e3, statistics.median(kept) * 1e3


def ours(args, kind, name, batch, steps, threads):
    command = [args.schwann, "bench", "circuits", "--model", name, "--batch", batch, "--steps", steps, "--threads", threads,
               "--seconds", args.seconds, "--units", args.units, "--outputs", args.outputs, "--json",
               *(["--backbone-layers", args.backbone_layers] if name == "P" else ["--sparsity", args.sparsity]),
               *(["--train"] if kind == "train" else [])]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode: sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    return found["min_ms"], found["median_ms"]


def within(seconds):
    def late(*_): raise TimeoutError(f"not built in {seconds} s")
    signal.signal(signal.SIGALRM, late); signal.alarm(seconds)


def one_setting(args, threads):
    import logging, torch, warnings
    warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"): os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    for kind, name, (batch, steps) in cases(args):
        x = torch.rand(batch, steps, INPUTS, generator=torch.Generator().manual_seed(1)) * 2 - 1
        runs, expected, failed = {}, None, {}
        for peer in PEERS[kind]:
            if args.peers and peer not in args.peers.split(","): continue
            if steps > 16 and not args.peers and (peer == "compile_tuned" or (name == "L" and peer == "compile")): continue  # far too long to compile
            print(f"# {kind} {name} {batch}x{steps}: {peer}", file=sys.stderr, flush=True)
            try:
                within(args.limit)
                run = (infer if kind == "infer" else train)(args, peer, name, x, threads)
                result = run()
                if kind == "infer":
                    expected = result.clone() if expected is None else expected
                    error = (result - expected).abs().max().item()
                    if not error < 1e-3: raise ValueError(f"off by {error} from {next(iter(runs))}")
                runs[peer] = run
            except (Exception, SystemExit) as e:
                failed[peer] = f"{type(e).__name__}: {str(e).splitlines()[0][:120] if str(e) else ''}"
            finally:
                signal.alarm(0)
        kept = {}
        gc.collect(); gc.disable()
        for _ in range(args.rounds):
            for peer, run in runs.items():
                kept.setdefault(peer, []).append(samples(run, args.seconds))
            kept.setdefault("schwann", []).append(ours(args, kind, name, batch, steps, threads))
        gc.enable()
        best = {peer: (min(a for a, _ in v), statistics.median(b for _, b in v)) for peer, v in kept.items()}
        print(json.dumps({"kind": kind, "model": name, "B": batch, "T": steps, "threads": threads, "malloc": args.child_malloc,
                          "ms": best, "failed": failed}), flush=True)


def cases(args):
    for kind in args.kind.split(","):
        if kind not in PEERS: sys.exit(f"--kind {kind}: expected infer or train")
        shapes = args.shapes or ("1x1,1x16,32x16,256x64" if kind == "infer" else "32x16,256x64")
        for name in args.models.split(","):
            for shape in shapes.split(","):
                yield kind, name, tuple(map(int, shape.split("x")))


def table(rows):
    """One line for each case and number of threads, of each peer its better setting of malloc."""
    merged = {}
    for r in rows:
        all_ = merged.setdefault((r["kind"], r["model"], r["B"], r["T"], r["threads"]), {})
        for peer, (least, median) in r["ms"].items():
            if peer not in all_ or least < all_[peer][0]: all_[peer] = (least, median)
    text = "| | model | batch × steps | threads | schwann, ms (median) | peers, ms (median) | ratio to the best peer |\n|---|---|---|---|---|---|---|\n"
    for (kind, model, batch, steps, threads), all_ in merged.items():
        ms = lambda t: f"{t[0]:.4g} ({t[1]:.4g})"
        mine, others = all_["schwann"], {p: t for p, t in all_.items() if p != "schwann"}
        best = min(others, key=lambda p: others[p][0], default=None)
        ratio = f"**{others[best][0] / mine[0]:.2f}×** {best}" if best else "–"
        peers = ", ".join(f"{p} {ms(t)}" for p, t in others.items())
        text += f"| {kind} | {model} | {batch} × {steps} | {threads} | {ms(mine)} | {peers} | {ratio} |\n"
    return text


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--kind", default="infer"); a.add_argument("--models", default="P,W,L"); a.add_argument("--shapes", default="")
    a.add_argument("--threads", default="1,2"); a.add_argument("--malloc", default="default,tuned"); a.add_argument("--peers", default="")
    a.add_argument("--rounds", type=int, default=5); a.add_argument("--seconds", type=float, default=0.4)
    a.add_argument("--units", type=int, default=64); a.add_argument("--outputs", type=int, default=16)
    a.add_argument("--backbone-layers", type=int, default=2); a.add_argument("--sparsity", type=float, default=0.5)
    a.add_argument("--limit", type=int, default=240, help="seconds that building one peer may take")
    a.add_argument("--schwann", type=pathlib.Path, default=ROOT / "target/release/schwann", help="the program to measure")
    a.add_argument("--json", type=pathlib.Path, help="where to write the figures")
    a.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS); a.add_argument("--child-malloc", default="", help=argparse.SUPPRESS)
    args = a.parse_args()
    if args.child:
        return one_setting(args, args.child)
    list(cases(args))
    if not args.schwann.exists(): sys.exit(f"{args.schwann} is not there: cargo build --release")
    rows = []
    for n in args.threads.split(","):
        for malloc in args.malloc.split(","):
            if malloc not in ("default", "tuned"): sys.exit(f"--malloc {malloc}: expected default or tuned")
            env = dict(os.environ, OMP_NUM_THREADS=n, MKL_NUM_THREADS=n, CUDA_VISIBLE_DEVICES="", KMP_BLOCKTIME="1",
                       TORCHINDUCTOR_CACHE_DIR=str(CACHE / "inductor"), TORCHINDUCTOR_FX_GRAPH_CACHE="1", JAX_PLATFORMS="cpu",
                       XLA_FLAGS=f"--xla_cpu_multi_thread_eigen={str(n != '1').lower()}", **(TUNED if malloc == "tuned" else {}))
            p = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--child", n, "--child-malloc", malloc], env=env, stdout=subprocess.PIPE, text=True)
            for line in p.stdout:
                if line.startswith("{"): rows.append(json.loads(line))
            if p.wait(): sys.exit(p.returncode)
    import importlib.metadata as packages, importlib.util
    has = lambda p: importlib.util.find_spec(p) is not None
    versions = {p: packages.version(p) for p in ("torch", "ncps", "onnxruntime", "openvino", "jax") if has(p)}
    machine = {"python": platform.python_version(), "platform": platform.platform(), "cores": os.cpu_count(), **versions}
    if args.json: args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    print(", ".join(f"{k} {v}" for k, v in machine.items()) + "\n")
    print(table(rows))
    for r in rows:
        for peer, why in r["failed"].items():
            print(f"{r['kind']} {r['model']} {r['B']}x{r['T']}, {r['threads']} threads, malloc {r['malloc']}: {peer} failed: {why}")


main()
