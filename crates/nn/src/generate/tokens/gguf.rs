//! Tokenizers in GGUF files: lists of symbols in the metadata, of two kinds.

use super::{Tokens, guarded};
use crate::{Error, Result};
use schwann_core::io::gguf::{Gguf, List};
use tokenizers::decoders::{byte_fallback::ByteFallback, fuse::Fuse, sequence::Sequence as Decoders, strip::Strip};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::{
    byte_level::ByteLevel,
    sequence::Sequence as Splits,
    split::{Split, SplitPattern},
};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

/// The most symbols, several times those of the largest that are published.
const MOST_TOKENS: usize = 1 << 20;
/// The most pairs that are merged.
const MOST_MERGES: usize = 1 << 21;
/// The most bytes of a symbol whose pairs are looked for, and of all such.
const MOST_OF_TOKEN: usize = 512;
const MOST_OF_TOKENS: usize = 1 << 24;

/// What stands for a space.
const SPACE: &str = "▁";
/// The kinds of symbols that are not pieces of text as any other.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// How text is split before bytes are merged. After GPT-2's way, which the package has, these are Llama 3's and Qwen 2's,
/// which differ in digits, and the one for files that name none.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];

/// A way to split text, by the name that files give it.
struct Way {
    name: &'static str,
    splits: &'static [&'static str],
    /// Whether a whole piece that is a symbol is taken as such, without merging.
    whole: bool,
    /// Whether a text begins with a mark where the file does not say.
    begins: bool,
    /// Whether letters and their accents are composed first.
    composed: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "default", splits: &DEFAULT, whole: false, begins: false, composed: false },
    Way { name: "gpt-2", splits: &[GPT2], whole: false, begins: false, composed: false },
    Way { name: "llama-bpe", splits: &[LLAMA3], whole: true, begins: true, composed: false },
    Way { name: "qwen2", splits: &[QWEN2], whole: false, begins: false, composed: true },
];

fn key(part: &str) -> String {
    format!("tokenizer.ggml.{part}")
}

/// The tokenizer of a file and the symbols that end a text; `None` if there is none.
pub(in super::super) fn read(file: &Gguf) -> Result<Option<(Tokens, Vec<i32>)>> {
    if !file.metadata().contains_key(&key("model")) {
        return Ok(None);
    }
    let source = Source::read(file)?;
    let (mut tokenizer, begins) = match file.text(&key("model"))? {
        "gpt2" => source.byte_level()?,
        "llama" => (source.sentence_piece()?, true),
        other => return Err(Error::argument(key("model"), other, "gpt2 or llama")),
    };
    let marks = |kind: i64, special: bool| -> Vec<AddedToken> {
        let these = source.tokens.iter().enumerate().filter(|(i, token)| source.kind(*i) == kind && !token.is_empty());
        these.map(|(_, token)| AddedToken::from(token.as_str(), special).normalized(false)).collect()
    };
    tokenizer.add_special_tokens(&marks(CONTROL, true));
    tokenizer.add_tokens(&marks(USER_DEFINED, false));
    let begins = source.truth("add_bos_token", begins)?;
    let begin = if begins { source.symbol("bos_token_id")? } else { None };
    let mut stops = vec![];
    for part in ["eos_token_id", "eot_token_id"] {
        stops.extend(source.symbol(part)?.map(|id| id as i32));
    }
    Ok(Some((Tokens::new(tokenizer, begin)?, stops)))
}

struct Source<'a> {
    file: &'a Gguf,
    tokens: &'a [String],
    kinds: Option<&'a [i32]>,
}

