//! Tokenizers: the symbols and texts that the package tokenizers gives in Python, from its own files and from GGUF.

use schwann_core::io::gguf::Gguf;
use schwann_nn::generate::{Text, stops};
use std::fs;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers").join(name)
}

fn open(file: &str) -> Text {
    match file.ends_with(".gguf") {
        true => Text::of_gguf(&Gguf::open(data(file)).unwrap()).unwrap().unwrap(),
        false => Text::open(data(file)).unwrap(),
    }
}

/// A text, its symbols, and the text of those.
type Case = (String, Vec<i32>, String);

fn expected(name: &str) -> Vec<Case> {
    let page: serde_json::Value = serde_json::from_slice(&fs::read(data("expected.json")).unwrap()).unwrap();
    let of = |value: &serde_json::Value| value.as_array().unwrap().clone();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let ids = |value: &serde_json::Value| of(value).iter().map(|id| id.as_i64().unwrap() as i32).collect();
    let (ours, said) = (of(&page[name]["ids"]), of(&page[name]["texts"]));
    let cases = of(&page["texts"]).into_iter().zip(ours).zip(said).map(|((t, i), s)| (text(&t), ids(&i), text(&s)));
    cases.collect()
}

fn streamed(text: &Text, before: &[i32], ids: &[i32]) -> Vec<String> {
    let mut reader = text.reader(before).unwrap();
    let mut pieces: Vec<String> = ids.iter().map(|id| reader.push(*id).unwrap()).collect();
    pieces.push(reader.end().unwrap());
    pieces
}

const FILES: [(&str, &str); 7] = [
    ("bytes", "bytes.json"),
    ("bytes", "bytes.gguf"),
    ("bytes_qwen2", "bytes_qwen2.gguf"),
    ("bytes_gpt-2", "bytes_gpt-2.gguf"),
    ("bytes_default", "bytes_default.gguf"),
    ("pieces", "pieces.json"),
    ("pieces", "pieces.gguf"),
];

#[test]
fn symbols_and_texts_are_those_of_the_python_package() {
    for (name, file) in FILES {
        let text = open(file);
        let cases = expected(name);
        assert!(cases.len() >= 30);
        for (said, ids, back) in cases {
            assert_eq!(text.encode(&said).unwrap(), ids, "{file}: {said:?}");
            assert_eq!(streamed(&text, &[], &ids).concat(), back, "{file}: {said:?}");
        }
    }
}

#[test]
fn text_comes_with_its_last_symbol_and_never_half_a_character() {
    for (name, file) in FILES {
        let text = open(file);
        for (_, ids, back) in expected(name) {
            let marks = back.matches('\u{fffd}').count();
            for at in 0..=ids.len() {
                let begun = streamed(&text, &[], &ids[..at]);
                // All that was given before the end is final.
                let given = begun[..at].concat();
                assert!(back.starts_with(&given), "{file}: {back:?}: {given:?}");
                // Whatever can be held back is the beginning of a character.
                let held = begun[at].trim_matches('\u{fffd}');
                assert!(held.is_empty(), "{file}: {back:?}: {held:?} came late");
                // A text that goes on from here is that which was begun.
                if back.starts_with(&begun.concat()) && marks == 0 {
                    let rest = streamed(&text, &ids[..at], &ids[at..]).concat();
                    assert_eq!(begun.concat() + &rest, back, "{file} from symbol {at}");
                }
            }
        }
    }
}

