//! Decoders of other people's files give here what transformers' classes gave: `decoders/make.py` drew them and wrote the
//! files with those people's own writers.

use schwann_core::io::gguf::{GgmlType, Gguf};
use schwann_core::io::safetensors::Reader;
use schwann_core::pass::PassOptions;
use schwann_core::{CompileOptions, Graph, Program, Tensor};
use schwann_nn::decoder::{self, Decoder, FeedForward, Pairing};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoders").join(name)
}

fn run(graph: &Graph, options: &CompileOptions, tokens: &Tensor) -> Vec<f32> {
    let mut session = Program::compile(graph, options).unwrap().session();
    session.run(&[("tokens", tokens)]).unwrap()[0].values::<f32>().unwrap().to_vec()
}

/// The largest difference, as a share of the largest number.
fn off(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    // NaN is never below a bound.
    got.iter()
        .zip(want)
        .map(|(g, w)| (g - w).abs())
        .fold(0.0f32, |most, d| if d > most || d.is_nan() { d } else { most })
        / largest
}

/// Reads a decoder and runs it on every path; how far the logits are off at most.
fn compare(path: &str, expected: &str) -> (Decoder, f32) {
    let (decoder, weights) = decoder::open(data(path)).unwrap();
    let graph = decoder.graph(&weights).unwrap();
    let expected = Reader::open(data(&format!("{expected}.expected.safetensors"))).unwrap();
    let (tokens, logits) = (expected.tensor("tokens").unwrap(), expected.tensor("logits").unwrap());
    let paths = [
        CompileOptions::default(),
        CompileOptions::default().passes(PassOptions::none()),
        CompileOptions::default().backend("cpu:portable".parse().unwrap()),
        CompileOptions::default().backend("reference".parse().unwrap()).passes(PassOptions::none()),
    ];
    let off = paths.map(|options| off(&run(&graph, &options, &tokens), logits.values::<f32>().unwrap()));
    (decoder, off.into_iter().fold(0.0, f32::max))
}

#[test]
fn dense_decoders_of_hugging_face_give_the_same_logits() {
    for name in ["llama", "llama3", "mistral", "qwen2", "qwen3"] {
        let (decoder, off) = compare(name, name);
        assert!(off < 1e-5, "{name}: off by {off}");
        assert!(decoder.context == if name == "mistral" { 20 } else { 40 }, "{name}");
    }
}

/// Rows are rounded to 8 bits here and there. Where a number lies in the middle of two, the last bit of the sum before it
/// decides, and logits are off by up to 1%: these decoders were drawn until none of their numbers does.
#[test]
fn ternary_decoders_of_hugging_face_give_the_same_logits() {
    for name in ["bitnet_divided", "bitnet_packed", "bitnet_plain", "bitnet_master"] {
        let (decoder, off) = compare(name, name);
        assert!(decoder.rounded && decoder.sub_norms && decoder.feed_forward == FeedForward::SquaredRelu);
        assert!(off < 1e-5, "{name}: off by {off}");
    }
}

#[test]
fn decoders_in_gguf_files_give_the_same_logits() {
    for (file, expected) in [
        ("llama.gguf", "llama"),
        ("llama_mixed.gguf", "llama_mixed"),
        ("qwen2.gguf", "qwen2_gguf"),
        ("qwen3.gguf", "qwen3_gguf"),
        ("bitnet.gguf", "bitnet_gguf"),
        ("bitnet_b158.gguf", "bitnet_b158_gguf"),
        ("bitnet_25.gguf", "bitnet_25"),
    ] {
        let (_, off) = compare(file, expected);
        assert!(off < 1e-5, "{file}: off by {off}");
    }
    // The last one is of bitnet.cpp's own type, which the package that wrote it does not have.
    let file = Gguf::open(data("bitnet_25.gguf")).unwrap();
    assert_eq!(file.entries().iter().filter(|entry| entry.kind == GgmlType(36)).count(), 14);
}