impl<'a> Source<'a> {
    fn read(file: &'a Gguf) -> Result<Source<'a>> {
        let tokens = file.texts(&key("tokens"))?;
        if !(1..=MOST_TOKENS).contains(&tokens.len()) {
            let expected = format!("1 to {MOST_TOKENS}");
            return Err(Error::argument(key("tokens"), format!("a list of {}", tokens.len()), expected));
        }
        let kinds = match file.metadata().contains_key(&key("token_type")) {
            false => None,
            true => match file.list(&key("token_type"))? {
                List::I32(kinds) if kinds.len() == tokens.len() => Some(&kinds[..]),
                _ => return Err(unfit("token_type", "i32", tokens.len())),
            },
        };
        Ok(Source { file, tokens, kinds })
    }

    fn kind(&self, id: usize) -> i64 {
        self.kinds.map_or(1, |kinds| kinds[id].into())
    }

    fn truth(&self, part: &str, default: bool) -> Result<bool> {
        let name = key(part);
        if self.file.metadata().contains_key(&name) { Ok(self.file.truth(&name)?) } else { Ok(default) }
    }

    /// A symbol that the metadata names.
    fn symbol(&self, part: &str) -> Result<Option<u32>> {
        let name = key(part);
        if !self.file.metadata().contains_key(&name) {
            return Ok(None);
        }
        let id = self.file.whole(&name)?;
        let known = u32::try_from(id).ok().filter(|id| (*id as usize) < self.tokens.len());
        known.map(Some).ok_or_else(|| Error::argument(name, id, format!("less than {}", self.tokens.len())))
    }

    /// The numbers of symbols; of two that are the same text, the first is meant.
    fn vocabulary(&self) -> Vocab {
        let mut all = Vocab::new();
        for (id, token) in self.tokens.iter().enumerate() {
            all.entry(token.clone()).or_insert(id as u32);
        }
        all
    }

    /// Bytes, written as one character each, that are merged in the order of a list.
    fn byte_level(&self) -> Result<(Tokenizer, bool)> {
        let pre = key("pre");
        let name = if self.file.metadata().contains_key(&pre) { self.file.text(&pre)? } else { "default" };
        let Some(way) = WAYS.iter().find(|way| way.name == name) else {
            let known: Vec<&str> = WAYS.iter().map(|way| way.name).collect();
            return Err(Error::argument(pre, name, format!("one of {}", known.join(", "))));
        };
        let vocabulary = self.vocabulary();
        if let Some(missing) = ByteLevel::alphabet().iter().find(|c| !vocabulary.contains_key(&c.to_string())) {
            return Err(Error::argument(key("tokens"), format!("without {missing:?}"), "a symbol for each byte"));
        }
        let lines = self.file.texts(&key("merges"))?;
        bound_merges(lines.len())?;
        let pair = |line: &String| match line.split_once(' ') {
            Some((a, b)) => Ok((a.to_owned(), b.to_owned())),
            None => Err(Error::argument(key("merges"), format!("with {line:?}"), "two symbols in each line")),
        };
        let merges = lines.iter().map(pair).collect::<Result<Merges>>()?;
        let model = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(way.whole);
        let mut tokenizer = Tokenizer::new(guarded(|| model.build()).map_err(Error::file)?);
        if way.composed {
            tokenizer.with_normalizer(Some(NFC));
        }
        let mut splits = vec![];
        for pattern in way.splits {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(Error::file)?;
            splits.push(split.into());
        }
        splits.push(ByteLevel::new(false, true, false).into());
        tokenizer.with_pre_tokenizer(Some(Splits::new(splits)));
        tokenizer.with_decoder(Some(ByteLevel::default()));
        Ok((tokenizer, way.begins))
    }

    /// Characters that are merged to the symbol with the highest score, and bytes for those that are no symbols.
    fn sentence_piece(&self) -> Result<Tokenizer> {
        if self.truth("remove_extra_whitespaces", false)? {
            return Err(Error::argument(key("remove_extra_whitespaces"), true, "false: spaces are kept"));
        }
        let vocabulary = self.vocabulary();
        let byte = |byte: u8| format!("<0x{byte:02X}>");
        if let Some(missing) = (0..=255).map(byte).find(|token| !vocabulary.contains_key(token)) {
            return Err(Error::argument(key("tokens"), format!("without {missing}"), "a symbol for each byte"));
        }
        let merges = self.scored(&vocabulary)?;
        let model = BPE::builder().vocab_and_merges(vocabulary, merges).byte_fallback(true);
        let mut tokenizer = Tokenizer::new(guarded(|| model.build()).map_err(Error::file)?);
        let spaces = Replace::new(" ", SPACE).map_err(Error::file)?;
        let prefix = self.truth("add_space_prefix", true)?;
        tokenizer.with_normalizer(Some(Normalizers::new(match prefix {
            true => vec![Prepend::new(SPACE.to_owned()).into(), spaces.into()],
            false => vec![spaces.into()],
        })));
        let mut decoders =
            vec![Replace::new(SPACE, " ").map_err(Error::file)?.into(), ByteFallback::new().into(), Fuse::new().into()];
        if prefix {
            decoders.push(Strip::new(' ', 1, 0).into());
        }
        tokenizer.with_decoder(Some(Decoders::new(decoders)));
        Ok(tokenizer)
    }

    /// All pairs of symbols that are a symbol together, the one with the highest score first.
    fn scored(&self, vocabulary: &Vocab) -> Result<Merges> {
        let scores = match self.file.list(&key("scores"))? {
            List::F32(scores) if scores.len() == self.tokens.len() => scores,
            _ => return Err(unfit("scores", "f32", self.tokens.len())),
        };
        let is_text = |id: usize| !matches!(self.kind(id), UNKNOWN | CONTROL | BYTE);
        let piece = |text: &str| vocabulary.get(text).is_some_and(|id| is_text(*id as usize));
        let mut pairs = vec![];
        let mut bytes = 0;
        for (id, token) in self.tokens.iter().enumerate().filter(|(id, _)| is_text(*id)) {
            bytes += token.len();
            if token.len() > MOST_OF_TOKEN || bytes > MOST_OF_TOKENS {
                let got = format!("with symbol {id} of {} bytes, {bytes} with those before it", token.len());
                let expected = format!("{MOST_OF_TOKEN} bytes each, and {MOST_OF_TOKENS} together");
                return Err(Error::argument(key("tokens"), got, expected));
            }
            for (at, _) in token.char_indices().skip(1) {
                let (a, b) = token.split_at(at);
                if piece(a) && piece(b) {
                    // Of equal scores, which are those of one symbol, the longest beginning goes first.
                    pairs.push((scores[id], at, (a, b)));
                }
            }
            bound_merges(pairs.len())?;
        }
        pairs.sort_by(|(score, at, _), (other, other_at, _)| other.total_cmp(score).then(other_at.cmp(at)));
        Ok(pairs.into_iter().map(|(_, _, (a, b))| (a.to_owned(), b.to_owned())).collect())
    }
}

fn bound_merges(count: usize) -> Result<()> {
    match count > MOST_MERGES {
        true => Err(Error::argument(key("merges"), format!("{count} pairs"), format!("{MOST_MERGES} at most"))),
        false => Ok(()),
    }
}

fn unfit(part: &str, kind: &str, count: usize) -> Error {
    Error::argument(key(part), "another list", format!("{count} values of {kind}, one for each symbol"))
}
