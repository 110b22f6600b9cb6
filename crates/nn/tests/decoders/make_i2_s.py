"""Makes `bitnet_25.gguf`, a decoder of bitnet.cpp's kind, and what it computes: `python make_i2_s.py`, which needs gguf,
safetensors and numpy.

The package gguf writes the file; its type I2_S, which the package does not have, is packed here in the order of
bitnet.cpp's default build for x86: of 128 numbers, byte i holds numbers i, i + 32, i + 64 and i + 96 from its highest bits
down, as 0, 1 or 2, and the scale of the whole matrix follows its bytes, filled up to 32. The logits are those of a forward
pass in plain NumPy, in double precision, by the formulas of BitNet b1.58: there is no other code for it here.
"""

import os

import gguf
import numpy as np
from gguf.gguf_writer import TensorInfo
from safetensors.numpy import save_file

os.chdir(os.path.dirname(os.path.abspath(__file__)))
I2_S = 36
VOCABULARY, WIDTH, HIDDEN, LAYERS, HEADS, KEY_HEADS, CONTEXT = 32, 128, 256, 2, 4, 2, 40
HEAD = WIDTH // HEADS
EPS, THETA = 1e-5, 500000.0
LINEARS = {
    "attn_q": (HEADS * HEAD, WIDTH),
    "attn_k": (KEY_HEADS * HEAD, WIDTH),
    "attn_v": (KEY_HEADS * HEAD, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD),
    "ffn_gate": (HIDDEN, WIDTH),
    "ffn_up": (HIDDEN, WIDTH),
    "ffn_down": (WIDTH, HIDDEN),
}
NORMS = {"attn_norm": WIDTH, "attn_sub_norm": HEADS * HEAD, "ffn_norm": WIDTH, "ffn_sub_norm": HIDDEN}


def i2_s(ternary, scale):
    codes = (ternary.reshape(-1, 4, 32) + 1).astype(np.uint8)
    packed = codes[:, 0] << 6 | codes[:, 1] << 4 | codes[:, 2] << 2 | codes[:, 3]
    end = np.zeros(8, np.float32)
    end[0] = scale
    return np.concatenate([packed.reshape(-1), end.view(np.uint8)])


def rms(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


class Decoder:
    def __init__(self, seed):
        r = np.random.default_rng(seed)
        self.embedding = r.normal(0, 1, (VOCABULARY, WIDTH)).astype(np.float16)
        self.norm = r.uniform(0.5, 1.5, WIDTH).astype(np.float32)
        self.layers = []
        for _ in range(LAYERS):
            matrices = {n: (r.integers(-1, 2, shape), np.float32(r.uniform(0.05, 0.2))) for n, shape in LINEARS.items()}
            norms = {n: r.uniform(0.5, 1.5, size).astype(np.float32) for n, size in NORMS.items()}
            self.layers.append((matrices, norms))
        self.nearest = 1.0

    def linear(self, x, matrix):
        """A row's numbers are whole multiples of its largest over 127."""
        ternary, scale = matrix
        step = np.abs(x).max(-1, keepdims=True) / 127
        whole = x / step
        self.nearest = min(self.nearest, np.abs(whole - np.floor(whole) - 0.5).min())
        return np.round(whole) @ ternary.T * (step * np.float64(scale))

    def turn(self, x):
        """Number i and number i + HEAD / 2 of a head turn together."""
        steps, half = x.shape[1], HEAD // 2
        angle = np.arange(steps)[:, None] * THETA ** (-np.arange(half) * 2 / HEAD)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def logits(self, tokens):
        batch, steps = tokens.shape
        embedding = self.embedding.astype(np.float64)
        x = embedding[tokens]
        for matrices, norms in self.layers:
            h = rms(x, norms["attn_norm"])
            q, k, v = (self.linear(h, matrices[n]).reshape(batch, steps, -1, HEAD) for n in ("attn_q", "attn_k", "attn_v"))
            q, k = self.turn(q), self.turn(k)
            k, v = (np.repeat(y, HEADS // KEY_HEADS, 2) for y in (k, v))
            scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(HEAD)
            scores = np.where(np.tri(steps, dtype=bool), scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            seen = np.einsum("bhij,bjhd->bihd", weights, v).reshape(batch, steps, -1)
            x = x + self.linear(rms(seen, norms["attn_sub_norm"]), matrices["attn_output"])
            h = rms(x, norms["ffn_norm"])
            gate, up = self.linear(h, matrices["ffn_gate"]), self.linear(h, matrices["ffn_up"])
            inner = np.maximum(gate, 0) ** 2 * up
            x = x + self.linear(rms(inner, norms["ffn_sub_norm"]), matrices["ffn_down"])
        return rms(x, self.norm) @ embedding.T

    def write(self, path):
        w = gguf.GGUFWriter(path, "bitnet-25")
        w.add_context_length(CONTEXT)
        w.add_embedding_length(WIDTH)
        w.add_block_count(LAYERS)
        w.add_feed_forward_length(HIDDEN)
        w.add_head_count(HEADS)
        w.add_head_count_kv(KEY_HEADS)
        w.add_layer_norm_rms_eps(EPS)
        w.add_rope_freq_base(THETA)
        w.add_rope_dimension_count(HEAD)
        w.add_vocab_size(VOCABULARY)
        w.add_tensor("token_embd.weight", self.embedding)
        w.add_tensor("output_norm.weight", self.norm)
        for i, (matrices, norms) in enumerate(self.layers):
            for name, norm in norms.items():
                w.add_tensor(f"blk.{i}.{name}.weight", norm)
            for name, (ternary, scale) in matrices.items():
                data = i2_s(ternary, scale)
                w.tensors[-1][f"blk.{i}.{name}.weight"] = TensorInfo(ternary.shape, I2_S, data.nbytes, data)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


tokens = np.random.default_rng(3).integers(0, VOCABULARY, (2, 7))
for seed in range(1000):
    decoder = Decoder(seed)
    logits = decoder.logits(tokens)
    # No number that is rounded to 8 bits may lie so near the middle of two that the last bits of a sum decide.
    if decoder.nearest > 1e-4:
        break
else:
    raise SystemExit("no decoder was clear")
decoder.write("bitnet_25.gguf")
save_file({"tokens": tokens.astype(np.int32), "logits": logits.astype(np.float32)}, "bitnet_25.expected.safetensors")
print("seed", seed, "nearest", decoder.nearest)
