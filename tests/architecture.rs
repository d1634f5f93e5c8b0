//! The rooms stand in one order, and imports never run backwards.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Each room with what it may import besides itself.
const ROOMS: [(&str, &[&str]); 9] = [
    ("kind", &[]),
    ("duration", &[]),
    ("redaction", &[]),
    ("discovery", &["kind", "duration", "redaction"]),
    ("manager", &["kind", "duration", "redaction", "discovery"]),
    ("informer", &["kind", "duration", "redaction"]),
    ("controller", &["kind", "duration", "redaction", "discovery", "manager", "informer"]),
    ("meta", &["kind", "duration", "redaction", "discovery", "manager", "informer", "controller"]),
    ("testing", &["kind", "duration"]),
];

fn sources(room: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.join(room)];
    let mut files = vec![root.join(format!("{room}.rs"))];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// The rooms that a source names: `crate::room` anywhere, and `room::` inside `use crate::{…}`.
fn imported(source: &str) -> Vec<&'static str> {
    let mut text: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join(" ");
    let mut named = Vec::new();
    while let Some(begin) = text.find("use crate::{") {
        let (mut depth, mut end) = (0, begin);
        for (at, letter) in text[begin..].char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 1 => {
                    end = begin + at;
                    break;
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
        let tree = text[begin + "use crate::{".len()..end].to_owned();
        let mut depth = 0;
        let mut top = String::new();
        for letter in tree.chars() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ if depth == 0 => top.push(letter),
                _ => {}
            }
        }
        for part in top.split(',') {
            let first = part.trim().split("::").next().unwrap_or_default();
            named.extend(ROOMS.iter().map(|(room, _)| *room).filter(|room| *room == first));
        }
        text.replace_range(begin..end, "");
    }
    for (room, _) in ROOMS {
        if text.contains(&format!("crate::{room}::")) || text.contains(&format!("crate::{room};")) {
            named.push(room);
        }
    }
    named
}

#[test]
fn imports_never_run_backwards() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for (room, allowed) in ROOMS {
        for file in sources(room) {
            let source = fs::read_to_string(&file).unwrap();
            // What is built for tests alone may use the instruments for tests.
            let place = file.strip_prefix(root).unwrap().with_extension("");
            let is_test = place.iter().any(|part| part == "tests");
            for other in imported(&source) {
                let allowed = |name| allowed.contains(&name) || is_test && name == "testing";
                if other != room && !allowed(other) {
                    wrong.push(format!("{} imports {other}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_import_is_found_wherever_it_stands() {
    let source = "use crate::{\n kind::{A, B},\n manager::{C, tree::{D}},\n};\nlet x = crate::meta::y();\n// crate::informer::z";
    let mut found = imported(source);
    found.sort_unstable();
    assert_eq!(found, ["kind", "manager", "meta"]);
}

#[test]
fn only_the_functions_for_the_fuzzer_are_public_and_undocumented() {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut hidden = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            for after in source.split("#[doc(hidden)]").skip(1) {
                let mut lines = after.lines().map(str::trim);
                let item = lines.find(|line| !line.is_empty() && !line.starts_with("#["));
                hidden.extend(item.map(str::to_owned));
            }
        }
    }

    assert_eq!(hidden, ["pub mod fuzzing;"]);
}

#[test]
fn every_test_that_the_table_of_faults_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| ")).collect();
    let mut wrong = Vec::new();
    let mut named = 0;
    for (file, test) in table.split('`').filter_map(|part| part.split_once(".rs::")) {
        named += 1;
        let source = fs::read_to_string(root.join(format!("{file}.rs"))).unwrap_or_default();
        let begin = format!("fn {test}(");
        let before = source.split_once(&begin).map(|(before, _)| before.trim_end());
        let attributes = before.map(|before| before.rsplit("\n\n").next().unwrap_or_default());
        if !attributes.is_some_and(|it| it.contains("test]") || it.contains("test(")) {
            wrong.push(format!("{file}.rs has no test {test}"));
        }
    }
    for row in rows.iter().filter(|row| !row.starts_with("| case")) {
        let shown = row.trim_end_matches(['|', ' ']).rsplit(" | ").next().unwrap_or_default();
        if !shown.contains(".rs::") && !shown.starts_with("pending: ") {
            wrong.push(format!("neither shown nor pending: {row}"));
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 80, "they are read: {named}");
}

#[test]
fn no_example_and_no_document_uses_a_client_without_a_fence() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open = vec![root.join("examples"), root.join("docs"), root.join("deploy")];
    let mut files = vec![root.join("README.md")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { files.push(path) }
        }
    }

    let uses = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.contains("unfenced_client") || text.contains("cluster.client")
    };
    let wrong: Vec<_> = files.iter().filter(|file| uses(file)).collect();

    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(files.len() > 10, "they are read: {}", files.len());
}
