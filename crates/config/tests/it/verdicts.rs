//! The program's profiles against the corpus of real refusals.

use std::path::{Path, PathBuf};

use nevertwice_config::corpus::{Corpus, Judged, Report};
use nevertwice_config::profiles::Catalog;

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
