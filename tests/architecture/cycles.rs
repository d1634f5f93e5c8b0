//! Cycles of imports: no file imports, through any number of files, a file that imports it. A front
//! door and the files directly in its folder are aside, since each names the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::names::sources;

/// Path of a module, as its file's below `src`.
pub(super) type Module = Vec<String>;

/// Sources by module, without comments and test modules.
pub(super) struct Crate {
    texts: BTreeMap<Module, String>,
    /// Targets of the names that a module imports, which may re-export them.
    imports: BTreeMap<Module, BTreeMap<String, Module>>,
}

impl Crate {
    pub(super) fn read(sources: Vec<(String, String)>) -> Self {
        let texts = sources.into_iter().map(|(file, text)| {
            let code = text.split("mod tests {").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
            (module, lines.collect::<Vec<_>>().join(" "))
        });
        let mut read = Self { texts: texts.collect(), imports: BTreeMap::new() };
        for (module, text) in &read.texts {
            let named = declared(text).into_iter().filter_map(|path| {
                let target = read.resolve(module, &path)?;
                Some((path.last()?.clone(), target))
            });
            read.imports.insert(module.clone(), named.collect());
        }
        read
    }

    /// Returns the path from the root of the crate; `None` for a path of another crate.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let (_, parent) = module.split_last()?;
                let is_last = rest.first().is_none_or(|next| next != "super");
                if is_last { Some([parent, rest].concat()) } else { self.resolve(parent, rest) }
            }
            name => {
                let child = [module, &[name.to_owned()]].concat();
                self.texts.contains_key(&child).then(|| [module, path].concat())
            }
        }
    }

    /// Returns the module that defines the item of a path, through re-exports.
    fn module_of(&self, path: &[String], depth: usize) -> Option<Module> {
        let length = (1..=path.len()).rev().find(|&to| self.texts.contains_key(&path[..to]))?;
        let (module, rest) = path.split_at(length);
        let name = rest.first().filter(|_| depth < 10);
        let target = name.and_then(|name| self.imports[module].get(name));
        match target.filter(|target| target[..] != *path) {
            Some(target) => self.module_of(&[target, &rest[1..]].concat(), depth + 1),
            None => Some(module.to_vec()),
        }
    }

    /// Returns the modules that each module imports, without its front door and the files directly
    /// in its folder.
    pub(super) fn edges(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let of = |module: &Module, text: &String| {
            let paths = declared(text).into_iter().chain(inline(text));
            let targets = paths.filter_map(|path| {
                let path = self.resolve(module, &path)?;
                self.module_of(&path, 0)
            });
            let is_apart = |it: &Module| {
                it != module && !is_in_folder(module, it) && !is_in_folder(it, module)
            };
            targets.filter(is_apart).collect()
        };
        self.texts.iter().map(|(module, text)| (module, of(module, text))).collect()
    }

    /// Returns the shortest cycle through each module that has one.
    fn cycles(&self) -> Vec<String> {
        let edges = self.edges();
        edges.keys().filter_map(|module| cycle(module, &edges)).collect()
    }
}

/// Returns whether a file is directly in the folder of a front door.
fn is_in_folder(front_door: &[String], file: &[String]) -> bool {
    file.split_last().is_some_and(|(_, folder)| folder == front_door)
}

fn cycle(begin: &Module, edges: &BTreeMap<&Module, BTreeSet<Module>>) -> Option<String> {
    let mut open = VecDeque::from([vec![begin]]);
    let mut seen = BTreeSet::new();
    while let Some(path) = open.pop_front() {
        for next in &edges[*path.last()?] {
            if next == begin {
                let names = path.iter().chain([&begin]).map(|module| module.join("/"));
                return Some(names.collect::<Vec<_>>().join(" -> "));
            }
            if seen.insert(next) {
                open.push_back([&path[..], &[next]].concat());
            }
        }
    }
    None
}

