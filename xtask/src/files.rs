//! Rules for files: names, length, which file alone may name which crate, no paths of one person's machine.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const LINES_AT_MOST: usize = 600;
const CODE: [&str; 2] = ["rs", "py"];
const TEXT: [&str; 9] = ["rs", "py", "md", "toml", "yaml", "yml", "json", "sh", "html"];
/// Folders that hold what was built, fetched or recorded, not what was written.
const NOT_OURS: [&str; 8] =
    ["target", ".git", ".venv", "nevertwice-data", "artifacts", "corpus", "node_modules", "__pycache__"];
/// They say nothing about what is inside, so everything ends up in them.
const EMPTY_NAMES: [&str; 5] = ["util", "utils", "common", "helpers", "helper"];
/// First folders of paths that exist on one machine only.
const MACHINE_FOLDERS: [&str; 4] = ["work", "root", "home", "Users"];

/// A crate or module that only some files of `crates/*/src` may name.
struct Confined {
    path: &'static [&'static str],
    /// A file may name it when its path begins with one of these.
    to: &'static [&'static str],
    instead: &'static str,
}

const CONFINED: [Confined; 4] = [
    Confined {
        path: &["serde_saphyr"],
        to: &["crates/config/src/load.rs"],
        instead: "read configuration through nevertwice_config",
    },
    Confined {
        path: &["rusqlite"],
        to: &["crates/store/src/sqlite", "crates/store/src/work/sqlite"],
        instead: "go through the traits of the store",
    },
    Confined {
        path: &["redis"],
        to: &["crates/store/src/redis", "crates/store/src/work/redis"],
        instead: "go through nevertwice_store::redis",
    },
    Confined {
        path: &["hyper_util", "client"],
        to: &["crates/gateway/src/upstream/connections.rs"],
        instead: "send through the gateway's upstream client",
    },
];

/// Every breach in the texts below `root`, in the order of their paths.
///
/// # Errors
/// When a folder or a file cannot be read.
pub fn problems(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    walk(root, "", &mut problems)?;
    Ok(problems)
}

fn walk(folder: &Path, place: &str, problems: &mut Vec<String>) -> Result<()> {
    let mut entries = fs::read_dir(folder)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(|| format!("cannot read folder {}", folder.display()))?;
    entries.sort_by_key(fs::DirEntry::file_name);

    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let place = if place.is_empty() { name.clone() } else { format!("{place}/{name}") };
        let kind = entry.file_type().with_context(|| format!("cannot look at {place}"))?;
        if kind.is_dir() {
            if !NOT_OURS.contains(&name.as_str()) {
                walk(&entry.path(), &place, problems)?;
            }
        } else if kind.is_file() && has_ending(&place, &TEXT) {
            let bytes = fs::read(entry.path()).with_context(|| format!("cannot read {place}"))?;
            problems.extend(problems_in(&place, &String::from_utf8_lossy(&bytes)));
        }
    }
    Ok(())
}

/// Every breach in one file; `place` is its path from the root of the repository, with `/`.
fn problems_in(place: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if has_ending(place, &CODE) {
        check_name(place, &mut problems);
        let lines = text.lines().count();
        if lines > LINES_AT_MOST {
            problems.push(format!(
                "{place} has {lines} lines, at most {LINES_AT_MOST}: split it by what it does"
            ));
        }
    }
    if is_layer_source(place) {
        let code = without_comments(text);
        let elsewhere = |confined: &&Confined| !confined.to.iter().any(|to| place.starts_with(to));
        for confined in CONFINED.iter().filter(elsewhere) {
            for line in lines_naming(&code, confined.path) {
                let what = confined.path.join("::");
                problems.push(format!(
                    "{place}:{line} names {what}, which belongs to {}: {}",
                    confined.to.join(" and "),
                    confined.instead
                ));
            }
        }
    }
    for (index, line) in text.lines().enumerate() {
        if let Some(path) = machine_path(line) {
            problems
                .push(format!("{place}:{} has a path of one machine, {path}: write it relative", index + 1));
        }
    }
    problems
}

fn check_name(place: &str, problems: &mut Vec<String>) {
    if place.ends_with("/mod.rs") {
        problems.push(format!(
            "{place}: a module `foo` lives in foo.rs beside the folder foo, not in foo/mod.rs"
        ));
    }
    for part in place.split('/') {
        let stem = part.split('.').next().unwrap_or(part);
        if EMPTY_NAMES.contains(&stem) {
            problems.push(format!("{place}: `{stem}` says nothing; name it after what it does"));
        }
    }
}

fn has_ending(place: &str, endings: &[&str]) -> bool {
    place.rsplit_once('.').is_some_and(|(_, ending)| endings.contains(&ending))
}

