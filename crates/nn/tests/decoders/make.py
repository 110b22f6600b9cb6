"""Makes the folders and files beside it with other people's classes and writers: `python make.py`, which needs torch,
transformers, safetensors, gguf and mlx[cpu].

Each decoder is one of transformers' classes with random weights. `<name>.expected.safetensors` holds `tokens` and the
`logits` that the class computes of them in float32, always with the numbers that the files hold: weights are rounded to
the file's type first, and quantized ones are taken from the other package's own dequantization.
"""

import copy
import json
import os
import shutil

# The functions of BitNet's classes are compiled otherwise, which needs a compiler and gives the same numbers.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import gguf
import mlx.core as mx
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file
from transformers.integrations import bitnet

os.chdir(os.path.dirname(os.path.abspath(__file__)))
transformers.logging.set_verbosity_error()
torch.manual_seed(15)
LAYER_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SMALL = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 40,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def draw(kind, **changes):
    """A decoder with weights large enough that each of its parts has an effect."""
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight") or "layernorm" in name:
            parameter.data.uniform_(0.5, 1.5)
        elif parameter.ndim == 1:
            parameter.data.normal_(0, 0.3)
        else:
            parameter.data.normal_(0, 1.5 / parameter.shape[-1] ** 0.5)
    model.tie_weights()
    return model


def round_to(model, dtype):
    """Rounds weights alone: `model.to` would round the angles of positions too, which are float32 when files are read."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).float()


def run(model):
    tokens = torch.randint(0, model.config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return tokens, model(tokens).logits


def expect(name, model):
    tokens, logits = run(model)
    save_file({"tokens": tokens.int(), "logits": logits.contiguous()}, f"{name}.expected.safetensors")


def save(name, model, dtype=torch.float32, **options):
    """As `save_pretrained` writes it, after rounding to a type."""
    round_to(model, dtype)
    expect(name, model)
    shutil.rmtree(name, ignore_errors=True)
    model.to(dtype)
    model.save_pretrained(name, **options)
    for other in os.listdir(name):
        if not other.startswith(("config.json", "model")):
            os.remove(f"{name}/{other}")


def linears(model):
    """The layers' products, which BitNet makes ternary."""
    return [(n, m) for n, m in model.named_modules() if n.endswith(LAYER_LINEARS)]


def ternary(weight):
    """-1, 0 and 1, and what they are to be multiplied with."""
    scale = weight.abs().mean()
    return (weight / scale).round().clamp(-1, 1), scale


def is_clear(model):
    """Whether no number that is rounded to 8 bits lies so near the middle of two that the last bits of a sum decide."""
    near = []

    def look(_, inputs):
        steps = inputs[0] * (127 / inputs[0].abs().amax(-1, keepdim=True))
        near.append((steps - steps.floor() - 0.5).abs().min())

    hooks = [module.register_forward_pre_hook(look) for _, module in linears(model)]
    run(model)
    for hook in hooks:
        hook.remove()
    return min(near) > 2e-4


def bitnet_model(name, model, linear_class, mode, packed):
    """A decoder whose products are one of transformers' two classes for BitNet; false if it is not clear."""
    round_to(model, torch.bfloat16)
    quantization = transformers.BitNetQuantConfig(linear_class=linear_class, quantization_mode=mode)
    weights = {n: m.weight.data.clone() for n, m in linears(model)}
    bitnet.replace_with_bitnet_linear(model, ["lm_head"], quantization)
    tensors = {}
    for n, module in linears(model):
        numbers, scale = ternary(weights[n])
        if linear_class == "bitlinear":
            module.dtype = torch.float32
            module.weight = torch.nn.Buffer(bitnet.pack_weights(numbers.clone()))
            module.weight_scale = torch.nn.Buffer((1 / scale).reshape(1))
        elif mode == "offline":
            module.weight = torch.nn.Parameter(numbers, requires_grad=False)
            module.weight_scale = torch.nn.Buffer(scale.reshape(1))
            if packed:
                tensors[f"{n}.weight"] = bitnet.pack_weights(numbers.clone())
        else:
            module.weight = torch.nn.Parameter(weights[n], requires_grad=False)
    if not is_clear(model):
        return False
    expect(name, model)
    shutil.rmtree(name, ignore_errors=True)
    os.makedirs(name)
    # Everything is bfloat16's but the scales.
    small = lambda t: t.bfloat16() if t.dtype == torch.float32 and t.numel() > 1 else t
    state = {n: small(t).contiguous() for n, t in model.state_dict().items()} | tensors
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, f"{name}/model.safetensors")
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    config["quantization_config"] = quantization.to_dict()
    with open(f"{name}/config.json", "w") as out:
        json.dump(config, out, indent=1, default=str)
    return True


