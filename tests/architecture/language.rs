//! Language: comments, documents, messages and names of tests use plain words of the field.

use std::{fs, path::Path};

use super::documents;

/// Phrases without a noun, and everyday verbs in place of the field's.
const VAGUE: [&str; 55] = [
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "someone",
    "is no such",
    "are no such",
    "none that",
    "told of",
    "is told",
    "are told",
    "be told",
    "tells it",
    "tells of",
    "tells the",
    "tell the",
    "tell it",
    "telling",
    "is heard",
    "heard of",
    "hear of",
    "hears",
    "take away",
    "takes away",
    "took away",
    "taken away",
    "goes on",
    "go on",
    "going on",
    "went on",
    "come back",
    "comes back",
    "came back",
    "coming back",
    "comes out",
    "goes back",
    "held up",
    "hold up",
    "holds up",
    "gives up",
    "gave up",
    "given up",
    "lets go",
    "looked at again",
    "roster",
    "rehears",
    "doubted",
    "churn",
    "keeper",
    "blueprint",
    "errand",
    "tally",
    "outage",
    "messenger",
    "standstill",
];

#[test]
fn documents_use_the_words_of_the_field() {
    let mut found = Vec::new();
    for (document, text) in documents() {
        // Generated from the scenario tests.
        if document.ends_with("docs/scenarios.md") {
            continue;
        }
        // Text between backticks is code.
        let words: Vec<_> = text.split('`').step_by(2).collect();
        let words = words.join("`").split_whitespace().collect::<Vec<_>>().join(" ");
        let vague = vague_phrase(&words);
        found.extend(vague.map(|phrase| format!("{}: {phrase}", document.display())));
    }

    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Words with which no comment begins: the sentence lacks its noun or verb.
const HEADLESS: [&str; 23] = [
    "What", "Whether", "How", "Who", "Whoever", "Whatever", "One", "It", "Its", "They", "Those",
    "These", "That", "Also", "Nobody", "None", "Nothing", "So", "Such", "Somebody", "Of", "Which",
    "Why",
];

/// First words of [`HEADLESS`] that the name of a test may have, as in `one_replica_leads`.
const SUBJECTS: [&str; 2] = ["One", "Nothing"];

/// Files and folders with comments, messages or names. The corpus of the fuzzer has neither.
const TEXTS: [&str; 12] = [
    "src",
    "crates",
    "tests",
    "examples",
    "benches",
    "fuzz/fuzz_targets",
    "fuzz/Cargo.toml",
    "deploy",
    ".ci",
    "Cargo.toml",
    "clippy.toml",
    "deny.toml",
];

#[test]
fn comments_begin_with_their_noun_and_all_texts_use_plain_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open: Vec<_> = TEXTS.map(|room| root.join(room)).into();
    let (mut wrong, mut read) = (Vec::new(), 0);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        // The list of vague phrases stands in this file.
        if path.ends_with(file!()) {
            continue;
        }
        let Ok(source) = fs::read_to_string(&path) else { continue };
        read += 1;
        let found = flaws(&source, comment_mark(&path, &source));
        wrong.extend(found.iter().map(|(line, flaw)| format!("{}:{line}: {flaw}", path.display())));
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 300, "only {read} files were read");
}

/// Returns the characters that begin a comment of a file, if it has comments.
fn comment_mark(path: &Path, source: &str) -> Option<&'static str> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.rsplit('.').next().unwrap_or_default() {
        "rs" | "js" | "go" => Some("//"),
        "yaml" | "toml" | "py" | "sh" | "Dockerfile" | "dockerignore" => Some("#"),
        _ => source.starts_with("#!").then_some("#"),
    }
}

/// Returns the lines of a text with a comment that lacks its noun, or with a vague phrase. A phrase
/// may span lines of one comment.
fn flaws(source: &str, mark: Option<&str>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut previous: Option<&str> = None;
    for (number, line) in source.lines().enumerate() {
        let trimmed = line.trim_start();
        let comment = mark.and_then(|mark| trimmed.strip_prefix(mark));
        let text = comment.unwrap_or(line).trim_start_matches(['/', '!', '#']).trim();
        let begins = previous.is_none();
        let first = text.split(|letter: char| !letter.is_alphabetic()).next().unwrap_or_default();
        let is_headless = comment.is_some() && begins && HEADLESS.contains(&first);
        let joined = format!("{} {text}", previous.unwrap_or_default());
        let is_vague_line = match previous {
            // The previous line was checked by itself.
            Some(before) => vague_phrase(&joined) != vague_phrase(before),
            None => vague_phrase(text).is_some(),
        };
        let name = function(line).unwrap_or_default();
        if is_headless || is_vague_line || is_vague_name(&name) {
            found.push((number + 1, text.to_owned()));
        }
        previous = comment.map(|_| text).filter(|text| !text.is_empty());
    }
    found
}

/// Returns the first vague phrase that stands at the begin of a word.
fn vague_phrase(text: &str) -> Option<&'static str> {
    let words = text.to_lowercase();
    let stands = |at: usize, phrase: &str| {
        // As in "holds up to five names".
        let is_bound = phrase.ends_with(" up") && words[at + phrase.len()..].starts_with(" to ");
        !words[..at].ends_with(char::is_alphanumeric) && !is_bound
    };
    VAGUE
        .into_iter()
        .find(|phrase| words.match_indices(phrase).any(|(at, phrase)| stands(at, phrase)))
}

/// Returns whether the name of a function has a vague phrase, or lacks its noun.
fn is_vague_name(name: &str) -> bool {
    let first = name.split(' ').next().filter(|_| name.matches(' ').count() > 2);
    let is_headless = HEADLESS
        .iter()
        .filter(|word| !SUBJECTS.contains(word))
        .any(|word| first.is_some_and(|first| first == word.to_lowercase()));
    is_headless || vague_phrase(name).is_some()
}

/// Returns the words of the name of a function that a line defines.
fn function(line: &str) -> Option<String> {
    let (before, after) = line.split_once("fn ")?;
    let is_definition = before
        .split_whitespace()
        .all(|word| ["async", "const"].contains(&word) || word.starts_with("pub"));
    let name = after.split(['(', '<']).next().filter(|_| is_definition)?;
    Some(name.replace('_', " "))
}

#[test]
fn flaws_are_found_in_comments_of_every_kind_and_in_names() {
    #[track_caller]
    fn check(source: &str, mark: &str, lines: &[usize]) {
        let found: Vec<_> = flaws(source, Some(mark)).into_iter().map(|(line, _)| line).collect();
        assert_eq!(found, lines, "{source}");
    }

    check("/// Of the epoch.\n/// Of the run.\n\n//! Queue.", "//", &[1]);
    check("let x = 1;\n// It waits.\n//\n// These too.", "//", &[2, 4]);
    check("# What is run.\nwhat = 1\nname: [x] # Its list.", "#", &[1]);
    check("/// A slow source holds\n/// up the others.", "//", &[2]);
    check("/// Names, of which it holds up to five.", "//", &[]);
    check("/// Waits if the server goes back.\n/// Then retries.", "//", &[1]);
    check("    async fn what_is_lost_is_repeated() {}", "//", &[1]);
    check("    async fn one_replica_that_waits_leads() {}", "//", &[]);
    check("fn server_goes_back_in_time() {}", "//", &[1]);
}
