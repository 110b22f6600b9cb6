//! Malformed GGUF files.

use super::{Case, Format};

fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

fn header(version: u32, tensors: u64, entries: u64) -> Vec<u8> {
    [b"GGUF", &version.to_le_bytes()[..], &tensors.to_le_bytes(), &entries.to_le_bytes()].concat()
}

/// A metadata entry `k`.
fn entry(kind: u32, value: &[u8]) -> Vec<u8> {
    [&text("k")[..], &kind.to_le_bytes(), value].concat()
}

/// A list of so many values of a type, and what follows.
fn list(kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat()
}

fn tensor(name: impl AsRef<[u8]>, sizes: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let sizes: Vec<u8> = sizes.iter().flat_map(|n| n.to_le_bytes()).collect();
    let axes = (sizes.len() / 8) as u32;
    [&text(name)[..], &axes.to_le_bytes(), &sizes, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

/// A file of these tensors and so many bytes of data.
fn file(tensors: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut bytes = [header(3, tensors.len() as u64, 0), tensors.concat()].concat();
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.resize(bytes.len() + data, 0xff);
    bytes
}

pub(super) fn cases() -> Vec<Case> {
    let case = |bytes: Vec<u8>, says| Case { format: Format::Gguf, bytes, says };
    let meta = |entries: &[Vec<u8>]| [header(3, 0, entries.len() as u64), entries.concat(), vec![7; 64]].concat();
    let alignment =
        |kind: u32, value: &[u8]| meta(&[[&text("general.alignment")[..], &kind.to_le_bytes(), value].concat()]);
    let one = |sizes: &[u64], kind, offset, data| file(&[tensor("a", sizes, kind, offset)], data);
    let deep = list(9, 1, &[]).repeat(100_000);
    let many = [header(3, 70_000, 0), vec![0; 70_000 * 24]].concat();
    let q8_0 = |name: &str, offset| tensor(name, &[32], 8, offset);
    // Much that is right before something is wrong: what is kept of it takes memory.
    let bad = entry(13, &[]);
    let keys = (0..60_000).map(|i| [&text(format!("{i:x}"))[..], &[0; 5]].concat());
    let keys: Vec<Vec<u8>> = keys.chain([bad.clone()]).collect();
    let names: Vec<Vec<u8>> = (0..60_001).map(|i| tensor(format!("{:x}", i % 60_000), &[], 99, 0)).collect();
    vec![
        case(meta(&keys), "metadata `k`: the type at offset"),
        case(file(&names, 0), "tensor `0` is given twice"),
        case(meta(&[entry(9, &list(8, 100_000, &[0; 800_000])), bad.clone()]), "metadata `k`: the type at offset"),
        case(meta(&[entry(9, &list(9, 70_000, &[0; 840_000])), bad]), "metadata `k`: the type at offset"),
        case(vec![], "truncated: the magic number at offset 0 takes 4 bytes, 0 remain"),
        case(b"GGML\x03\0\0\0".to_vec(), "the magic number GGUF is missing"),
        case(header(1, 0, 0), "version 1; expected 2 or 3"),
        case(header(4, 0, 0), "version 4; expected 2 or 3"),
        case(header(3u32.swap_bytes(), 0, 0), "a big-endian file; only little-endian files are read"),
        case(header(3, u64::MAX, 0), "the number of tensors at offset 8 is 18446744073709551615, but"),
        case(header(3, 0, u64::MAX), "the number of metadata entries at offset 16 is 18446744073709551615, but"),
        case(header(2, 1 << 40, 0), "the number of tensors at offset 8 is 1099511627776, but"),
        case(many, "70000 tensors; expected 65535 at most"),
        case(meta(&[entry(13, &[])]), "metadata `k`: the type at offset 33 is 13; expected 0 to 12"),
        case(meta(&[entry(7, &[2])]), "the truth value at offset 37 is 2; expected 0 or 1"),
        case(meta(&[entry(0, &[2]), entry(0, &[2])]), "metadata `k` is given twice"),
        case(meta(&[[text(""), vec![0; 20]].concat()]), "entry 1 of 1: the key `` has 0 bytes; expected 1 to 65535"),
        case(meta(&[[text([0xff, 0xfe]), vec![0; 20]].concat()]), "the key is not UTF-8 at offset 32"),
        case(meta(&[entry(8, &text(b"good\xc3"))]), "metadata `k`: text is not UTF-8 at offset 49"),
        case(meta(&[entry(8, &u64::MAX.to_le_bytes())]), "the length of text at offset 37 is 18446744073709551615"),
        case(meta(&[entry(9, &list(99, 0, &[]))]), "the type at offset 37 is 99; expected 0 to 12"),
        case(meta(&[entry(9, &list(12, u64::MAX / 8 + 1, &[]))]), "the length of a list at offset 41 is 2305843009"),
        case(meta(&[entry(9, &list(8, 1 << 60, &[]))]), "the length of a list at offset 41 is 1152921504606846976"),
        case(meta(&[entry(9, &list(9, 1 << 60, &[]))]), "the length of a list at offset 41 is 1152921504606846976"),
        case(meta(&[entry(9, &list(7, 2, &[1, 9]))]), "the truth value at offset 50 is 9"),
        case(meta(&[entry(9, &deep)]), "lists within lists at offset 73, 4 deep and more"),
        case(alignment(4, &[0; 4]), "`general.alignment` is the u32 0; expected a u32 that is a power of two"),
        case(alignment(4, &[24, 0, 0, 0]), "`general.alignment` is the u32 24"),
        case(alignment(8, &text("x".repeat(1000))), "`general.alignment` is the text `xxx"),
        case(file(&[tensor("", &[1], 0, 0)], 64), "tensor 1 of 1: a tensor has an empty name"),
        case(file(&[tensor("a\x1b", &[1], 0, 0)], 64), "control character"),
        case(file(&[tensor([b'a', 0x80], &[1], 0, 0)], 64), "tensor 1 of 1: the name is not UTF-8"),
        case(file(&[tensor("a".repeat(600), &[1], 0, 0)], 64), "has 600 bytes; expected 1 to 512"),
        case(file(&[q8_0("a", 0), q8_0("a", 64)], 128), "tensor `a` is given twice"),
        case(file(&[q8_0("a", 0), q8_0("b", 32)], 128), "tensor `b` starts at 128, inside `a`, which ends at 130"),
        case(file(&[q8_0("a", 0), q8_0("b", 0)], 128), "inside"),
        case(file(&[q8_0("a", 0), tensor("b", &[32], 99, 32)], 128), "tensor `b` starts at 128, inside `a`"),
        case(one(&[1; 5], 0, 0, 64), "`a` has 5 axes; expected 4 at most"),
        case(one(&[u64::MAX, u64::MAX], 0, 0, 64), "is beyond the address space"),
        case(one(&[0, u64::MAX, 2], 0, 0, 64), "is beyond the address space"),
        case(one(&[1 << 58], 0, 0, 64), "truncated at tensor `a` (F32 [288230376151711744])"),
        case(one(&[1], 0, u64::MAX, 64), "starts at 18446744073709551615, which is no multiple of the alignment 32"),
        case(one(&[1], 0, u64::MAX - 31, 64), "which is beyond the address space"),
        case(one(&[1], 0, 8, 64), "tensor `a` starts at 8, which is no multiple of the alignment 32"),
        case(
            one(&[1], 0, 64, 64),
            "truncated at tensor `a` (F32 [1]): it lies at 128 to 132, but the file ends at 128",
        ),
        case(one(&[33], 8, 0, 64), "rows of 33 numbers; Q8_0 takes multiples of 32"),
        case(one(&[128], 12, 0, 256), "rows of 128 numbers; Q4_K takes multiples of 256"),
        case(one(&[64], 36, 0, 256), "rows of 64 numbers; I2_S takes multiples of 128"),
        case(one(&[32, 0], 8, 0, 64), "expected at least one number of Q8_0, got shape [0, 32]"),
        case(one(&[0, 1 << 50], 8, 0, 64), "expected at least one number of Q8_0"),
        case(one(&[], 8, 0, 64), "rows of 1 numbers; Q8_0 takes multiples of 32"),
        case(one(&[256], 35, 0, 66), "tensor `a`: tensor: expected codes 0, 1 and 2, got 3 in row 0, at 0 or one of"),
        case(one(&[128], 36, 0, 64), "expected codes 0, 1 and 2, got 3 in row 0"),
        case(one(&[128], 36, 0, 63), "truncated at tensor `a` (I2_S [128])"),
        case(one(&[1], 99, 0, 64), "BF16, TQ1_0, TQ2_0, I2_S, got type 99"),
        case(one(&[1], 99, 128, 64), "truncated at tensor `a` (type 99 [1])"),
    ]
}
