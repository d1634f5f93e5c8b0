//! Committed inputs of the fuzzer: real shapes, and inputs that once caused a failure.

use std::{fs, path::Path};

use crate::guard;

const SEED: u64 = 7;
const ROUNDS: usize = 40;

#[track_caller]
fn check(target: &str, promise: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files: Vec<_> = fs::read_dir(&corpus).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 3, "{} holds fewer than 3 inputs", corpus.display());
    for file in files {
        let data = fs::read(&file).unwrap();
        // Halves and doubles too: decoders fail at truncated and at repeated input.
        let (head, tail) = data.split_at(data.len() / 2);
        let mut inputs = vec![data.clone(), head.to_vec(), tail.to_vec(), data.repeat(2)];
        // Unlike the fuzzer's, these mutations are not guided by coverage; they take a second.
        let mut random = fastrand::Rng::with_seed(SEED);
        inputs.extend((0..ROUNDS).map(|_| mutated(&data, &mut random)));
        for input in inputs {
            if let Err(why) = guard::run(|| promise(&input)) {
                let input = String::from_utf8_lossy(&input);
                panic!("{}: {why}, by {input}", file.display());
            }
        }
    }
}

/// Returns a copy with a few bytes removed, doubled or replaced.
fn mutated(data: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    const PIECES: [&[u8]; 12] = [
        b"null", b"{}", b"[]", b"\"\"", b"-1", b"1e308", b"\\u0000", b"\n", b",", b":", b"true",
        b"\xff",
    ];
    let mut data = data.to_vec();
    for _ in 0..random.usize(1..4) {
        let start = random.usize(0..=data.len());
        let end = (start + random.usize(0..24)).min(data.len());
        let new = match random.u8(0..4) {
            0 => Vec::new(),
            1 => PIECES[random.usize(0..PIECES.len())].to_vec(),
            2 => data[start..end].repeat(2),
            _ => {
                let from = random.usize(0..=data.len());
                data[from..(from + random.usize(0..24)).min(data.len())].to_vec()
            }
        };
        data.splice(start..end, new);
    }
    data
}

#[test]
fn lines_of_a_watch_keep_their_promises() {
    check("watch_lines", super::watch_lines);
}

#[test]
fn responses_of_hooks_keep_their_promises() {
    check("hook_response", super::hook_response);
}

#[test]
fn crds_keep_their_promises() {
    check("crd", super::crd);
}

#[test]
fn selectors_keep_their_promises() {
    check("selectors", super::selectors);
}

#[test]
fn merges_keep_their_promises() {
    check("merge", super::merge);
}
