//! Imports follow the order of the rooms, and documents name only what exists, in plain words.

mod cycles;
mod imports;
mod language;
mod main_types;
mod names;
mod objects;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders with the sources of the packages: the library and the program, and each of `crates/`.
fn source_folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path().join("src"));
    crates.chain([root.join("src")]).collect()
}

/// Returns whether a file below the repository's root has a test of that name.
fn has_test(file: &str, test: &str) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let source = fs::read_to_string(path).unwrap_or_default();
    let before = source.split_once(&format!("fn {test}(")).map(|(before, _)| before.trim_end());
    let attributes = before.map(|before| before.rsplit("\n\n").next().unwrap_or_default());
    attributes.is_some_and(|it| it.contains("test]") || it.contains("test("))
}

#[test]
fn only_the_functions_for_the_fuzzer_are_public_and_undocumented() {
    let mut open = source_folders();
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
fn every_test_in_the_table_of_faults_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| ")).collect();
    let mut wrong = Vec::new();
    let mut named = 0;
    for (file, test) in table.split('`').filter_map(|part| part.split_once(".rs::")) {
        named += 1;
        if !has_test(&format!("{file}.rs"), test) {
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
    assert!(named > 80, "only {named} names were found");
}

#[test]
fn every_row_about_metacontroller_names_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/metacontroller.md")).unwrap();
    let (mut rows, mut wrong) = (0, Vec::new());
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let shown = row.trim_end_matches(['|', ' ']).rsplit(" | ").next().unwrap_or_default();
        if shown == "shown by" {
            continue;
        }
        rows += 1;
        let names = shown.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::"));
        let names: Vec<_> = names.collect();
        if names.is_empty() || !names.iter().all(|(file, test)| has_test(file, test)) {
            wrong.push(row);
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows > 150, "only {rows} rows were found");
}

#[test]
fn every_row_about_controller_runtime_names_a_test_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/controller-runtime.md")).unwrap();
    let (mut open, mut sources) = (source_folders(), String::new());
    open.push(root.join("tests"));
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    let (mut rows, mut wrong) = (0, Vec::new());
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let shown = row.trim_end_matches(['|', ' ']).rsplit(" | ").next().unwrap_or_default();
        if shown.starts_with("test") {
            continue;
        }
        rows += 1;
        let names = shown.split('`').skip(1).step_by(2);
        let is_test = |name: &&str| {
            let is_of_a_name = |c: char| c.is_lowercase() || c.is_ascii_digit() || c == '_';
            name.matches('_').count() >= 2 && name.chars().all(is_of_a_name)
        };
        let tests: Vec<_> = names.filter(is_test).collect();
        let is_explained = ["absent: ", "by the type"].iter().any(|marker| shown.contains(marker));
        let is_missing = |test: &&str| !sources.contains(&format!("fn {test}("));
        if tests.is_empty() && !is_explained || tests.iter().any(is_missing) {
            wrong.push(row);
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows > 200, "only {rows} rows were found");
}

#[test]
fn code_of_the_guide_is_compiled_or_quoted_from_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lines = |text: &str| -> String {
        text.lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(|it| format!("{it}\n"))
            .collect()
    };
    let examples = fs::read_dir(root.join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let examples: String = examples
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| lines(&fs::read_to_string(path).unwrap()))
        .collect();
    let guide = fs::read_to_string(root.join("docs/library.md")).unwrap();
    let (mut compiled, mut quoted, mut wrong) = (0, 0, Vec::new());
    for block in guide.split("```rust").skip(1) {
        let (attributes, rest) = block.split_once('\n').unwrap();
        let code = lines(rest.split("```").next().unwrap());
        match attributes {
            "" | ",no_run" => compiled += 1,
            _ if examples.contains(&code) => quoted += 1,
            _ => wrong.push(code),
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compiled >= 6 && quoted >= 3, "{compiled} compiled, {quoted} quoted");
}

/// The blocks of the README leave out the function around them, so that none compiles by itself.
#[test]
fn code_of_the_readme_has_only_lines_of_compiled_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compiled = fs::read_to_string(root.join("docs/library.md")).unwrap();
    let mut open = source_folders();
    open.push(root.join("examples"));
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            compiled.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (mut lines, mut wrong) = (0, Vec::new());
    for block in readme.split("```rust").skip(1) {
        let code = block.split("```").next().unwrap();
        for line in code.lines().skip(1) {
            let line = line.split(" // ").next().unwrap_or_default().trim();
            // Imports differ by the program.
            if !line.starts_with("use ") && !compiled.contains(line) {
                wrong.push(line);
            }
            lines += 1;
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(lines > 15, "only {lines} lines were found");
}

#[test]
fn guide_adopts_a_controller_of_kube_in_ten_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("docs/library.md")).unwrap();
    let section = guide.split("\n## Take a kube-rs controller over").nth(1).unwrap();
    let mut blocks = section.split("```rust").skip(1).map(|block| {
        let code = block.split("```").next().unwrap().lines().skip(1);
        let code = code.map(|line| line.trim().trim_end_matches(';'));
        code.filter(|line| !line.is_empty() && !line.starts_with("//")).collect::<Vec<_>>()
    });
    let (before, after) = (blocks.next().unwrap(), blocks.next().unwrap());

    let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();

    assert_eq!(new.len(), 10, "{new:#?}");
}