def write_gguf(name, model, arch, kinds, scaled=False):
    """A GGUF file with the names of the package gguf, and the decoder with the numbers that are in it.

    `kinds` says which type each tensor gets, by what its name ends with; others are F32. llama.cpp's converter reorders
    the rows of queries and keys of `llama`, so that neighbours are pairs there."""
    config = model.config
    writer = gguf.GGUFWriter(f"{name}.gguf", arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head_size)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_vocab_size(config.vocab_size)
    if config.rope_parameters["rope_type"] == "llama3":
        own = config.rope_parameters["rope_theta"] ** (-np.arange(0, head_size, 2) / head_size)
        slower = own / model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", slower.astype(np.float32))
    style = next((a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), gguf.MODEL_ARCH.BITNET)
    names = gguf.get_tensor_name_map(style, config.num_hidden_layers)
    state = model.state_dict()
    for there, tensor in list(state.items()):
        if there == "lm_head.weight" and config.tie_word_embeddings:
            continue
        numbers = tensor.float().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        heads = next((n for part, n in heads.items() if f"{part}." in there), None)
        reorder = arch == "llama" and heads
        if reorder:
            split = numbers.reshape(heads, 2, numbers.shape[0] // heads // 2, *numbers.shape[1:])
            numbers = np.ascontiguousarray(split.swapaxes(1, 2).reshape(numbers.shape))
        kind = next((k for end, k in kinds.items() if there.endswith(end)), Type.F32)
        scale = np.float32(1)
        if scaled and any(part in there for part in LAYER_LINEARS):
            scale = np.abs(numbers).max()
            numbers = numbers / scale
        data = numbers if kind == Type.F32 else gguf.quantize(numbers, kind)
        # The package knows BitNet's norms by the names of an older class.
        known = there.replace("attn_sub_norm", "inner_attn_ln").replace("ffn_sub_norm", "ffn_layernorm")
        ours = names.get_name(known, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(ours, data, raw_dtype=kind)
        back = numbers if kind == Type.F32 else gguf.dequantize(data, kind).astype(np.float32)
        if scaled and any(part in there for part in LAYER_LINEARS):
            writer.add_tensor(ours.replace(".weight", ".scale"), np.array([scale], np.float32))
            back = back * scale
        if reorder:
            back = back.reshape(heads, back.shape[0] // heads // 2, 2, *back.shape[1:]).swapaxes(1, 2)
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(back)).reshape(tensor.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_bitnet_gguf(name, model, arch, kinds):
    """A GGUF file whose products round their rows, as transformers' class does with the same numbers; false if it is not
    clear."""
    write_gguf(name, model, arch, kinds, scaled=arch == "bitnet")
    weights = {n: m.weight.data.clone() for n, m in linears(model)}
    quantization = transformers.BitNetQuantConfig(linear_class="autobitlinear", quantization_mode="offline")
    bitnet.replace_with_bitnet_linear(model, ["lm_head"], quantization)
    for n, module in linears(model):
        module.weight = torch.nn.Parameter(weights[n], requires_grad=False)
        module.weight_scale = torch.nn.Buffer(torch.ones(1))
    expect(f"{name}_gguf", model)
    return is_clear(model)


def write_mlx(name, model, bits, group):
    """Two files as MLX saves them, so that codes and scales of some matrix are apart."""
    shutil.rmtree(name, ignore_errors=True)
    os.makedirs(name)
    tensors, state = {}, model.state_dict()
    for there, tensor in state.items():
        if there == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if tensor.ndim == 1:
            tensors[there] = mx.array(tensor.numpy())
            continue
        codes, scales, biases = mx.quantize(mx.array(tensor.numpy()), group_size=group, bits=bits)
        back = mx.dequantize(codes, scales, biases, group_size=group, bits=bits)
        tensor.copy_(torch.from_numpy(np.array(back)))
        stem = there.removesuffix(".weight")
        tensors |= {f"{stem}.weight": codes, f"{stem}.scales": scales, f"{stem}.biases": biases}
    parts = [dict(list(tensors.items())[:20]), dict(list(tensors.items())[20:])]
    index = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        mx.save_safetensors(f"{name}/{file}", part, metadata={"format": "mlx"})
        index |= {n: file for n in part}
    with open(f"{name}/model.safetensors.index.json", "w") as out:
        json.dump({"metadata": {}, "weight_map": index}, out, indent=1)
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    config["quantization"] = config["quantization_config"] = {"group_size": group, "bits": bits}
    with open(f"{name}/config.json", "w") as out:
        json.dump(config, out, indent=1, default=str)
    expect(name, model)


# Hugging Face's form.
llama = draw("Llama")
round_to(llama, torch.float16)
save("llama", copy.deepcopy(llama), torch.float16)
scaling = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
odd = {"vocab_size": 43, "hidden_size": 36, "head_dim": 10, "intermediate_size": 50, "tie_word_embeddings": True}
odd_llama = draw("Llama", **odd, num_hidden_layers=1, rope_parameters=scaling)
save("llama3", odd_llama, torch.bfloat16, max_shard_size="10KB")
save("mistral", draw("Mistral", num_hidden_layers=1, sliding_window=20), torch.float16)
save("qwen2", draw("Qwen2", num_hidden_layers=1), torch.float16)
save("qwen3", draw("Qwen3", num_hidden_layers=1, head_dim=12, num_key_value_heads=1), torch.float16)
bit = {"num_hidden_layers": 1, "hidden_size": 40, "intermediate_size": 56}
tied = bit | {"vocab_size": 24, "tie_word_embeddings": True}
for name, config, linear_class, mode, packed in [
    ("bitnet_divided", bit, "bitlinear", "offline", True),
    ("bitnet_packed", tied, "autobitlinear", "offline", True),
    ("bitnet_plain", tied | {"num_key_value_heads": 4}, "autobitlinear", "offline", False),
    ("bitnet_master", tied, "autobitlinear", "online", False),
]:
    while not bitnet_model(name, draw("BitNet", **config), linear_class, mode, packed):
        pass

# GGUF.
halves = {"_proj.weight": Type.F16, "embed_tokens.weight": Type.F16, "lm_head.weight": Type.F16}
write_gguf("llama", llama, "llama", halves)
mixed = {"q_proj.weight": Type.Q8_0, "up_proj.weight": Type.Q4_0, "embed_tokens.weight": Type.Q8_0}
mixed |= {"lm_head.weight": Type.F16, "v_proj.weight": Type.BF16, "k_proj.weight": Type.Q4_0}
model = draw("Llama", num_hidden_layers=1, rope_parameters=scaling)
write_gguf("llama_mixed", model, "llama", mixed)
expect("llama_mixed", model)
for kind in ("Qwen2", "Qwen3"):
    model = draw(kind, num_hidden_layers=1, **({"head_dim": 12} if kind == "Qwen3" else {}))
    write_gguf(kind.lower(), model, kind.lower(), halves)
    expect(f"{kind.lower()}_gguf", model)

# Rows of ternary types are multiples of 256; narrower ones have others.
wide = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 1, "num_hidden_layers": 1}
narrow = {"down_proj.weight": Type.Q8_0, "embed_tokens.weight": Type.Q8_0}
for name, arch, act, kind in [
    ("bitnet", "bitnet", "silu", Type.TQ1_0),
    ("bitnet_b158", "bitnet-b1.58", "relu2", Type.TQ2_0),
]:
    own = {"vocab_size": 24, "intermediate_size": 32, "hidden_act": act, "tie_word_embeddings": True}
    while not write_bitnet_gguf(name, draw("BitNet", **wide | own), arch, narrow | {"_proj.weight": kind}):
        pass

# MLX.
grouped = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "tie_word_embeddings": True}
write_mlx("mlx", draw("Llama", **grouped), 4, 32)

# One product of BitNet alone, with a norm and a bias.
layer = bitnet.AutoBitLinear(30, 17, bias=True, online_quant=True, use_rms_norm=True, rms_norm_eps=1e-5)
layer.rms_norm.weight.data.uniform_(0.5, 1.5)
x = torch.randn(5, 30)
tensors = {"weight": layer.weight, "bias": layer.bias, "norm.weight": layer.rms_norm.weight, "x": x, "y": layer(x)}
save_file({name: tensor.detach() for name, tensor in tensors.items()}, "bit_linear.safetensors")