fn is_layer_source(place: &str) -> bool {
    let mut parts = place.split('/');
    parts.next() == Some("crates") && parts.nth(1) == Some("src") && place.ends_with(".rs")
}

/// The text with comment lines emptied, so that line numbers stay what they are.
fn without_comments(text: &str) -> String {
    text.lines()
        .map(|line| if line.trim_start().starts_with("//") { "" } else { line })
        .collect::<Vec<_>>()
        .join("\n")
}

/// Lines (from 1) on which `path`, of one or two words, is named: written out (`a::b`) or in a group (`a::{c, b::d}`).
fn lines_naming(code: &str, path: &[&str]) -> Vec<usize> {
    let tokens = tokens(code);
    if tokens.windows(2).any(|pair| pair[0].word == "mod" && pair[1].word == path[0]) {
        // a file with a module of that name means that one
        return Vec::new();
    }
    let mut lines: Vec<usize> = (0..tokens.len())
        .filter(|&at| {
            tokens[at].word == path[0] && is_crate(&tokens, at) && names_rest(&tokens[at + 1..], &path[1..])
        })
        .map(|at| tokens[at].line)
        .collect();
    lines.dedup();
    lines
}

/// Whether the word at `at` begins a path, or is brought into scope alone: no field, no variable and no module of another crate.
fn is_crate(tokens: &[Token<'_>], at: usize) -> bool {
    let word = |at: Option<usize>| at.and_then(|at| tokens.get(at)).map_or("", |token| token.word);
    let before = |back: usize| word(at.checked_sub(back));
    let begins_path = word(Some(at + 1)) == ":" && word(Some(at + 2)) == ":";
    if !begins_path && !["use", "crate"].contains(&before(1)) {
        return false;
    }
    if before(1) == ":" && before(2) == ":" {
        // `::name` with nothing before it is a crate
        return !before(3).chars().all(is_word) || before(3).is_empty() || before(3) == "use";
    }
    // in a group that another path opened it is part of that path
    let mut depth = 0_usize;
    for back in (0..at).rev() {
        match tokens[back].word {
            "}" => depth += 1,
            "{" if depth > 0 => depth -= 1,
            "{" if word(back.checked_sub(1)) == ":" => return false,
            "{" | ";" if depth == 0 => return true,
            _ => {}
        }
    }
    true
}

struct Token<'a> {
    word: &'a str,
    line: usize,
}

/// Words and single marks; white space is left out.
fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (index, text) in code.lines().enumerate() {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            let length = if word == 0 { first.len_utf8() } else { word };
            let (token, after) = rest.split_at(length);
            if !first.is_whitespace() {
                tokens.push(Token { word: token, line: index + 1 });
            }
            rest = after;
        }
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn names_rest(tokens: &[Token<'_>], path: &[&str]) -> bool {
    let Some((wanted, deeper)) = path.split_first() else {
        return true;
    };
    let mut words = tokens.iter().map(|token| token.word);
    if (words.next(), words.next()) != (Some(":"), Some(":")) {
        return false;
    }
    match words.next() {
        Some("{") => group_items(&tokens[3..]).any(|item| tokens[3 + item].word == *wanted),
        Some(word) => word == *wanted && names_rest(&tokens[3..], deeper),
        None => false,
    }
}

/// Where each item of a `use` group begins; `tokens` start behind its opening brace.
fn group_items<'a>(tokens: &'a [Token<'_>]) -> impl Iterator<Item = usize> + 'a {
    let mut depth = 1_usize;
    let mut at_start = true;
    tokens
        .iter()
        .enumerate()
        .map_while(move |(at, token)| {
            let begins = at_start && depth == 1;
            at_start = token.word == "," && depth == 1;
            match token.word {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            (depth > 0).then_some(begins.then_some(at))
        })
        .flatten()
}

/// The first path in `line` that begins, after no other path, in a folder of one machine.
fn machine_path(line: &str) -> Option<&str> {
    line.match_indices('/').find_map(|(at, _)| {
        let begins =
            line[..at].chars().next_back().is_none_or(|before| !is_word(before) && !"./)}*".contains(before));
        let path = &line[at..];
        let folder = MACHINE_FOLDERS.iter().find(|folder| {
            path[1..]
                .strip_prefix(**folder)
                .is_some_and(|rest| rest.starts_with('/') && rest[1..].starts_with(is_word))
        });
        let end = path.find(|c: char| c.is_whitespace() || "\"'`)>,;".contains(c)).unwrap_or(path.len());
        (begins && folder.is_some()).then(|| &path[..end])
    })
}

#[cfg(test)]
mod tests;
