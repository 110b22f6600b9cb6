#!/usr/bin/env python3
"""Writes a decoder of the shapes of `schwann bench decoder`, with random ternary weights, as a GGUF file for other engines.

    VENV/bin/pip install gguf numpy
    VENV/bin/python benches/peers/decoder_gguf.py OUT.gguf [--type TQ2_0|F32] [--layers 9] [--width 1024] …
    llama-bench -m OUT.gguf -p 0 -n 64 -t 1 -r 5        # llama.cpp reads TQ2_0
    llama-quantize OUT-F32.gguf I2_S.gguf I2_S          # bitnet.cpp makes I2_S from F32 itself
"""
import argparse
import gguf
import numpy as np

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("out")
parser.add_argument("--type", default="TQ2_0", choices=["TQ2_0", "F32"])
for name, value in {"layers": 9, "width": 1024, "heads": 16, "key-heads": 4, "hidden": 2816, "vocabulary": 256}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
args = parser.parse_args()
head, random = 64, np.random.default_rng(1)

w = gguf.GGUFWriter(args.out, "bitnet")
w.add_name("random")
w.add_context_length(2048)
w.add_embedding_length(args.width)
w.add_block_count(args.layers)
w.add_feed_forward_length(args.hidden)
w.add_head_count(args.heads)
w.add_head_count_kv(args.key_heads)
w.add_rope_dimension_count(head)
w.add_rope_freq_base(10000.0)
w.add_layer_norm_rms_eps(1e-5)
w.add_vocab_size(args.vocabulary)
w.add_tokenizer_model("llama")
w.add_token_list([f"t{i}" for i in range(args.vocabulary)])
w.add_token_scores([0.0] * args.vocabulary)
w.add_token_types([1] * args.vocabulary)
w.add_bos_token_id(1)
w.add_eos_token_id(2)


def matrix(name, rows, columns):
    """Ternary numbers with one scale."""
    data = (random.integers(-1, 2, (rows, columns)) * columns**-0.5).astype(np.float32)
    if args.type == "F32":
        return w.add_tensor(name, data)
    kind = gguf.GGMLQuantizationType[args.type]
    w.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)


def vector(name, length):
    w.add_tensor(name, np.ones(length, np.float32))


w.add_tensor("token_embd.weight", (random.standard_normal((args.vocabulary, args.width)) * 0.02).astype(np.float32))
for i in range(args.layers):
    keys = args.key_heads * head
    vector(f"blk.{i}.attn_norm.weight", args.width)
    vector(f"blk.{i}.attn_sub_norm.weight", args.width)
    vector(f"blk.{i}.ffn_norm.weight", args.width)
    vector(f"blk.{i}.ffn_sub_norm.weight", args.hidden)
    matrix(f"blk.{i}.attn_q.weight", args.heads * head, args.width)
    matrix(f"blk.{i}.attn_k.weight", keys, args.width)
    matrix(f"blk.{i}.attn_v.weight", keys, args.width)
    matrix(f"blk.{i}.attn_output.weight", args.width, args.heads * head)
    matrix(f"blk.{i}.ffn_gate.weight", args.hidden, args.width)
    matrix(f"blk.{i}.ffn_up.weight", args.hidden, args.width)
    matrix(f"blk.{i}.ffn_down.weight", args.width, args.hidden)
vector("output_norm.weight", args.width)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