#[test]
fn a_decoder_in_mlx_form_gives_the_same_logits() {
    let (decoder, off) = compare("mlx", "mlx");
    assert!(decoder.tied && off < 1e-5, "off by {off}");
}

/// Whatever a sequence is followed by has no effect on it, and neither have the other sequences of a batch.
#[test]
fn a_position_sees_only_those_before_it() {
    let decoder = Decoder { vocabulary: 50, ..Decoder::tiny() };
    let graph = decoder.graph(&decoder.draw(4).unwrap()).unwrap();
    let options = CompileOptions::default();
    let long = run(&graph, &options, &Tensor::new(&[1, 6], &[7i32, 1, 8, 2, 8, 1]).unwrap());
    let short = run(&graph, &options, &Tensor::new(&[1, 4], &[7i32, 1, 8, 2]).unwrap());
    assert!(off(&long[..4 * 50], &short) < 1e-5);
    let two = run(&graph, &options, &Tensor::new(&[2, 4], &[0i32, 3, 9, 9, 7, 1, 8, 2]).unwrap());
    assert!(off(&two[4 * 50..], &short) < 1e-5);
}

#[test]
fn a_sequence_beyond_the_context_is_refused() {
    let decoder = Decoder { context: 5, ..Decoder::tiny() };
    let graph = decoder.graph(&decoder.draw(4).unwrap()).unwrap();
    let mut session = Program::compile(&graph, &CompileOptions::default()).unwrap().session();
    assert!(session.run(&[("tokens", &Tensor::new(&[1, 5], &[1i32; 5]).unwrap())]).is_ok());
    let error = session.run(&[("tokens", &Tensor::new(&[1, 6], &[1i32; 6]).unwrap())]).unwrap_err().to_string();
    assert!(error.contains("rope"), "{error}");
}