#[test]
fn bytes_that_never_become_text_are_marked_and_text_after_them_is_read() {
    // The byte that begins a character of four, in both; then a letter.
    for (file, begins, letter) in [("bytes.gguf", "ð", "a"), ("pieces.gguf", "<0xF0>", "a")] {
        let tokens = Gguf::open(data(file)).unwrap().texts("tokenizer.ggml.tokens").unwrap().to_vec();
        let id = |token: &str| tokens.iter().position(|t| t == token).unwrap() as i32;
        let text = open(file);
        let mut ids = vec![id(letter)];
        ids.extend([id(begins); 200]);
        ids.extend([id(letter); 5]);
        let pieces = streamed(&text, &[], &ids);
        let said = pieces.concat();
        assert!(said.starts_with("a\u{fffd}") && said.ends_with("\u{fffd}aaaaa"), "{file}: {said}");
        assert!(pieces[..150].concat().chars().count() > 50, "{file}: what is no text was held back");
        assert!(text.reader(&[]).unwrap().push(-1).is_err());
        // Symbols that mark something have no text, however many there are, and what follows keeps its space.
        let prompt = text.encode("one").unwrap();
        let both = text.encode("one two").unwrap();
        let mut after = vec![prompt[0]; 100];
        after.extend(&both[prompt.len()..]);
        assert_eq!(streamed(&text, &prompt, &after).concat(), " two", "{file}");
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("schwann-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.0.join(name), content).unwrap();
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn texts_end_where_the_configuration_says() {
    let folder = Folder::new("stops");
    assert!(stops(&folder.0).unwrap().is_empty());
    folder.write("config.json", r#"{"eos_token_id": 7}"#);
    assert_eq!(stops(&folder.0).unwrap(), [7]);
    folder.write("generation_config.json", r#"{"eos_token_id": null}"#);
    assert_eq!(stops(&folder.0).unwrap(), [7]);
    folder.write("generation_config.json", r#"{"eos_token_id": [3, 5]}"#);
    fs::copy(data("bytes.json"), folder.0.join("tokenizer.json")).unwrap();
    let text = Text::open(folder.0.join("tokenizer.json")).unwrap();
    assert_eq!([3, 4, 5, 7].map(|id| text.is_stop(id)), [true, false, true, false]);
    for bad in [r#"{"eos_token_id": "end"}"#, r#"{"eos_token_id": [-1]}"#, r#"{"eos_token_id": 4294967296}"#] {
        folder.write("generation_config.json", bad);
        let error = stops(&folder.0).unwrap_err().to_string();
        assert!(error.contains("generation_config.json: `eos_token_id` is"), "{error}");
    }
    let text = open("bytes.gguf");
    assert_eq!([400, 401, 402].map(|id| text.is_stop(id)), [false, true, true]);
    assert!(open("pieces.gguf").is_stop(2));
}

#[test]
fn what_is_no_tokenizer_or_does_not_fit_is_refused() {
    let folder = Folder::new("no-tokenizer");
    let refused = |path: &Path, words: &str| {
        let error = Text::open(path).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(path.to_str().unwrap()), "{error}");
    };
    refused(&folder.0.join("missing.json"), "No such file");
    for content in ["", "{}", "[1, 2]", r#"{"version": "1.0", "model": {"type": "BPE"}}"#, "\u{0}\u{1}"] {
        refused(&folder.write("t.json", content), "not a tokenizer that can be read");
    }
    let nothing = r#"{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}"#;
    refused(&folder.write("t.json", nothing), "a tokenizer without symbols");
    // A prefix that is longer than what it stands before.
    let vocabulary = r#"{"a":0,"b":1,"ab":2}"#;
    let model = format!(r#""type":"BPE","continuing_subword_prefix":"++++","vocab":{vocabulary},"merges":["a b"]"#);
    let prefixed = format!(r#"{{"version":"1.0","model":{{{model}}}}}"#);
    refused(&folder.write("t.json", prefixed), "its parts contradict each other");
    let large = folder.write("t.json", "");
    fs::File::options().write(true).open(&large).unwrap().set_len((64 << 20) + 1).unwrap();
    refused(&large, "more than 67108864 bytes");
    let error = open("bytes.json").fits(402).unwrap_err().to_string();
    assert_eq!(error, "`symbols of the tokenizer` is 403; expected 402 at most, as many as the decoder has");
    open("bytes.json").fits(403).unwrap();
    assert!(Text::bytes().fits(255).is_err());
}

fn changed(file: &str, from: &str, to: &str) -> schwann_nn::Result<Option<Text>> {
    let mut bytes = fs::read(data(file)).unwrap();
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    Text::of_gguf(&Gguf::from_bytes(bytes).unwrap())
}

#[test]
fn gguf_files_with_another_tokenizer_are_refused_by_its_name() {
    for (file, from, to, words) in [
        ("bytes.gguf", "gpt2", "bert", "`tokenizer.ggml.model` is bert; expected gpt2 or llama"),
        ("bytes.gguf", "llama-bpe", "llama-xyz", "is llama-xyz; expected one of default, gpt-2, llama-bpe, qwen2"),
        ("bytes.gguf", "Ġ", "ß", "`tokenizer.ggml.tokens` is without 'Ġ'; expected a symbol for each byte"),
        ("bytes.gguf", "Ġ t", "Ġ_t", "`tokenizer.ggml.merges` is with \"Ġ_th\"; expected two symbols in each line"),
        ("pieces.gguf", "<0x41>", "<0x4_>", "`tokenizer.ggml.tokens` is without <0x41>"),
        ("pieces.gguf", "ggml.scores", "ggml.sc0res", "tokenizer.ggml.scores"),
        ("bytes.gguf", "ggml.merges", "ggml.m3rges", "tokenizer.ggml.merges"),
    ] {
        let error = changed(file, from, to).err().unwrap_or_else(|| panic!("{to} was read")).to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(changed("bytes.gguf", "ggml.model", "ggml.m0del").unwrap().is_none());
}

#[test]
fn files_with_any_byte_changed_are_read_or_refused() {
    let folder = Folder::new("changed-tokenizer");
    let mut refused = 0;
    let mut try_out = |text: schwann_nn::Result<Option<Text>>| match text {
        Ok(Some(text)) => {
            if let Ok(ids) = text.encode("Hello é 1234, 漢字") {
                let mut reader = text.reader(&[]).unwrap();
                ids.iter().for_each(|id| drop(reader.push(*id)));
            }
        }
        Ok(None) => {}
        Err(_) => refused += 1,
    };
    for file in ["bytes.gguf", "pieces.gguf"] {
        let whole = fs::read(data(file)).unwrap();
        for at in (0..whole.len().min(12_000)).step_by(29) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x15;
            try_out(Gguf::from_bytes(bytes).map_err(Into::into).and_then(|file| Text::of_gguf(&file)));
        }
    }
    for file in ["bytes.json", "pieces.json"] {
        let whole = fs::read(data(file)).unwrap();
        for at in (0..whole.len()).step_by(29) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x15;
            try_out(Text::open(folder.write("t.json", bytes)).map(Some));
        }
    }
    assert!(refused > 100, "{refused}");
}
