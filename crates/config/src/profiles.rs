//! The profiles: those of this program, and those of an operator's files.
//!
//! A profile is data (`profiles/README.md` has the format). It is read with the same care as the configuration: every problem
//! at once, with file, line and rule, and nothing that could make a railed status pass.

mod check;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nevertwice_domain::profile::{Profile, Rules};

use crate::load;
use crate::problem::{Findings, Place, Problems};
use crate::raw::near;
use crate::raw::profile as raw;
use crate::raw::read::{At, Read, Reader};

/// Name and text of every profile of this program.
const EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

/// The longest chain of profiles that extend one another.
const CHAIN_MAX: usize = 4;
/// The most files of an operator.
const FILES_MAX: usize = 200;

/// All profiles there are.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Of the operator's files.
    own: BTreeMap<String, Arc<Profile>>,
}

impl Catalog {
    /// Reads an operator's files. A profile with the name of one of the program's takes its place.
    ///
    /// # Errors
    /// All problems, by file.
    pub fn read(files: &[PathBuf]) -> Result<Self, Vec<Problems>> {
        let mut catalog = Self::default();
        let mut problems = Vec::new();
        if files.len() > FILES_MAX {
            let cause = format!("there are more than {FILES_MAX} files of profiles");
            return Err(vec![Problems::whole("profiles", cause, "put several profiles' rules into one")]);
        }
        for file in files {
            match catalog.read_one(file) {
                Ok(profile) => {
                    let name = profile.name().to_owned();
                    if catalog.own.contains_key(&name) {
                        let cause = format!("there is a second profile `{name}`");
                        problems.push(Problems::whole(
                            &file.display().to_string(),
                            cause,
                            "rename one of them",
                        ));
                    }
                    catalog.own.insert(name, Arc::new(profile));
                }
                Err(found) => problems.push(found),
            }
        }
        if problems.is_empty() { Ok(catalog) } else { Err(problems) }
    }

    fn read_one(&self, file: &Path) -> Result<Profile, Problems> {
        self.read_text(&crate::text_of(file)?, &file.display().to_string())
    }

    fn read_text(&self, text: &str, origin: &str) -> Result<Profile, Problems> {
        let (name, rules) = parse(text, origin, None, &mut |name| self.rules_beneath(name))?;
        Ok(Profile::new(&name, rules))
    }

    /// What an operator's profile extends: one of an earlier file, else one of the program's.
    fn rules_beneath(&self, name: &str) -> Option<Rules> {
        match self.own.get(name) {
            Some(profile) => profile.rules().cloned(),
            None => embedded(name, CHAIN_MAX),
        }
    }

    /// The profile of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Profile>> {
        if let Some(own) = self.own.get(name) {
            return Some(Arc::clone(own));
        }
        if name == Profile::STATUS {
            return Some(Arc::new(Profile::status()));
        }
        embedded(name, CHAIN_MAX).map(|rules| Arc::new(Profile::new(name, rules)))
    }

    /// The names of all profiles, in order.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = EMBEDDED.iter().map(|(name, _)| *name).collect();
        names.push(Profile::STATUS);
        names.extend(self.own.keys().map(String::as_str));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What is probably meant by a name that is not there.
    #[must_use]
    pub fn cure(&self, name: &str) -> String {
        near::cure(name, self.names().into_iter(), "profiles")
    }
}

/// Reads one profile from a text; it may extend those of this program. `origin` is what problems name.
///
/// # Errors
/// All problems of the text.
pub fn from_text(text: &str, origin: &str) -> Result<Profile, Problems> {
    Catalog::default().read_text(text, origin)
}

fn embedded(name: &str, chain: usize) -> Option<Rules> {
    let (_, text) = EMBEDDED.iter().find(|(known, _)| *known == name)?;
    let chain = chain.checked_sub(1)?;
    // a test reads all of them: there is no problem to tell
    parse(text, name, Some(name), &mut |parent| embedded(parent, chain)).ok().map(|(_, rules)| rules)
}

/// Reads one profile. `named` is the name that it must have.
fn parse(
    text: &str,
    origin: &str,
    named: Option<&str>,
    beneath: &mut dyn FnMut(&str) -> Option<Rules>,
) -> Result<(String, Rules), Problems> {
    let mut found = Findings::default();
    let mut names = Vec::new();
    let read = load::tree(text, &mut found).and_then(|node| {
        let place = Place { path: String::new(), at: Some(node.at) };
        let value = raw::Profile::read(&node, &place, &mut Reader::new(&mut found))?;
        Some(At { value, place })
    });
    let checked = read.and_then(|raw| {
        names = rule_names(&raw.value);
        check::check(&raw, text, named, beneath, &mut found)
    });
    match checked {
        Some(checked) if !found.refused() => Ok(checked),
        _ => {
            let mut all = found.sorted();
            for problem in &mut all {
                problem.path = with_rule_name(&problem.path, &names);
            }
            Err(Problems { origin: origin.to_owned(), all })
        }
    }
}

fn rule_names(raw: &raw::Profile) -> Vec<Option<String>> {
    let rules = raw.rules.iter().flat_map(|rules| &rules.value);
    let place = |rule: &At<raw::Rule>| rule.place.path.clone();
    let mut names: Vec<Option<String>> = Vec::new();
    for rule in rules {
        let index = place(rule).trim_start_matches("rules[").trim_end_matches(']').parse().unwrap_or(0_usize);
        names.resize(names.len().max(index + 1), None);
        names[index] = rule.value.rule.as_ref().map(|name| name.value.clone());
    }
    names
}

/// `rules[3].status` as `rules[3] (invalid-content).status`.
fn with_rule_name(path: &str, names: &[Option<String>]) -> String {
    let named = path.strip_prefix("rules[").and_then(|rest| {
        let (index, rest) = rest.split_once(']')?;
        let name = names.get(index.parse::<usize>().ok()?)?.as_ref().filter(|name| check::is_name(name))?;
        Some(format!("rules[{index}] ({name}){rest}"))
    });
    named.unwrap_or_else(|| path.to_owned())
}
