//! ARCHITECTURE tells the truth about files: those it names are there, and every file of the library is in it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;

const TEXT: &str = include_str!("../ARCHITECTURE.md");

/// Every file below `dir`, as a path from the crate's root.
fn files(dir: &str, found: &mut BTreeSet<String>) {
    for entry in Path::new(env!("CARGO_MANIFEST_DIR")).join(dir).read_dir().unwrap() {
        let (entry, name) = entry.map(|entry| (entry.file_type().unwrap(), entry.file_name())).unwrap();
        let path = format!("{dir}/{}", name.to_str().unwrap());
        if entry.is_dir() {
            files(&path, found);
        } else {
            found.insert(path);
        }
    }
}

/// The names of Rust files in the text; `{a,b}.rs` is two.
fn named() -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_/{},.".contains(c);
    let words =
        TEXT.split(|c| !is_part(c)).map(|word| word.trim_matches(['.', ','])).filter(|word| word.ends_with(".rs"));
    words
        .flat_map(|word| match (word.split_once('{'), word.split_once('}')) {
            (Some((before, _)), Some((inside, after))) => {
                let inside = inside.split_once('{').unwrap().1;
                inside.split(',').map(|one| format!("{before}{one}{after}")).collect()
            }
            _ => vec![word.to_owned()],
        })
        .collect()
}

#[test]
fn files_that_are_named_are_there() {
    let mut found = BTreeSet::new();
    for dir in ["src", "tests", "benches", "examples", "fuzz/src"] {
        files(dir, &mut found);
    }
    let named = named();
    assert!(named.len() > 100, "{named:?}");
    let is_there = |name: &String| found.iter().any(|path| path == name || path.ends_with(&format!("/{name}")));
    let gone: Vec<&String> = named.iter().filter(|name| !is_there(name)).collect();
    assert!(gone.is_empty(), "{gone:?}");
}

#[test]
fn every_file_of_the_library_is_told_of() {
    let mut found = BTreeSet::new();
    files("src", &mut found);
    let words: BTreeSet<&str> = TEXT.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let untold = |path: &&String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        let Some(stem) = name.strip_suffix(".rs") else { return false };
        let is_test = stem.ends_with("_tests") || path.contains("/tests/");
        !is_test && !["mod", "lib"].contains(&stem) && !words.contains(stem)
    };
    let untold: Vec<&String> = found.iter().filter(untold).collect();
    assert!(untold.is_empty(), "{untold:?}");
}
