//! Imports point down only: every `crate::room` named in `src/` is checked against the rows of ARCHITECTURE.md, and
//! `internals` is named by nobody but the simulation, the benches and the fuzz targets.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

/// Rooms by row; a room may name rooms of lower rows and itself.
const ROWS: [&[&str]; 7] = [
    &["error"],
    &["model"],
    &["wire"],
    &["work", "disk"],
    &["consume", "net"],
    &["rocketmq", "broker"],
    &["embedded", "lib", "internals"],
];

fn row(room: &str) -> Option<usize> {
    ROWS.iter().position(|rooms| rooms.contains(&room))
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                rust_files(&path, found);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The room a file of `src/` belongs to.
fn room_of(path: &Path, src: &Path) -> String {
    let inside = path.strip_prefix(src).unwrap_or(path).to_string_lossy();
    inside.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned()
}

/// Every room named after `crate::` in code, comments and documentation left aside: `use crate::{a, b::c}` names both.
fn named(text: &str) -> Vec<(usize, String)> {
    let mut rooms = Vec::new();
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect();
    for (number, line) in code.iter().enumerate() {
        for (at, _) in line.match_indices("crate::") {
            if line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == '$') {
                continue;
            }
            let rest = &line[at + "crate::".len()..];
            let list = match rest.strip_prefix('{') {
                Some(_) => code[number..].join(" ")[..].split_once("crate::{").map(|(_, list)| list.to_owned()),
                None => None,
            };
            match list {
                Some(list) => rooms.extend(group(&list).into_iter().map(|room| (number + 1, room))),
                None => rooms.push((number + 1, word(rest))),
            }
        }
    }
    rooms.retain(|(_, room)| !room.is_empty());
    rooms
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// First words of the outermost items of a `{...}` list whose opening brace is already gone.
fn group(list: &str) -> Vec<String> {
    let (mut depth, mut start, mut items) = (0, true, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            c if start && (c.is_alphanumeric() || c == '_') => {
                items.push(word(&list[at..]));
                start = false;
            }
            _ => {}
        }
    }
    items
}

#[test]
fn imports_point_down_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut files, mut bad) = (Vec::new(), Vec::new());
    rust_files(&src, &mut files);
    assert!(files.len() > 10, "no sources found");
    for path in files {
        let room = room_of(&path, &src);
        if room == "bin" || room == "lib" {
            continue;
        }
        let own = row(&room).unwrap_or_else(|| panic!("{} is in no row", path.display()));
        for (line, other) in named(&fs::read_to_string(&path).unwrap()) {
            let down = row(&other).is_some_and(|other_row| other_row < own);
            // Items that lib.rs re-exports may be named by nobody below it, so an unknown word is a mistake too.
            if other != room && !down {
                bad.push(format!("{}:{line} names {other}", path.display()));
            }
        }
    }
    assert!(bad.is_empty(), "imports that point up or sideways:\n{}", bad.join("\n"));
}

#[test]
fn internals_are_for_the_simulation_benches_and_fuzz_targets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for dir in ["src", "tests", "examples"] {
        rust_files(&root.join(dir), &mut files);
    }
    let allowed = |path: &Path| {
        let inside = path.strip_prefix(root).unwrap();
        inside.starts_with("tests/sim") || inside == Path::new("src/lib.rs") || inside == Path::new("tests/rows.rs")
    };
    for path in files.iter().filter(|path| !allowed(path)) {
        let text = fs::read_to_string(path).unwrap();
        assert!(!text.contains("internals::"), "{} names internals", path.display());
    }
}

#[test]
fn the_reader_of_imports_sees_lists_and_paths() {
    let seen = |text| named(text).into_iter().map(|(_, room)| room).collect::<Vec<_>>();
    assert_eq!(seen("use crate::{net::{Role, Out}, wire, work::clock};"), ["net", "wire", "work"]);
    assert_eq!(seen("use crate::{\n    net::Role,\n    wire,\n};"), ["net", "wire"]);
    assert_eq!(seen("let x = crate::error::Error::Closed; // crate::broker"), ["error"]);
    assert_eq!(seen("//! see crate::broker"), Vec::<String>::new());
}
