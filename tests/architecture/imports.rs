//! Imports between rooms: each room imports exactly the rooms that its row names.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{cycles::Crate, names};

/// Each room of `src`, with the rooms and crates that it imports besides the [`SMALL`] ones.
const ROOMS: [(&str, &[&str]); 20] = [
    ("kind", &[]),
    ("duration", &[]),
    ("redaction", &[]),
    ("summary", &[]),
    ("guard", &[]),
    ("owner_gauge", &[]),
    ("token_bucket", &[]),
    ("list_page", &[]),
    ("resume_version", &[]),
    ("signals", &[]),
    ("apply", &[]),
    ("discovery", &[]),
    ("manager", &["discovery"]),
    ("informer", &[]),
    ("controller", &["discovery", "manager", "informer", "apply"]),
    ("meta", &["discovery", "manager", "informer", "controller", "apply", "transport"]),
    ("runtime", &["discovery", "manager", "informer", "controller"]),
    ("server", &["manager"]),
    ("fuzzing", &["discovery", "informer", "meta"]),
    (
        "cli",
        &[
            "discovery",
            "manager",
            "informer",
            "controller",
            "meta",
            "transport",
            "server",
            "signals",
            "testing",
        ],
    ),
];

/// Crates of `crates/` that the library re-exports as rooms. They import no room.
const CRATES: [&str; 2] = ["testing", "transport"];

/// Rooms that every room may import.
const SMALL: [&str; 9] = [
    "kind",
    "duration",
    "redaction",
    "summary",
    "guard",
    "owner_gauge",
    "token_bucket",
    "list_page",
    "resume_version",
];

/// Rooms that only the test modules of a room import.
const OF_TESTS: [(&str, &[&str]); 6] = [
    ("apply", &["testing"]),
    // The API server of an election; connections under a fence.
    ("manager", &["testing", "transport"]),
    ("controller", &["testing"]),
    ("meta", &["testing"]),
    ("runtime", &["testing"]),
    // The cluster and the election of a replica.
    ("server", &["controller", "testing"]),
];

/// Rooms with a number, in their order.
const NUMBERED: [&str; 5] = ["discovery", "manager", "informer", "controller", "meta"];

/// Rooms within `meta`, in their order. `meta.rs` says what each owns.
const ROOMS_OF_META: [&str; 17] = [
    "api",
    "json",
    "hooks",
    "definition",
    "resource",
    "recorder",
    "parent",
    "children",
    "options",
    "related",
    "protocol",
    "rollout",
    "parents",
    "apply",
    "sync",
    "runnable",
    "supervisor",
];

#[test]
fn each_module_of_the_crate_is_a_room() {
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let modules = library.lines().filter_map(|line| {
        let (before, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
        (before.is_empty() || before.starts_with("pub")).then_some(name)
    });
    // The binary is a room of its own.
    let modules: BTreeSet<_> = modules.chain(["cli"]).collect();

    assert_eq!(modules, ROOMS.iter().map(|(room, _)| *room).collect());
}

#[test]
fn crates_below_the_rooms_do_not_depend_on_the_library() {
    let mut read = 0;
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let is_library =
            |line: &str| ["pilotlight.", "pilotlight ="].iter().any(|it| line.starts_with(it));
        assert!(!manifest.lines().any(is_library), "{}", path.display());
        read += 1;
    }

    assert!(read > CRATES.len(), "only {read} crates were read");
}

/// Names of the rooms and of the crates that are rooms.
fn rooms() -> impl Iterator<Item = &'static str> {
    ROOMS.iter().map(|(room, _)| *room).chain(CRATES)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(room: &str) -> Vec<PathBuf> {
    let root = root().join("src");
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

/// Rooms that a source names: `library::room` anywhere, and `room::` inside `use library::{…}`.
fn imported(source: &str, library: &str) -> BTreeSet<&'static str> {
    let mut text: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join(" ");
    let mut named = BTreeSet::new();
    let opening = format!("use {library}::{{");
    while let Some(begin) = text.find(&opening) {
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
        let tree = text[begin + opening.len()..end].to_owned();
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
            named.extend(rooms().filter(|room| *room == first));
        }
        text.replace_range(begin..end, "");
    }
    for room in rooms() {
        let path = format!("{library}::{room}");
        if text.contains(&format!("{path}::")) || text.contains(&format!("{path};")) {
            named.insert(room);
        }
    }
    named
}

