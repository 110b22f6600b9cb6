"""Makes the files beside it with other people's packages: `python make.py`, which needs tokenizers, transformers, safetensors
and gguf.

Two small tokenizers are trained on the text below: `bytes.json` merges bytes and splits as Llama 3's does; `pieces.json` merges
characters in the order of scores, has bytes for those it does not know, and writes spaces as ▁, as Llama 2's does. The
.gguf files hold the same symbols as metadata. `expected.json` has, of each, the symbols that the package gives for texts, and
the text that it gives for those; `bytes_<way>` are the same symbols with the other ways of splitting text. `decoder` and
`pieces.gguf` are also a decoder with random weights.
"""

import json
import os
import shutil

import gguf
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from safetensors.numpy import save_file
from transformers.convert_slow_tokenizer import generate_merges

os.chdir(os.path.dirname(os.path.abspath(__file__)))
TRAINING = [
    "The river rose in the night, and in the morning the lower field was a lake with a fence around it.",
    "She didn't say where she'd been; they're all of the opinion that it wasn't far, and that he'll tell us.",
    "In 1997 there were 12 boats, in 2003 only 7, and now 1,250 people come each summer to see the last one.",
    "for i in range(10):\n    if i % 2 == 0:\n        print(i, end='')\n\nreturn None",
    "Der Fluß stieg über Nacht. Où est le café? El niño está aquí, naïve façade, Ærø, čeština.",
    "漢字 and kana かな are written together: 東京の川, 水の音. Москва стоит на реке.",
    "What was it that the others had seen there? Nothing, they said, nothing at all, and went on with their work.",
] * 3
TEXTS = [
    "", " ", "  ", "\n", "a", "Hello", " Hello", "Hello world", "Hello  world", "   three before", "behind   ",
    "\n\n\ntwo\n lines\r\nand one\n\n", "\ttabs\t\tand spaces  \n  mixed", "1", "12", "123", "1234567890", "in 1997, 3.14159 and 1e-5",
    "I'm, you're, she'd, they'll, we've, it's; DON'T, HE'LL", "é", "e\u0301 is composed, é is one", "Où est le café naïf?", "漢字", "東京の川 水の音",
    "Москва стоит", "🦀", "👩‍👩‍👧‍👦 family, 🇫🇷 flag, 👍🏽 tone", "def f(x):\n    return x**2  # square\n", "$x^2 + y_1 <= |z|~\\alpha$ (a+b)=[c]",
    "the end<|end|> and more", "a\u00a0b\u2003c\u200bd", "\ufffd is no character", "ￆ ﷽ 𝔘𝔫𝔦 \U0001F9D1\u200D\U0001F680",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WIDTH, CONTEXT = 8, 256
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"


def split(*patterns):
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def begin_with(mark, number):
    return processors.TemplateProcessing(single=f"{mark} $A", special_tokens=[(mark, number)])


def answers(tokenizer):
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    return {"ids": ids, "texts": [tokenizer.decode(i, skip_special_tokens=True) for i in ids]}


def write_gguf(name, model, symbols, kinds, begin, end, turn, pre=None, merges=None, scores=None, weights={}):
    writer = gguf.GGUFWriter(f"{name}.gguf", "llama")
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(symbols)
    writer.add_token_types(kinds)
    if merges:
        writer.add_token_merges(merges)
    if scores:
        writer.add_token_scores(scores)
    writer.add_bos_token_id(begin)
    writer.add_eos_token_id(end)
    if turn is not None:
        writer.add_eot_token_id(turn)
    writer.add_add_bos_token(True)
    if weights:
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(1)
        writer.add_feed_forward_length(WIDTH)
        writer.add_head_count(2)
        writer.add_layer_norm_rms_eps(1e-5)
    for tensor, value in weights.items():
        writer.add_tensor(tensor, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def symbols_of(tokenizer):
    return [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]


expected = {"texts": TEXTS}
marks = ["<|begin|>", "<|end|>", "<|turn|>"]

tokenizer = Tokenizer(models.BPE(ignore_merges=True))
tokenizer.pre_tokenizer = split(LLAMA3)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
tokenizer.train_from_iterator(TRAINING, trainer)
tokenizer.add_special_tokens(marks)
tokenizer.post_processor = begin_with(marks[0], tokenizer.token_to_id(marks[0]))
tokenizer.save("bytes.json", pretty=False)
expected["bytes"] = answers(tokenizer)
symbols = symbols_of(tokenizer)
kinds = [3 if s in marks else 1 for s in symbols]
merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
begin, end, turn = (tokenizer.token_to_id(mark) for mark in marks)
for pre, splitter in {
    "llama-bpe": None,
    "qwen2": split(QWEN2),
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "default": split(PUNCTUATION, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}.items():
    name = "bytes" if splitter is None else f"bytes_{pre}"
    write_gguf(name, "gpt2", symbols, kinds, begin, end, turn, pre=pre, merges=merges)
    if splitter is not None:
        page = json.loads(tokenizer.to_str())
        page["model"]["ignore_merges"] = False
        other = Tokenizer.from_str(json.dumps(page))
        other.pre_tokenizer = splitter
        if pre == "qwen2":
            other.normalizer = normalizers.NFC()
        expected[name] = answers(other)

marks = ["<unk>", "<s>", "<|end|>"]
bytes_ = [f"<0x{b:02X}>" for b in range(256)]
learner = Tokenizer(models.BPE())
learner.pre_tokenizer = pre_tokenizers.Metaspace()
learner.train_from_iterator(TRAINING[:5], trainers.BpeTrainer(vocab_size=250, limit_alphabet=60, show_progress=False))
learned = symbols_of(learner)
symbols = marks + bytes_ + [s for s in learned if len(s) > 1] + ["▁▁", "▁▁▁▁", "▁▁▁"] + [s for s in learned if len(s) == 1]
vocabulary = {symbol: i for i, symbol in enumerate(symbols)}
scores = {symbol: 0.0 if i < 259 else 259.0 - i for i, symbol in enumerate(symbols)}
kinds = [2, 3, 3] + [6] * 256 + [1] * (len(symbols) - 259)
merges = generate_merges(vocabulary, scores, skip_tokens=marks + bytes_)
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
tokenizer.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
tokenizer.post_processor = begin_with("<s>", 1)
tokenizer.save("pieces.json", pretty=False)
expected["pieces"] = answers(tokenizer)

random = np.random.default_rng(7)
NAMES = {  # Hugging Face's names, and GGUF's.
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
table = random.normal(size=(len(symbols), WIDTH)).astype(np.float16)
ones = np.ones(WIDTH, np.float32)
folder = {"model.embed_tokens.weight": table, "model.norm.weight": ones}
weights = {"token_embd.weight": table, "output_norm.weight": ones}
for name, gguf_name in NAMES.items():
    value = ones if "norm" in name else random.normal(size=(WIDTH, WIDTH)).astype(np.float16)
    folder[f"model.layers.0.{name}.weight"] = weights[f"blk.0.{gguf_name}.weight"] = value
write_gguf("pieces", "llama", symbols, kinds, 1, 2, None, scores=[scores[s] for s in symbols], weights=weights)
os.makedirs("decoder", exist_ok=True)
save_file(folder, "decoder/model.safetensors")
shutil.copy("pieces.json", "decoder/tokenizer.json")
config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(symbols),
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
with open("decoder/config.json", "w") as file:
    json.dump(config, file, indent=1)

with open("expected.json", "w") as file:
    json.dump(expected, file, ensure_ascii=False, separators=(",", ":"))
