"""Makes the files beside it with other people's writers: `python make.py`, which needs the packages gguf and mlx[cpu].

`all.gguf` holds a tensor of each type that is read, `numbers.npz` what the package gguf says that their numbers
are. gguf does not quantize to Q4_K and Q6_K, so their blocks are drawn at random, with scales that are not too large. It
does not know I2_S: that is packed here as `quantize_i2_s` of bitnet.cpp does on x86, and its numbers are computed here.
`model.safetensors` and `config.json` are as MLX saves them, `mlx.safetensors` has what `mx.dequantize` says.
"""

import json
import os
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Type

os.chdir(os.path.dirname(os.path.abspath(__file__)))
rng = np.random.default_rng(15)
writer = gguf.GGUFWriter("all.gguf", "test")
writer.add_uint8("test.u8", 200)
writer.add_int8("test.i8", -100)
writer.add_uint16("test.u16", 60_000)
writer.add_int16("test.i16", -30_000)
writer.add_uint32("test.u32", 4_000_000_000)
writer.add_int32("test.i32", -2_000_000_000)
writer.add_float32("test.f32", 0.1)
writer.add_bool("test.bool", True)
writer.add_string("test.text", "Grüße, 世界")
writer.add_uint64("test.u64", 1 << 63)
writer.add_int64("test.i64", -(1 << 62))
writer.add_float64("test.f64", 0.1)
writer.add_array("test.texts", ["a", "", "ßé"])
writer.add_array("test.numbers", [1, -2, 3])
writer.add_array("test.floats", [0.5, -1.5])
writer.add_array("test.truths", [True, False])

numbers = {}


def rows(k):
    """Two rows of numbers: the first begins with zeros and has a single sign."""
    x = rng.normal(size=(2, k)).astype(np.float32) * np.float32([[3], [0.02]])
    x[0] = abs(x[0])
    x[0, :32] = 0
    return x


def half(blocks, scale):
    return (rng.normal(size=(blocks, 1)) * scale).astype("<f2").view(np.uint8)


def noise(blocks, n):
    return rng.integers(0, 256, size=(blocks, n), dtype=np.uint8)


def write(name, data, kind):
    writer.add_tensor(name, data, raw_dtype=kind)
    numbers[name] = gguf.dequantize(data, kind).astype(np.float32)


for k in (256, 512):
    for kind in (Type.Q8_0, Type.Q4_0, Type.TQ1_0, Type.TQ2_0, Type.BF16):
        write(f"{kind.name.lower()}.{k}", gguf.quantize(rows(k), kind), kind)
    n = 2 * k // 256
    data = np.concatenate([half(n, 0.01), half(n, 0.02), noise(n, 12 + 128)], axis=1).reshape(2, -1)
    write(f"q4_k.{k}", data, Type.Q4_K)
    data = np.concatenate([noise(n, 128 + 64 + 16), half(n, 0.01)], axis=1).reshape(2, -1)
    write(f"q6_k.{k}", data, Type.Q6_K)
for name, data in [("f32", rows(7)), ("f16", rows(7).astype(np.float16))]:
    writer.add_tensor(name, data)
    numbers[name] = data.astype(np.float32)
# Experts: three axes.
write("q8_0.experts", gguf.quantize(np.stack([rows(64), rows(64)]), Type.Q8_0), Type.Q8_0)
# A type that is not read.
writer.add_tensor("q5_0", gguf.quantize(rows(32), Type.Q5_0), raw_dtype=Type.Q5_0)

# I2_S: added as bytes, which get their shape and number below.
for k in (256, 512):
    codes = rng.integers(0, 3, size=(2, k), dtype=np.uint8)
    scale = np.float32(0.37 * k)
    parts = codes.reshape(-1, 4, 32) << np.array([6, 4, 2, 0], dtype=np.uint8).reshape(1, 4, 1)
    packed = np.bitwise_or.reduce(parts, axis=1).tobytes()
    data = packed + scale.tobytes() + bytes(28)
    name = f"i2_s.{k}"
    writer.add_tensor(name, np.frombuffer(data, dtype=np.int8))
    numbers[name] = (codes.astype(np.float32) - 1) * scale

# The package's enumeration lacks the number of I2_S, and takes any.
for tensors in writer.tensors:
    for name, info in tensors.items():
        if name.startswith("i2_s"):
            info.shape, info.dtype = numbers[name].shape, 36
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

np.savez_compressed("numbers.npz", **numbers)

mx.random.seed(15)
tensors, dequantized, layers = {}, {}, {}
for bits in (2, 3, 4, 5, 6, 8):
    for size, dtype in [(32, mx.float32), (64, mx.float16), (128, mx.bfloat16)]:
        name = f"layers.{bits}.{size}"
        w = (mx.random.normal((2, 256)) * mx.array([[0.02], [3]])).astype(dtype)
        packed, scales, biases = mx.quantize(w, size, bits)
        tensors |= {f"{name}.weight": packed, f"{name}.scales": scales, f"{name}.biases": biases}
        exact = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), size, bits)
        dequantized[name] = exact
        if dtype != mx.float32:
            dequantized[f"{name}.rounded"] = mx.dequantize(packed, scales, biases, size, bits)
        if (bits, size) != (4, 64):
            layers[name] = {"group_size": size, "bits": bits}
tensors["norm.weight"] = mx.random.normal((5,))
layers["norm"] = False
mx.save_safetensors("model.safetensors", tensors, metadata={"format": "mlx"})
mx.save_safetensors("mlx.safetensors", dequantized)
config = {"model_type": "test", "quantization": {"group_size": 64, "bits": 4, **layers}}
Path("config.json").write_text(json.dumps(config, indent=1) + "\n")
