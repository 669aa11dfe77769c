//! Compressed files, whole, damaged and cut off.

use std::io::Write;

use crate::common::{complaint, load};
use flate2::write::GzEncoder;
use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &str) -> Vec<u8> {
    compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
}

/// `n` rows of JSONL.
fn lines(n: usize) -> String {
    let row = |i| format!("{{\"text\":\"{i} of {n}, {}\"}}\n", i * i * 7919);
    (0..n).map(row).collect()
}

#[test]
fn compressed_files_are_read_as_what_is_in_them() {
    let (row, table) = (lines(1), "text\na\n\"b\nc\"\n");
    let array = format!("[{}]", row.trim());
    for compress in [gzip, zstd] {
        for (name, text, rows) in [
            ("a.jsonl.gz", lines(300), 300),
            ("a.jsonl.zst", lines(20_000), 20_000),
            ("a.NDJSON.GZ", row.clone(), 1),
            ("a.json.zst", array.clone(), 1),
            ("a.csv.gz", table.to_owned(), 2),
            ("a.tsv.Zst", table.to_owned(), 2),
            ("a.jsonl", row.clone(), 1),
        ] {
            // What the bytes are counts, and not which of the two extensions a name has.
            let dataset =
                load(name, compress(&text)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(dataset.num_train_rows(), rows, "{name}");
        }
    }
}

#[test]
fn all_members_and_frames_of_a_file_are_read() {
    let skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc";
    for (name, parts) in [
        (
            "a.jsonl.gz",
            vec![gzip(&lines(2)), gzip(""), gzip(&lines(3))],
        ),
        (
            "a.jsonl.zst",
            vec![
                zstd(&lines(2)),
                zstd(""),
                skippable.to_vec(),
                zstd(&lines(3)),
            ],
        ),
        ("a.jsonl.zst", vec![skippable.to_vec(), zstd(&lines(5))]),
    ] {
        let dataset = load(name, parts.concat()).unwrap();
        assert_eq!(dataset.num_train_rows(), 5, "{name}");
    }
}

#[test]
fn damaged_files_are_named_and_their_damage() {
    let text = lines(2000);
    let changed = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] ^= 0x10;
        bytes
    };
    let cut = |bytes: Vec<u8>, less: usize| bytes[..bytes.len() - less].to_vec();
    let (gz, zst) = (gzip(&text), zstd(&text));
    let mut all = String::new();
    for (name, bytes) in [
        ("cut.jsonl.gz", cut(gz.clone(), 100)),
        ("without-length.jsonl.gz", cut(gz.clone(), 4)),
        ("checksum.jsonl.gz", changed(gz.clone(), gz.len() - 8)),
        ("empty.jsonl.gz", Vec::new()),
        ("text.csv.gz", b"text\na\n".to_vec()),
        (
            "then-text.jsonl.gz",
            [gz.clone(), text.clone().into_bytes()].concat(),
        ),
        ("cut.jsonl.zst", cut(zst.clone(), 100)),
        ("without-checksum.jsonl.zst", cut(zst.clone(), 4)),
        ("checksum.jsonl.zst", changed(zst.clone(), zst.len() - 1)),
        ("empty.jsonl.zst", Vec::new()),
        ("text.json.zst", b"[{\"text\": \"a\"}]".to_vec()),
        (
            "then-text.jsonl.zst",
            [zst.clone(), text.into_bytes()].concat(),
        ),
        (
            "cut-frame-to-skip.jsonl.zst",
            b"\x50\x2a\x4d\x18\x03\x00\x00\x00ab".to_vec(),
        ),
    ] {
        all += &complaint(&load(name, bytes).unwrap_err());
    }
    insta::assert_snapshot!(all);
}

#[test]
fn extensions_of_other_archives_are_unknown() {
    for name in ["a.gz", "a.tar.gz", "a.jsonl.bz2", "a.jsonl.gz.zst", "gz"] {
        let error = load(name, gzip(&lines(1))).unwrap_err();
        assert!(error.to_string().contains("no known extension"), "{error}");
    }
}

proptest! {
    #[test]
    fn no_damage_panics_or_goes_unseen(at in 0_usize..1000, flip in 1_u8..=255, is_gzip: bool) {
        let text = lines(40);
        let (name, mut bytes) = if is_gzip {
            ("a.jsonl.gz", gzip(&text))
        } else {
            ("a.jsonl.zst", zstd(&text))
        };
        let at = at % bytes.len();
        bytes[at] ^= flip;
        // Names and times in a header are not checked.
        if let Ok(dataset) = load(name, bytes) {
            prop_assert_eq!(dataset.num_train_rows(), 40);
        }
    }
}
