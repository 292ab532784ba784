//! `nevertwice refusals unclassified`.

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use crate::admin_client::AdminArgs;
use crate::exit::{Exit, Failure};
use crate::print;
use crate::table::{Side, Table, on_lines, on_one_line, to_the_second};

/// Which codes to list.
#[derive(Args, Debug)]
pub(super) struct Unclassified {
    /// Also codes that came only once for each document
    #[arg(long)]
    all: bool,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// What the API tells of a code.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    upstream: String,
    status: u16,
    code: String,
    at: Option<String>,
    profile: String,
    refusals: u64,
    documents: u64,
    more_documents: bool,
    repeated: u64,
    first_seen_at: String,
    last_seen_at: String,
    sample: String,
    rule: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    items: Vec<Row>,
    dropped: u64,
}

pub(super) async fn run(unclassified: &Unclassified) -> Result<Exit, Failure> {
    let query = if unclassified.all { "?all=true" } else { "" };
    let answer = unclassified.admin.client()?.get(&format!("/admin/v1/unclassified{query}")).await?;
    if unclassified.json {
        return print::line(&format!("{answer:#}"));
    }
    print::line(&text(answer, unclassified.all)?)
}

fn text(answer: Value, all: bool) -> Result<String, Failure> {
    let List { items, dropped } = List::deserialize(answer)
        .map_err(|e| Failure::failed(&format!("the gateway's answer is not understood: {e}")))?;
    let mut text = if items.is_empty() {
        let what = if all {
            "no refusal was unclassified"
        } else {
            "no unclassified code came back for one document"
        };
        format!("{what} since this gateway started")
    } else {
        items.iter().fold(table(&items), |text, row| format!("{text}\n\n{}", row.details()))
    };
    if dropped > 0 {
        text.push_str(&format!("\n\n{dropped} rows made room for others"));
    }
    Ok(text)
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new([
        ("REFUSALS", Side::Right),
        ("DOCUMENTS", Side::Right),
        ("REPEATED", Side::Right),
        ("STATUS", Side::Left),
        ("UPSTREAM", Side::Left),
        ("CODE", Side::Left),
        ("FIRST SEEN", Side::Left),
        ("LAST SEEN", Side::Left),
    ]);
    for row in rows {
        table.row([
            row.refusals.to_string(),
            format!("{}{}", row.documents, if row.more_documents { "+" } else { "" }),
            row.repeated.to_string(),
            row.status.to_string(),
            row.upstream.clone(),
            row.code.clone(),
            to_the_second(&row.first_seen_at),
            to_the_second(&row.last_seen_at),
        ]);
    }
    table.text()
}

impl Row {
    /// What is behind a row: one such answer, and the rule that would remember it.
    fn details(&self) -> String {
        let at = self.at.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
        let head = format!("{}: {} {}{at}, profile {}", self.upstream, self.status, self.code, self.profile);
        let sample = if self.sample.is_empty() { "(an empty body)" } else { &self.sample };
        let rule = self
            .rule
            .as_deref()
            .unwrap_or("# Nothing in the answer tells it from others: no rule can know it.");
        let rule: Vec<String> = rule.trim_end().lines().map(|line| format!("  {}", on_lines(line))).collect();
        format!("{}\n  {}\n\n{}", on_one_line(&head), on_one_line(sample), rule.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_code_is_shown_with_a_sample_and_its_rule() {
        let answer = json!({ "dropped": 2, "items": [
            { "upstream": "ocr", "status": 400, "code": "bad_scan", "at": "/error/code", "profile": "openai",
              "refusals": 3019, "documents": 256, "more_documents": true, "repeated": 4,
              "first_seen_at": "2026-01-31T07:50:09.120Z", "last_seen_at": "2026-01-31T11:02:44.000Z",
              "sample": "{\"error\":{\"code\":\"bad_scan\"}}", "rule": "# why\n- rule: bad-scan\n  status: 400\n" },
            { "upstream": "ocr", "status": 422, "code": "(none)", "at": null, "profile": "status", "refusals": 2,
              "documents": 1, "more_documents": false, "repeated": 1, "sample": "", "rule": null },
        ]});
        let expected = "\
REFUSALS  DOCUMENTS  REPEATED  STATUS  UPSTREAM  CODE      FIRST SEEN            LAST SEEN
    3019       256+         4  400     ocr       bad_scan  2026-01-31T07:50:09Z  2026-01-31T11:02:44Z
       2          1         1  422     ocr       (none)

ocr: 400 bad_scan at /error/code, profile openai
  {\"error\":{\"code\":\"bad_scan\"}}

  # why
  - rule: bad-scan
    status: 400

ocr: 422 (none), profile status
  (an empty body)

  # Nothing in the answer tells it from others: no rule can know it.

2 rows made room for others";
        assert_eq!(text(answer, false).unwrap(), expected);
        let none = text(json!({ "items": [], "dropped": 0 }), false).unwrap();
        assert_eq!(none, "no unclassified code came back for one document since this gateway started");
    }

    #[test]
    fn what_an_upstream_wrote_drives_no_terminal() {
        let answer =
            json!({ "items": [{ "code": "a\u{1b}[2J", "sample": "\u{1b}[2J\n", "rule": "\u{9b}1m" }] });
        let text = text(answer, true).unwrap();
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    }
}
