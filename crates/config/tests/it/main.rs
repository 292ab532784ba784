//! The configuration as an operator meets it: a text goes in, values or problems come out.

use nevertwice_config::checked::Checked;
use nevertwice_config::problem::{Problem, Problems, Severity};
use nevertwice_config::secret::Given;
use nevertwice_config::{Loaded, from_text};

mod azure;
mod example;
mod holds;
mod jobs;
mod judged;
mod keys;
mod network;
mod never_panics;
mod profiles;
mod redis;
mod reference;
mod secrets;
mod status_lives;
mod statuses;
mod tenants;
mod texts;
mod unclassified;
mod upstreams;
mod verdicts;
mod wrong_verdicts;

/// The least configuration that holds.
const LEAST: &str = "upstreams:\n  - name: a\n    base_url: http://127.0.0.1:9001\n    sync_paths: [/x]\n";

fn given() -> Given {
    Given::default()
        .with_env("ONE", "first-secret-value-0001")
        .with_env("TWO", "second-secret-value-0002")
        .with_env("SAME_AS_ONE", "first-secret-value-0001")
}

fn load(text: &str) -> Result<Loaded, Problems> {
    from_text(text, "gw.yaml", &given())
}

/// The values of a text that holds, and no warning.
#[track_caller]
fn good(text: &str) -> Checked {
    match load(text) {
        Ok(Loaded { checked, warnings }) => {
            assert_eq!(warnings, [], "{text}");
            checked
        }
        Err(problems) => unreachable!("{text}\n{problems}"),
    }
}

#[track_caller]
fn problems(text: &str) -> Vec<Problem> {
    match load(text) {
        Ok(_) => unreachable!("this was taken:\n{text}"),
        Err(problems) => problems.all,
    }
}

/// The text has exactly this one problem: an error at `path` whose cause or cure has `words`.
#[track_caller]
fn refused(text: &str, path: &str, words: &str) {
    let all = problems(text);
    let [problem] = all.as_slice() else { unreachable!("not one problem:\n{text}\n{all:#?}") };
    assert_eq!(problem.severity, Severity::Error, "{text}");
    assert_eq!(problem.path, path, "{text}\n{problem}");
    let told = problem.to_string();
    assert!(told.contains(words), "{text}\n{told}\nlacks: {words}");
    assert!(problem.line.is_some() && problem.column.is_some(), "{text}\n{told}");
    assert!(!problem.cause.is_empty() && !problem.cure.is_empty(), "{told}");
}

/// The text holds, with exactly this one warning.
#[track_caller]
fn warned(text: &str, path: &str, words: &str) -> Checked {
    let Loaded { checked, warnings } =
        load(text).unwrap_or_else(|problems| unreachable!("{text}\n{problems}"));
    let [warning] = warnings.as_slice() else { unreachable!("not one warning:\n{text}\n{warnings:#?}") };
    assert_eq!((warning.severity, warning.path.as_str()), (Severity::Warning, path), "{text}");
    assert!(warning.to_string().contains(words), "{text}\n{warning}\nlacks: {words}");
    checked
}

/// The least configuration with these lines added at the top level.
fn top(lines: &str) -> String {
    format!("{lines}\n{LEAST}")
}

/// The least configuration with these lines added to its upstream.
fn up(lines: &str) -> String {
    let indented: String = lines.lines().map(|line| format!("    {line}\n")).collect();
    format!("{LEAST}{indented}")
}