/// Returns the paths of the `use` declarations of a text.
fn declared(text: &str) -> Vec<Module> {
    let mut paths = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let is_word = !text[..at].ends_with(|letter: char| letter.is_alphanumeric());
        if let Some(end) = text[at..].find(';').filter(|_| is_word) {
            expand(&text[at + 4..at + end], &[], &mut paths);
        }
    }
    paths
}

/// Adds the paths of a tree such as `a::{b, c::d}`.
fn expand(tree: &str, prefix: &[String], paths: &mut Vec<Module>) {
    let tree = tree.trim();
    let segments = |path: &str| -> Module {
        let names = path.split("::").map(str::trim).filter(|name| !name.is_empty());
        [prefix, &names.map(str::to_owned).collect::<Vec<_>>()].concat()
    };
    let Some((before, inner)) = tree.strip_suffix('}').and_then(|tree| tree.split_once('{')) else {
        let path = tree.split(" as ").next().unwrap_or_default().trim_end_matches("::*");
        return paths.push(segments(path));
    };
    let prefix = segments(before);
    let (mut depth, mut begin) = (0, 0);
    for (at, letter) in inner.char_indices().chain([(inner.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[begin..at].trim().is_empty() {
                    expand(&inner[begin..at], &prefix, paths);
                }
                begin = at + 1;
            }
            _ => {}
        }
    }
}

/// Returns the paths such as `super::queue::Item` in the code of a text.
fn inline(text: &str) -> Vec<Module> {
    let mut paths = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(root) {
            let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
            // A visibility such as `pub(in crate::controller)` imports nothing.
            let is_begin = !text[..at].ends_with(is_path) && !text[..at].ends_with("pub(in ");
            let end = text[at..].find(|letter| !is_path(letter)).unwrap_or(text.len() - at);
            let names = text[at..at + end].split("::").filter(|name| !name.is_empty());
            let path: Module = names.map(str::to_owned).collect();
            // A path before a brace is a declaration, and was found there.
            if is_begin && path.len() > 1 && !text[at..at + end].ends_with("::") {
                paths.push(path);
            }
        }
    }
    paths
}

#[test]
fn no_files_import_each_other() {
    let read = Crate::read(sources());
    let cycles = read.cycles();

    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
    let edges: usize = read.edges().values().map(BTreeSet::len).sum();
    assert!(edges > 1000, "only {edges} imports were found");
}

#[test]
fn a_cycle_is_found_through_re_exports_and_without_parents() {
    let file = |name: &str, text: &str| (format!("{name}.rs"), text.to_owned());
    let read = Crate::read(vec![
        file("room", "mod a; mod b; pub use self::{a::A, b::B};"),
        file("room/a", "use super::{B, c::{C as D}};\n// use super::E;"),
        file("room/b", "fn b() { crate::room::b::inner::x() }"),
        file("room/b/inner", "use super::B;\nfn x(_: super::super::c::C) {}"),
        file("room/c", "use crate::room::A;\n#[cfg(test)]\nmod tests { use super::super::B; }"),
    ]);

    assert_eq!(read.cycles(), ["room/a -> room/c -> room/a", "room/c -> room/a -> room/c"]);
}

#[test]
fn only_the_front_door_of_a_files_own_folder_is_aside() {
    let file = |name: &str, text: &str| (format!("{name}.rs"), text.to_owned());
    let read = Crate::read(vec![
        file("room", "mod b; use self::b::{inner::Inner, other::Other}; struct Room;"),
        file("room/b", "mod inner; mod other; use super::Room; use self::other::Other;"),
        file("room/b/inner", "use crate::room::Room;"),
        file("room/b/other", "pub(in crate::room) struct Other; use super::B;"),
    ]);

    let found = ["room -> room/b/inner -> room", "room/b/inner -> room -> room/b/inner"];
    assert_eq!(read.cycles(), found);
}
