//! The program's profiles against the corpus of real refusals.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;
use nevertwice_config::corpus::{Corpus, Entry, Judged, Report};
use nevertwice_config::profiles::Catalog;
use nevertwice_domain::profile::{Class, Profile, Remember, Rules, Source, Test};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn corpus() -> Corpus {
    let file = root().join("profiles/corpus/upstream-errors.yaml");
    Corpus::read(&file).unwrap_or_else(|problems| unreachable!("{problems}"))
}

fn told(report: &Report<'_>, which: fn(&Judged<'_>) -> bool) -> Vec<String> {
    let found = report.judged.iter().filter(|judged| which(judged));
    found.map(|j| format!("{}: {:?}: {}", j.entry.id, j.explanation.rule, j.explanation.reason)).collect()
}

#[test]
fn no_refusal_is_remembered_that_must_not_be() {
    let corpus = corpus();
    let report = corpus.judge(&Catalog::default());
    assert!(report.judged.len() >= 329);
    assert_eq!(told(&report, |j| j.is_wrong()), Vec::<String>::new());
    assert_eq!(told(&report, |j| j.is_too_wide()), Vec::<String>::new());
}

#[test]
fn nearly_all_that_should_be_remembered_are() {
    let corpus = corpus();
    let report = corpus.judge(&Catalog::default());
    let (due, caught) = report.caught();
    assert!(due > 0 && caught * 100 >= due * 95, "{caught} of {due}: {:?}", told(&report, |j| j.is_missed()));
}

#[test]
fn every_service_of_the_corpus_has_a_profile() {
    let catalog = Catalog::default();
    for entry in &corpus().entries {
        assert!(catalog.names().contains(&entry.service.as_str()), "{}", entry.service);
    }
}

#[test]
fn the_page_in_the_docs_is_current() {
    let there = std::fs::read_to_string(root().join("docs/verdicts.md")).unwrap_or_default();
    assert!(
        there == corpus().judge(&Catalog::default()).markdown(),
        "docs/verdicts.md is out of date: run `cargo run -p nevertwice-config --example write_verdicts`"
    );
}

/// The profile without the rules of these names.
fn without(profile: &Profile, names: &[&str]) -> Profile {
    let rules = profile.rules().unwrap_or_else(|| unreachable!("profiles of the corpus have rules"));
    let mut rules = Rules::clone(rules);
    rules.rules.retain(|rule| !names.contains(&&*rule.name));
    Profile::new(profile.name(), rules)
}

/// Leave one out. What is known not to be about the document is safe because nothing says that it is, and not because a rule
/// happens to know it: without the rule that was written after it, nobody remembers it either.
#[test]
fn what_no_rule_has_seen_stays_unremembered() {
    let (corpus, catalog) = (corpus(), Catalog::default());
    let mut left_out = 0;
    let mut remembered = Vec::new();
    // one answer, byte for byte, to different requests: the request's type and its reference tell them apart, and are in the key
    let twins = |entry: &Entry| {
        let content = corpus.entries.iter().filter(|other| other.class == Class::Content);
        content.into_iter().any(|other| other.service == entry.service && other.body == entry.body)
    };
    let others = corpus.entries.iter().filter(|entry| entry.class != Class::Content);
    for entry in others.filter(|entry| !twins(entry)) {
        let Some(profile) = catalog.get(&entry.service) else { unreachable!("{}", entry.service) };
        // as often as there is another rule that knows it: a second one may be written after it too
        let mut names: Vec<Arc<str>> = Vec::new();
        loop {
            let out: Vec<&str> = names.iter().map(|name| &**name).collect();
            let explained = entry.judge(&without(&profile, &out));
            if explained.remember == Remember::Full || explained.remember == Remember::Short {
                remembered.push(format!("{} without {out:?}: {:?}", entry.id, explained.rule));
                break;
            }
            match explained.rule {
                Some(rule) if !names.contains(&rule) => names.push(rule),
                _ => break,
            }
        }
        left_out += names.len();
    }
    assert!(left_out >= 100, "{left_out} rules were left out");
    assert_eq!(remembered, Vec::<String>::new());
}

const UNSEEN: &str = "SomethingElse";

/// The same answer, but for what a condition looks at.
fn neighbour(entry: &Entry, source: &Source) -> Option<Entry> {
    let mut other = entry.clone();
    let mut body: Value = serde_json::from_str(&entry.body).unwrap_or_default();
    let set = |body: &mut Value, pointer: &str| {
        let there = body.pointer_mut(&pointer.replace('*', "0"));
        there.is_some_and(|value| !value.is_null() && std::mem::replace(value, UNSEEN.into()) != UNSEEN)
    };
    let changed = match source {
        Source::At(pointer) => set(&mut body, pointer.as_str()),
        Source::Leaves(pointer) => {
            body.pointer_mut(pointer.as_str()).map(unsee_codes);
            true
        }
        Source::Text => {
            body = UNSEEN.into();
            true
        }
        Source::AwsError => {
            set(&mut body, "/__type");
            other.headers.insert("x-amzn-errortype", HeaderValue::from_static(UNSEEN));
            true
        }
        Source::Header(name) => other.headers.remove(name).is_some(),
        Source::RequestContentType => false,
    };
    other.body = if matches!(source, Source::Text) { UNSEEN.to_owned() } else { body.to_string() };
    changed.then_some(other)
}

fn unsee_codes(value: &mut Value) {
    match value {
        Value::Object(members) => members.iter_mut().for_each(|(name, value)| match value {
            Value::String(code) if name == "code" => UNSEEN.clone_into(code),
            other => unsee_codes(other),
        }),
        Value::Array(items) => items.iter_mut().for_each(unsee_codes),
        _ => {}
    }
}

/// The neighbours of what is remembered differ in one thing that the rule goes by: nobody has seen them, so they stay unremembered.
#[test]
fn neighbours_of_verdicts_are_none() {
    let (corpus, catalog) = (corpus(), Catalog::default());
    let mut tried = 0;
    let mut remembered = Vec::new();
    for entry in &corpus.entries {
        let Some(profile) = catalog.get(&entry.service) else { unreachable!("{}", entry.service) };
        let explained = entry.judge(&profile);
        let rules = profile.rules().map(|rules| rules.rules.as_slice()).unwrap_or_default();
        let rule = rules.iter().find(|rule| Some(&rule.name) == explained.rule.as_ref());
        let Some(rule) = rule.filter(|rule| rule.remember != Remember::Never) else { continue };
        for condition in rule.when.iter().filter(|condition| !matches!(condition.test, Test::Absent)) {
            let Some(other) = neighbour(entry, &condition.source) else { continue };
            tried += 1;
            let explained = other.judge(&profile);
            if explained.remember != Remember::Never {
                remembered.push(format!("{} but for {condition}: {:?}", entry.id, explained.rule));
            }
        }
    }
    assert!(tried >= 150, "{tried}");
    assert_eq!(remembered, Vec::<String>::new());
}
