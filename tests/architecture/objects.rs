//! Size of objects: few methods in few files, so that one person can hold an object in mind.

use std::collections::{BTreeMap, BTreeSet};

use super::names::sources;

/// Maximum number of methods of an object, constructors and helpers included.
const METHODS: usize = 25;
/// Maximum number of files with methods of an object.
const FILES: usize = 3;

/// Larger objects, with their methods and files, and why they are worth it. Lower the numbers with
/// each method that goes.
const LARGER: [(&str, usize, usize, &str); 14] = [
    ("Apply", 14, 4, "writes of children, with a file for each way to write one"),
    ("Builder", 59, 4, "one method for each choice of a user, and no other place to look for it"),
    ("Catalog", 44, 3, "all facts about served types, which one judgement reads together"),
    ("Context", 56, 7, "the one argument of a reconciler: whatever it may ask for"),
    ("Core", 28, 3, "the queue without I/O; one state, checked as a whole by its properties"),
    ("Epoch", 33, 1, "what the task of the manager and the run of a controller say to each other"),
    ("EpochRun", 24, 4, "the loop of an epoch, with a file for each kind of its events"),
    ("InputStatuses", 31, 3, "reads for listers and changes by sources, under one lock"),
    ("Reflector", 35, 5, "a file for each way to follow a type: list, watch, poll, fill"),
    ("SharedInformer", 40, 2, "each method is one step under the lock of the objects"),
    ("SimulatedCluster", 108, 14, "an API server in memory, with a file for each of its parts"),
    ("SimulatedServer", 37, 2, "one method for each thing that a test may make it do"),
    ("Store", 54, 4, "lister and indexer of client-go in one, and the writer behind them"),
    ("Server", 37, 2, "two test servers of this name, each in a crate of its own"),
];

/// Returns the number of methods of each type, and the files that have them.
fn objects() -> BTreeMap<String, (usize, BTreeSet<String>)> {
    let mut objects: BTreeMap<String, (usize, BTreeSet<String>)> = BTreeMap::new();
    for (file, text) in sources() {
        let code = text.split("mod tests {").next().unwrap_or_default();
        let mut current: Option<String> = None;
        for line in code.lines() {
            if line.starts_with("impl") && line.ends_with('{') {
                current = inherent(line);
            } else if line == "}" {
                current = None;
            } else if let Some(object) = &current
                && is_method(line)
            {
                let (methods, files) = objects.entry(object.clone()).or_default();
                *methods += 1;
                files.insert(file.clone());
            }
        }
    }
    objects
}

/// Returns the type of an inherent implementation; `None` for that of a trait.
fn inherent(line: &str) -> Option<String> {
    let (mut plain, mut depth) = (String::new(), 0);
    for letter in line.replace("->", "").chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    let head = plain.strip_prefix("impl")?.trim_end_matches('{').trim();
    let head = head.split(" where").next()?.trim();
    let is_type = !head.contains(" for ") && head.chars().all(|it| it.is_alphanumeric());
    is_type.then(|| head.to_owned())
}

fn is_method(line: &str) -> bool {
    let Some(item) = line.strip_prefix("    ").filter(|item| !item.starts_with(' ')) else {
        return false;
    };
    let item = match item.strip_prefix("pub(").and_then(|rest| rest.split_once(") ")) {
        Some((_, item)) => item,
        None => item.strip_prefix("pub ").unwrap_or(item),
    };
    ["const ", "async ", "unsafe "]
        .iter()
        .fold(item, |item, word| item.strip_prefix(word).unwrap_or(item))
        .starts_with("fn ")
}

#[test]
fn objects_are_small_or_say_why_not() {
    let mut wrong = Vec::new();
    for (object, (methods, files)) in objects() {
        let files = files.len();
        let larger = LARGER.iter().find(|(name, ..)| *name == object);
        let (most_methods, most_files) = larger.map_or((METHODS, FILES), |it| (it.1, it.2));
        if methods > most_methods || files > most_files {
            wrong.push(format!("{object}: {methods} methods in {files} files"));
        } else if larger.is_some() && methods <= METHODS && files <= FILES {
            wrong.push(format!("{object} is small: remove its row"));
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn methods_are_counted_in_inherent_implementations() {
    for (line, expected) in [
        ("impl Store {", Some("Store")),
        ("impl<K: Clone + Ord> RetryGate<K> {", Some("RetryGate")),
        ("impl<'a> KindRun<'a> {", Some("KindRun")),
        ("impl Drop for Store {", None),
        ("impl<K> Display for Gate<K> {", None),
    ] {
        assert_eq!(inherent(line).as_deref(), expected, "{line}");
    }
    for (line, expected) in [
        ("    fn a(&self) {", true),
        ("    pub(in crate::meta) async fn a(", true),
        ("    pub const fn a() -> u8 {", true),
        ("        fn nested() {", false),
        ("    let x = fn_name();", false),
    ] {
        assert_eq!(is_method(line), expected, "{line}");
    }
}
