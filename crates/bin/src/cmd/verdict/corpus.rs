//! `nevertwice verdict --corpus`: profiles beside what is right.

use std::path::Path;

use nevertwice_config::corpus::{Corpus, Judged, Report};
use nevertwice_config::profiles::Catalog;
use nevertwice_domain::profile::{Class, Remember};
use serde_json::{Map, Value, json};

use super::word;
use crate::cmd::check::report_problems;
use crate::exit::{Exit, Failure};
use crate::print;
use crate::table::{Side, Table, on_one_line};

pub(super) fn run(file: &Path, catalog: &Catalog, as_json: bool) -> Result<Exit, Failure> {
    let corpus = Corpus::read(file).map_err(|problems| report_problems(&problems))?;
    let report = corpus.judge(catalog);
    let done = print::line(&if as_json { format!("{:#}", json_of(&report)) } else { text_of(&report) })?;
    match report.judged.iter().filter(|judged| judged.is_wrong()).count() {
        0 => Ok(done),
        1 => Err(Failure::failed("1 refusal is remembered that must not be")),
        n => Err(Failure::failed(&format!("{n} refusals are remembered that must not be"))),
    }
}

/// The lists of what is not as it should be.
type List = (&'static str, &'static str, fn(&Judged<'_>) -> bool);

const LISTS: [List; 3] = [
    ("wrong", "remembered, and must not be", |judged| judged.is_wrong()),
    ("too_wide", "remembered for everybody, and depend on more than the document", |judged| {
        judged.is_too_wide()
    }),
    ("missed", "not remembered, and should be", |judged| judged.is_missed()),
];

/// All classes, and that there is none.
fn classes() -> impl Iterator<Item = Option<Class>> {
    Class::ALL.iter().copied().map(Some).chain([None])
}

fn name(class: Option<Class>) -> &'static str {
    class.map_or("unclassified", Class::word)
}

fn text_of(report: &Report<'_>) -> String {
    let number = |count: usize| if count == 0 { "-".to_owned() } else { count.to_string() };
    let head = |first| std::iter::once((first, Side::Left));
    let mut remember =
        Table::new(head("RIGHT").chain(Remember::ALL.iter().map(|judged| (word(*judged), Side::Right))));
    for right in Remember::ALL {
        let counts = Remember::ALL.iter().map(|judged| number(report.count(*right, *judged)));
        remember.row(std::iter::once(right.to_string()).chain(counts));
    }
    let mut class = Table::new(head("RIGHT").chain(classes().map(|judged| (name(judged), Side::Right))));
    for right in Class::ALL {
        let counts = classes().map(|judged| number(report.count_class(*right, judged)));
        class.row(std::iter::once(right.to_string()).chain(counts));
    }
    let (due, caught) = report.caught();
    let mut text = format!(
        "{}\n\n{}\n\n{} refusals: {caught} of the {due} that should be remembered for everybody are",
        remember.text(),
        class.text(),
        report.judged.len(),
    );
    for (_, title, which) in LISTS {
        let listed: Vec<_> = report.judged.iter().filter(|judged| which(judged)).collect();
        if listed.is_empty() {
            continue;
        }
        text.push_str(&format!("\n\n{title}:\n"));
        let mut table =
            Table::new(["REFUSAL", "RIGHT", "JUDGED", "RULE", "REASON"].map(|name| (name, Side::Left)));
        for Judged { entry, explanation } in listed {
            let rule = explanation.rule.as_deref().unwrap_or("-");
            table.row([
                entry.id.clone(),
                entry.remember.to_string(),
                word(explanation.remember).to_owned(),
                rule.to_owned(),
                on_one_line(&explanation.reason),
            ]);
        }
        text.push_str(&table.text());
    }
    text
}

fn json_of(report: &Report<'_>) -> Value {
    let object = |pairs: &mut dyn Iterator<Item = (&'static str, Value)>| {
        Value::Object(pairs.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
    };
    let remember = object(&mut Remember::ALL.iter().map(|right| {
        let counts =
            &mut Remember::ALL.iter().map(|judged| (word(*judged), report.count(*right, *judged).into()));
        (right.word(), object(counts))
    }));
    let class = object(&mut Class::ALL.iter().map(|right| {
        let counts = &mut classes().map(|judged| (name(judged), report.count_class(*right, judged).into()));
        (right.word(), object(counts))
    }));
    let (due, caught) = report.caught();
    let lists = LISTS.iter().map(|(list, _, which)| {
        let listed =
            report.judged.iter().filter(|judged| which(judged)).map(|Judged { entry, explanation }| {
                json!({
                    "id": entry.id,
                    "profile": entry.service,
                    "right": entry.remember.word(),
                    "judged": word(explanation.remember),
                    "rule": explanation.rule,
                    "reason": explanation.reason,
                })
            });
        (*list, listed.collect())
    });
    let counts = [
        ("entries", report.judged.len().into()),
        ("remember", remember),
        ("class", class),
        ("should_be_remembered", due.into()),
        ("are_remembered", caught.into()),
    ];
    object(&mut counts.into_iter().chain(lists))
}
