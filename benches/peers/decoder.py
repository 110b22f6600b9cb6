#!/usr/bin/env python3
"""`schwann bench decoder` against other engines on a decoder of the same shapes, in turns.

    VENV/bin/python benches/peers/decoder_gguf.py tq2.gguf
    python3 benches/peers/decoder.py --peer "llama.cpp=llama-bench -m tq2.gguf" [--threads 1,2] [--rounds 5] [--json]

A peer is a command line of `llama-bench`, of llama.cpp or of bitnet.cpp's copy of it; symbols after an empty prompt are timed. The
least time of a symbol and the median of the rounds are kept: of ours by symbol, of the peers by run of 32 symbols.
Run it on a quiet machine.
"""
import argparse, json, pathlib, statistics, subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYMBOLS = 32


def output(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def ours(command, threads, seconds):
    command = [*command, "bench", "decoder", "--json", "--seconds", str(seconds), "--threads", str(threads)]
    record = json.loads(output(command).splitlines()[-1])
    reading = record["bytes"] / record["read_bytes_per_s"]
    return record["decode"]["min_s"], record["decode"]["median_s"], reading


def peer(command, threads):
    command = [*command, "-p", "0", "-n", str(SYMBOLS), "-t", str(threads), "-r", "8", "-o", "json"]
    times = [1 / rate for rate in json.loads(output(command))[0]["samples_ts"]]
    return min(times), statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", default=str(ROOT / "target/release/schwann"))
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of ours, each round")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    peers = [(name, command.split()) for name, command in (peer.split("=", 1) for peer in args.peer)]
    for threads in map(int, args.threads.split(",")):
        found, reading = {}, []
        for _ in range(args.rounds):
            *times, read = ours(args.ours.split(), threads, args.seconds)
            found.setdefault("schwann", []).append(times)
            reading.append(read)
            for name, command in peers:
                found.setdefault(name, []).append(peer(command, threads))
        least = {who: min(t[0] for t in times) * 1e6 for who, times in found.items()}
        median = {who: statistics.median(t[1] for t in times) * 1e6 for who, times in found.items()}
        read = {"least": min(reading) * 1e6, "median": statistics.median(reading) * 1e6}
        if args.json:
            print(json.dumps({"threads": threads, "least_us": least, "median_us": median, "reading_us": read}), flush=True)
            continue
        print(f"{threads} threads, reading as many bytes {read['least']:.0f} µs (median {read['median']:.0f})")
        for who in found:
            ratio = f"{least[who] / least['schwann']:.2f}× (by medians {median[who] / median['schwann']:.2f}×)"
            print(f"  {who}: {least[who]:.0f} µs a symbol, median {median[who]:.0f}; {1e6 / least[who]:.0f} symbols/s; ours takes 1 of {ratio}", flush=True)


if __name__ == "__main__":
    main()
