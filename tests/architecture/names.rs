//! Names of types: each has one meaning in its room.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Returns the sources outside of tests, each with its path below `src`. Those of a crate stand in a
/// room of its own.
pub(super) fn sources() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in super::source_folders() {
        let package = folder.parent().unwrap();
        let is_crate = package.parent().unwrap().ends_with("crates");
        let package = format!("crate_{}", package.file_name().unwrap().to_str().unwrap());
        files.extend(sources_of(&folder).into_iter().map(|(name, text)| match is_crate {
            true if name == "lib.rs" => (format!("{package}.rs"), of_room(&text, &package)),
            true => (format!("{package}/{name}"), of_room(&text, &package)),
            false => (name, text),
        }));
    }
    files
}

/// Returns the text of a crate as that of a room of the library.
fn of_room(text: &str, room: &str) -> String {
    text.replace("crate::", &format!("crate::{room}::"))
}

/// Returns the sources below a folder outside of tests, each with its path there.
fn sources_of(src: &Path) -> Vec<(String, String)> {
    let (mut open, mut files) = (vec![src.to_owned()], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let name = path.strip_prefix(src).unwrap().to_str().unwrap().to_owned();
                files.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let tests: BTreeSet<PathBuf> = files.iter().flat_map(test_modules).collect();
    files.retain(|(name, _)| {
        let module = PathBuf::from(name.trim_end_matches(".rs"));
        !module.ancestors().any(|it| tests.contains(it))
    });
    files
}

/// Returns the paths of the modules that a file declares for tests only.
fn test_modules((name, text): &(String, String)) -> Vec<PathBuf> {
    let folder = match name.as_str() {
        "lib.rs" => PathBuf::new(),
        name => PathBuf::from(name.trim_end_matches(".rs")),
    };
    let mut is_test = false;
    let mut modules = Vec::new();
    for line in text.lines().map(str::trim) {
        let declared = line.split_once("mod ").and_then(|(_, rest)| rest.strip_suffix(';'));
        modules.extend(declared.filter(|_| is_test).map(|module| folder.join(module)));
        let is_cfg = line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test");
        is_test = is_cfg || is_test && line.starts_with("#[");
    }
    modules
}

/// Returns the names of the types that a text defines outside of its test module.
fn types(text: &str) -> Vec<&str> {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..tests].lines().filter_map(name_of).collect()
}

/// Returns the name of the type that a line defines.
fn name_of(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        // A visibility such as `pub(in crate::controller)` contains a space.
        Some(rest) if rest.starts_with("(") => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => item,
    };
    let (keyword, rest) = item.split_once(' ')?;
    let is_type = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        // An associated type is no name of its own.
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    is_type.then(|| &rest[..end.unwrap_or(rest.len())])
}

#[test]
fn each_type_name_is_defined_once_in_its_room() {
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (file, text) in sources() {
        let room = file.split(['/', '.']).next().unwrap().to_owned();
        for name in types(&text) {
            places.entry((room.clone(), name.to_owned())).or_default().push(file.clone());
        }
    }

    let twice: Vec<_> = places.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:#?}");
    assert!(places.len() > 500, "only {} types were read", places.len());
}