#[test]
fn guide_states_the_lines_of_its_examples_and_none_is_longer_than_its_original() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("docs/library.md")).unwrap();
    let mut rows = 0;
    for row in guide.lines().filter(|line| line.starts_with("| [`")) {
        let cells: Vec<_> = row.split(" | ").collect();
        let name = cells[0].split('`').nth(1).unwrap();
        let source = fs::read_to_string(root.join("examples").join(name)).unwrap();
        let stated: usize = cells[1].parse().unwrap();
        let original: usize = cells[3].parse().unwrap();

        assert_eq!(stated, source.lines().count(), "{name}");
        assert!(stated <= original, "{name}");
        rows += 1;
    }
    assert_eq!(rows, 3);
}

/// Documents that name files of this repository, with their prose.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files =
        ["CHANGELOG.md", "DESIGN.md", "deploy/README.md"].map(|file| root.join(file)).to_vec();
    for source in source_folders() {
        let package = source.parent().unwrap();
        files.extend([source.join("lib.rs"), package.join("README.md")]);
    }
    for folder in ["docs", "docs/decisions"] {
        let entries = fs::read_dir(root.join(folder)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    }
    let prose = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let is_rust = file.extension().is_some_and(|extension| extension == "rs");
        let lines = text.lines().filter_map(|line| match is_rust {
            true => line.strip_prefix("//!"),
            false => Some(line),
        });
        // Code blocks name files of other repositories.
        let mut is_code = false;
        let prose = lines.filter(|line| {
            let fence = line.trim_start().starts_with("```");
            is_code ^= fence;
            !fence && !is_code
        });
        let prose = prose.collect::<Vec<_>>().join("\n");
        (file, prose)
    };
    files.into_iter().map(prose).collect()
}

/// Returns whether a file below the repository's root defines a function of that name.
fn has_function(file: &str, function: &str) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let source = fs::read_to_string(path).unwrap_or_default();
    source.contains(&format!("fn {function}(")) || source.contains(&format!("fn {function}<"))
}

#[test]
fn every_file_and_function_in_a_document_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut wrong, mut named) = (Vec::new(), 0);
    for (document, text) in documents() {
        let mut missing = |what: &str| wrong.push(format!("{}: {what}", document.display()));
        // Prose about the sources may name any function, other documents name tests.
        let is_rust = document.extension().is_some_and(|extension| extension == "rs");
        let is_defined = if is_rust { has_function } else { has_test };
        for name in text.split('`').skip(1).step_by(2) {
            let (file, function) = match name.split_once("::") {
                Some((file, function)) => (file, Some(function)),
                None => (name, None),
            };
            let is_file = ["src/", "crates/", "tests/", "examples/", "benches/", "fuzz/", "docs/"]
                .iter()
                .any(|folder| file.starts_with(folder) && !file.contains([' ', '*']));
            if !is_file {
                continue;
            }
            named += 1;
            if !root.join(file).exists() || function.is_some_and(|it| !is_defined(file, it)) {
                missing(name);
            }
        }
        let folder = document.parent().unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if !link.contains(':') && !folder.join(file).exists() {
                missing(link);
            }
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 100, "only {named} names were found");
}

#[test]
fn the_design_is_a_map_of_at_most_2800_words() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("DESIGN.md");
    let words = fs::read_to_string(path).unwrap().split_whitespace().count();

    assert!(words <= 2800, "{words} words: decisions, figures and limits are pages of docs/");
}

/// Maximum number of mechanisms. Lower it with each that goes.
const MECHANISMS: usize = 121;

#[test]
fn mechanisms_are_counted_and_no_more_than_before() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("DESIGN.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, list) = text.split_once("| room | | mechanisms |\n|---|---|---|\n").unwrap();
    let rows = list.lines().take_while(|line| line.starts_with('|'));

    let counted = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let names = cells[3].split(", ").count();
        assert_eq!(cells[2], names.to_string(), "{row}");
        names
    });

    assert_eq!(counted.sum::<usize>(), MECHANISMS);
}

/// Maximum length of a decision, in words.
const DECISION_WORDS: usize = 550;

#[test]
fn every_decision_is_in_the_index_short_and_has_its_three_parts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/decisions");
    let index = fs::read_to_string(folder.join("README.md")).unwrap();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "README.md" {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let parts = ["\n## Context\n", "\n## Decision\n", "\n## Consequence\n"];
        assert!(index.contains(&format!("({name})")), "{name} is not in the index");
        assert!(parts.iter().all(|part| text.contains(part)), "{name} lacks a part");
        let words = text.split_whitespace().count();
        assert!(words <= DECISION_WORDS, "{name} has {words} words, of at most {DECISION_WORDS}");
    }
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
    assert!(files.len() > 10, "only {} files were read", files.len());
}