#[test]
fn imports_never_run_backwards() {
    let mut wrong = Vec::new();
    for (room, allowed) in ROOMS {
        let of_tests = OF_TESTS.iter().find(|(of, _)| *of == room).map_or(&[][..], |row| row.1);
        // The binary is a crate of its own.
        let library = if room == "cli" { "pilotlight" } else { "crate" };
        let (mut used, mut used_by_tests) = (BTreeSet::new(), BTreeSet::new());
        for file in sources(room) {
            let source = fs::read_to_string(&file).unwrap();
            let place = file.strip_prefix(root()).unwrap().with_extension("");
            let is_test = place.iter().any(|part| part == "tests");
            for other in imported(&source, library) {
                if other == room || SMALL.contains(&other) {
                    continue;
                }
                if allowed.contains(&other) {
                    used.insert(other);
                } else if is_test && of_tests.contains(&other) {
                    used_by_tests.insert(other);
                } else {
                    wrong.push(format!("{} imports {other}", file.display()));
                }
            }
        }
        let unused = allowed.iter().filter(|it| !used.contains(*it));
        let unused = unused.chain(of_tests.iter().filter(|it| !used_by_tests.contains(*it)));
        wrong.extend(unused.map(|other| format!("{room} does not import {other}")));
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rooms_of_meta_import_only_those_above_them() {
    let front_door = fs::read_to_string(root().join("src/meta.rs")).unwrap();
    let stated =
        front_door.lines().filter_map(|line| line.strip_prefix("// | `")?.split('`').next());
    assert_eq!(stated.collect::<Vec<_>>(), ROOMS_OF_META);

    let place = |module: &[String]| {
        let room = module.strip_prefix(&["meta".to_owned()])?.first()?;
        ROOMS_OF_META.iter().position(|it| it == room)
    };
    let (mut wrong, mut read) = (Vec::new(), 0);
    for (module, imported) in Crate::read(names::sources()).edges() {
        let Some(own) = place(module) else { continue };
        let later = imported.iter().filter(|it| place(it).is_some_and(|place| place > own));
        wrong.extend(later.map(|it| format!("{} imports {}", module.join("/"), it.join("/"))));
        read += 1;
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 100, "only {read} files were read");
}

#[test]
fn the_map_states_the_imports_of_each_room() {
    let design = fs::read_to_string(root().join("DESIGN.md")).unwrap();
    for (at, room) in NUMBERED.into_iter().enumerate() {
        let (_, imports) = ROOMS.into_iter().find(|(name, _)| *name == room).unwrap();
        let last = imports.iter().filter_map(|it| NUMBERED.iter().position(|name| name == it));
        let mut stated: Vec<_> = match last.max() {
            None => Vec::new(),
            Some(0) => vec!["1".to_owned()],
            Some(last) => vec![format!("1–{}", last + 1)],
        };
        let others = imports.iter().filter(|it| !NUMBERED.contains(it));
        stated.extend(others.map(|other| format!("`{other}`")));
        let stated = if stated.is_empty() { "–".to_owned() } else { stated.join(", ") };
        let begin = format!("| {} {room} |", at + 1);
        let row = design.lines().find(|line| line.starts_with(&begin)).unwrap();
        let cell = row.trim_end_matches(" |").rsplit(" | ").next();

        assert_eq!(cell, Some(&*stated), "{room}");
    }
}

#[test]
fn an_import_is_found_wherever_it_stands() {
    let source = "use crate::{\n kind::{A, B},\n manager::{C, tree::{D}},\n};\nlet x = crate::meta::y();\n// crate::informer::z";

    assert_eq!(imported(source, "crate"), ["kind", "manager", "meta"].into());
    let source = "use pilotlight::{meta::A, signals};";
    assert_eq!(imported(source, "pilotlight"), ["meta", "signals"].into());
}