#[test]
fn operations_have_the_names_of_the_parts_that_they_belong_to() {
    let (decoder, weights) = decoder::open(data("bitnet_packed")).unwrap();
    let graph = decoder.graph(&weights).unwrap();
    let names: Vec<&str> = graph.nodes().iter().map(|node| node.name.as_str()).collect();
    for name in ["layers.0.attention.q", "layers.0.attention.out", "layers.0.mlp.down", "layers.0.mlp.norm", "head"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let weights: Vec<&str> = graph.weight_types().map(|(name, _)| name).collect();
    for name in ["layers.0.attention.q.codes", "layers.0.attention.q.scales", "norm.weight", "rope.cos"] {
        assert!(weights.contains(&name), "{name}: {weights:?}");
    }
}

/// Opens a folder's files with the text of its configuration changed.
fn opened(name: &str, change: impl Fn(String) -> String) -> schwann_nn::Result<(Decoder, decoder::Weights)> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let to = std::env::temp_dir().join(format!("schwann-decoder-{}-{name}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir_all(&to).unwrap();
    for file in std::fs::read_dir(data(name)).unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
    let config = std::fs::read_to_string(to.join("config.json")).unwrap();
    std::fs::write(to.join("config.json"), change(config)).unwrap();
    let opened = decoder::open(&to);
    std::fs::remove_dir_all(&to).unwrap();
    opened
}

/// The error of such files.
fn changed(name: &str, change: impl Fn(String) -> String) -> String {
    opened(name, change).map(|_| ()).unwrap_err().to_string()
}

/// The tables of angles are what a file of a kilobyte could make large.
#[test]
fn a_small_file_that_claims_a_long_context_makes_a_small_network() {
    let claimed = "\"max_position_embeddings\": 1000000000";
    let folder = opened("llama", |text| text.replace("\"max_position_embeddings\": 40", claimed)).unwrap();
    let [is, becomes] = [40, 1_000_000_000].map(|context| entry("llama.context_length", context));
    let file = opened_gguf("llama.gguf", &is, &becomes).unwrap();
    for (decoder, weights) in [folder, file] {
        assert_eq!(decoder.context, (1 << 17) / (decoder.head_size / 2));
        let graph = decoder.graph(&weights).unwrap();
        let bytes: usize = graph.weights().values().map(|tensor| tensor.bytes().len()).sum();
        assert!(bytes < 2 << 20, "{bytes} bytes");
    }
}

#[test]
fn a_configuration_that_is_not_understood_is_refused_by_the_field() {
    for (name, from, to, words) in [
        ("llama", "LlamaForCausalLM", "GPT2LMHeadModel", "`architectures` is GPT2LMHeadModel; expected one of Llama"),
        ("llama", "\"vocab_size\": 32", "\"vocab_size\": -1", "`vocab_size` is -1; expected a whole number"),
        ("llama", "\"vocab_size\": 32", "\"x\": 32", "`vocab_size` is missing"),
        (
            "llama",
            "\"vocab_size\": 32",
            "\"vocab_size\": 65",
            "`model.embed_tokens.weight` is f16[32, 32]; expected floats [65, 32]",
        ),
        (
            "llama",
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 3",
            "`model.layers.2.input_layernorm.weight` is missing; expected [32]",
        ),
        ("llama", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4000000000", "`layers` is 4000000000"),
        (
            "llama",
            "\"hidden_act\": \"silu\"",
            "\"hidden_act\": \"gelu\"",
            "`hidden_act` is gelu; expected silu or relu2",
        ),
        ("llama", "\"attention_bias\": false", "\"attention_bias\": true", "`attention_bias` is true"),
        ("llama3", "llama3", "yarn", "`rope_parameters.rope_type` is yarn; expected default, linear or llama3"),
        ("bitnet_packed", "\"quant_method\": \"bitnet\"", "\"quant_method\": \"gptq\"", "is gptq; expected bitnet"),
        ("bitnet_packed", "offline", "online", "since the mode is `online`"),
        (
            "bitnet_packed",
            "\"intermediate_size\": 56",
            "\"intermediate_size\": 60",
            "is u8[14, 40]; expected u8[15, 40]",
        ),
        ("mlx", "\"bits\": 4", "\"bits\": 8", "model.embed_tokens"),
        ("mlx", "}", "", "EOF while parsing"),
    ] {
        let error = changed(name, |text| text.replace(from, to));
        assert!(error.contains(words), "{name}, {to}: {error}");
    }
}

#[test]
fn an_index_that_names_files_elsewhere_is_refused() {
    let to = std::env::temp_dir().join(format!("schwann-decoder-{}-index", std::process::id()));
    std::fs::create_dir_all(&to).unwrap();
    std::fs::copy(data("llama/config.json"), to.join("config.json")).unwrap();
    for (map, words) in [
        ("{\"a\": \"../../etc/passwd\"}", "expected the name of a file of the same folder"),
        ("{\"a\": \"/etc/passwd\"}", "expected the name of a file of the same folder"),
        ("{\"a\": \"..\"}", "expected the name of a file of the same folder"),
        ("{\"a\": 5}", "expected the name of a file of the same folder"),
        ("{}", "`weight_map` is 0 files"),
        ("[]", "`weight_map` is missing"),
        ("{\"a\": \"missing.safetensors\"}", "missing.safetensors"),
    ] {
        std::fs::write(to.join("model.safetensors.index.json"), format!("{{\"weight_map\": {map}}}")).unwrap();
        let error = decoder::open(&to).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(words), "{map}: {error}");
    }
    std::fs::remove_dir_all(&to).unwrap();
}

/// Opens a GGUF file with a number or text of its metadata changed in place; the lengths stay.
fn opened_gguf(file: &str, from: &[u8], to: &[u8]) -> schwann_nn::Result<(Decoder, decoder::Weights)> {
    let mut bytes = std::fs::read(data(file)).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    Gguf::from_bytes(bytes).map_err(schwann_nn::Error::from).and_then(|file| decoder::from_gguf(&file))
}

/// The error of such a file.
fn changed_gguf(file: &str, from: &[u8], to: &[u8]) -> String {
    opened_gguf(file, from, to).map(|_| ()).unwrap_err().to_string()
}

/// A key with its value, a u32, behind it.
fn entry(key: &str, value: u32) -> Vec<u8> {
    [key.as_bytes(), &4u32.to_le_bytes(), &value.to_le_bytes()].concat()
}

#[test]
fn a_gguf_file_that_is_not_understood_is_refused_by_what_it_says() {
    let size = |key: &str, is: u32, becomes: u32| changed_gguf("llama.gguf", &entry(key, is), &entry(key, becomes));
    for (error, words) in [
        (
            changed_gguf("llama.gguf", b"llama", b"grok1"),
            "`general.architecture` is grok1; expected one of llama, qwen2",
        ),
        (size("llama.block_count", 2, 3), "`blk.2.attn_norm.weight` is missing; expected [32]"),
        (size("llama.block_count", 2, u32::MAX), "`layers` is 4294967295"),
        (size("llama.embedding_length", 32, 48), "`token_embd.weight` is f16[32, 32]; expected floats [32, 48]"),
        (size("llama.feed_forward_length", 32, 50), "`blk.0.ffn_gate.weight` is f16[32, 32]; expected floats [50, 32]"),
        (size("llama.attention.head_count", 4, 0), "`heads` is 0"),
        (size("llama.context_length", 40, 0), "`context` is 0"),
        (
            changed_gguf("llama.gguf", b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight"),
            "`blk.1.ffn_up.weight` is missing",
        ),
        (changed_gguf("qwen2.gguf", b"blk.0.attn_v.bias", b"blk.0.attn_o.bias"), "`blk.0.attn_v.bias` is missing"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}

/// Wherever a file ends, there is an error and nothing else.
#[test]
fn truncated_files_are_refused() {
    let bytes = std::fs::read(data("llama_mixed.gguf")).unwrap();
    for end in (0..bytes.len()).step_by(97) {
        assert!(Gguf::from_bytes(&bytes[..end]).is_err(), "{end}");
    }
    let error = Gguf::from_bytes(&bytes[..bytes.len() - 64]).unwrap_err().to_string();
    assert!(error.contains("truncated at tensor"), "{error}");
}

#[test]
fn a_gguf_file_says_which_numbers_turn_together_and_how_fast() {
    let (llama, _) = decoder::open(data("llama_mixed.gguf")).unwrap();
    assert_eq!(llama.rope.pairing, Pairing::Neighbours);
    // Of another size of heads, the first pair turns as fast, and the last four times slower too.
    let (other, _) = decoder::open(data("llama3")).unwrap();
    let [from_file, computed] = [llama.rope.factors, other.rope.factors];
    assert_eq!((from_file.len(), computed.len()), (4, 5));
    assert!((from_file[0] - computed[0]).abs() < 1e-6 && computed[0] < 1.1, "{from_file:?} {computed:?}");
    assert!((from_file[3] - 4.0).abs() < 1e-5 && computed[4] == 4.0, "{from_file:?} {computed:?}");
    let (qwen, _) = decoder::open(data("qwen3.gguf")).unwrap();
    assert_eq!(qwen.rope.pairing, Pairing::Halves);
}

/// Whichever byte is wrong: what comes of it is a decoder or an error.
#[test]
fn files_with_any_byte_changed_are_read_or_refused() {
    let bytes = std::fs::read(data("llama_mixed.gguf")).unwrap();
    let mut refused = 0;
    for at in 0..bytes.len().min(3000) {
        for new in [0, 1, 0x7f, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = new;
            let read = Gguf::from_bytes(changed).map_err(schwann_nn::Error::from);
            refused += usize::from(read.and_then(|file| decoder::from_gguf(&file)).is_err());
        }
    }
    assert!(refused > 1000, "{refused}");
}
