//! `nevertwice refusals import`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use clap::Args;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::moving::{Header, LINE_MAX};
use crate::admin_client::{AdminArgs, Client};
use crate::exit::{Exit, Failure};
use crate::lines::{Line, Lines};
use crate::patience::patiently;
use crate::print;
use crate::progress::Progress;
use crate::table::on_one_line;

/// The most refusals of a request: the gateway's store has seconds for them.
const ITEMS: usize = 500;
/// A request ends before it is longer than this, in bytes, unless it would be empty.
const BYTES: usize = 4 << 20;
/// So many broken lines are told; the others are counted.
const TOLD: usize = 100;

/// Which refusals to import.
#[derive(Args, Debug)]
pub(super) struct Import {
    /// A file that an export wrote; - for standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// JSON instead of text at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// What became of the lines.
#[derive(Debug, Default, Serialize)]
struct Sum {
    lines: u64,
    imported: u64,
    present: u64,
    expired: u64,
    skipped: u64,
    fenced: u64,
    broken: u64,
    broken_lines: Vec<Broken>,
}

/// A line that is no refusal.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Broken {
    line: u64,
    reason: String,
}

pub(super) async fn run(import: &Import) -> Result<Exit, Failure> {
    let client = import.admin.client()?;
    let sum = if import.file == "-" {
        all(&client, "standard input", io::stdin().lock(), None).await?
    } else {
        let unread = |e: io::Error| Failure::input(&format!("cannot read {}: {e}", import.file));
        let file = File::open(&import.file).map_err(unread)?;
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|meta| meta.len());
        all(&client, &import.file, BufReader::with_capacity(1 << 16, file), length).await?
    };
    let done = if import.json {
        let json = serde_json::to_string(&sum);
        print::line(&json.map_err(|e| Failure::failed(&format!("cannot write: {e}")))?)
    } else {
        print::line(&sum.text())
    };
    match sum.broken {
        0 => done,
        1 => Err(Failure::failed("1 line is broken: nothing of it was imported, the others were read")),
        n => Err(Failure::failed(&format!(
            "{n} lines are broken: nothing of them was imported, the others were read"
        ))),
    }
}

/// All lines of a file.
async fn all(client: &Client, name: &str, from: impl BufRead, length: Option<u64>) -> Result<Sum, Failure> {
    let mut lines = Lines::new(from, LINE_MAX);
    let next = |lines: &mut Lines<_>| {
        let line = lines.next();
        line.map_err(|e| Failure::failed(&format!("cannot read {name} after line {}: {e}", lines.number)))
    };
    Header::read(name, next(&mut lines)?.as_ref())?;
    let mut moving = Moving {
        client,
        progress: Progress::new(length),
        batch: Batch::default(),
        fence: None,
        sum: Sum::default(),
    };
    loop {
        let line = next(&mut lines);
        let done = match &line {
            Ok(Some(line)) => moving.take(lines.number, line).await,
            Ok(None) => moving.send_all().await,
            // what was read before the failure is imported all the same
            Err(_) => moving.send_all().await,
        };
        done.map_err(|Failure { code, message }| Failure {
            code,
            message: format!(
                "{message}; {} of {name} were imported by now: to run the import again is safe",
                moving.sum.imported
            ),
        })?;
        let text = format!("{} refusals imported", moving.sum.imported);
        moving.progress.at(lines.offset, &text, length);
        if line?.is_none() {
            let mut sum = moving.sum;
            // the gateway's word on a line comes later than what could be seen here
            sum.broken_lines.sort_by_key(|broken| broken.line);
            return Ok(sum);
        }
    }
}

/// Lines on their way: the number of each, and its text.
#[derive(Default)]
struct Batch {
    lines: VecDeque<(u64, String)>,
    bytes: usize,
}

impl Batch {
    fn push(&mut self, number: u64, text: &str) {
        self.bytes += text.len();
        self.lines.push_back((number, text.to_owned()));
    }

    /// The first ones need not be sent again.
    fn remove(&mut self, count: usize) {
        for (_, text) in self.lines.drain(..count.min(self.lines.len())) {
            self.bytes -= text.len();
        }
    }

    fn has_room_for(&self, text: &str) -> bool {
        self.lines.is_empty() || (self.lines.len() < ITEMS && self.bytes + text.len() <= BYTES)
    }
}

struct Moving<'a> {
    client: &'a Client,
    progress: Progress,
    batch: Batch,
    /// Where the sequence of forgets stood when the import began.
    fence: Option<String>,
    sum: Sum,
}

impl Moving<'_> {
    async fn take(&mut self, number: u64, line: &Line) -> Result<(), Failure> {
        let text = match refusal(line) {
            Ok(None) => return Ok(()),
            Ok(Some(text)) => text,
            Err(reason) => {
                self.sum.lines += 1;
                self.broken(number, reason);
                return Ok(());
            }
        };
        self.sum.lines += 1;
        while !self.batch.has_room_for(text) {
            self.send().await?;
        }
        self.batch.push(number, text);
        Ok(())
    }

    /// Imports all lines that have come together.
    async fn send_all(&mut self) -> Result<(), Failure> {
        while !self.batch.lines.is_empty() {
            self.send().await?;
        }
        Ok(())
    }

    /// Imports lines that have come together. Where its store is far away the gateway comes to the first ones alone; the others stay.
    async fn send(&mut self) -> Result<(), Failure> {
        let items: Vec<_> = self.batch.lines.iter().map(|(_, text)| text.as_str()).collect();
        let items = items.join(",");
        let fence = self.fence.as_ref().map(|fence| format!(",\"fence\":{}", Value::from(fence.as_str())));
        let body = format!("{{\"items\":[{items}]{}}}", fence.unwrap_or_default());
        let call = async || self.client.post_text("/admin/v1/refusals/import", body.clone()).await;
        let answer = patiently(self.fence.is_some(), call).await?;
        let count = |name: &str| {
            let not = || {
                Failure::failed(&format!(
                    "the gateway's answer is not understood: it does not say how many are {name}"
                ))
            };
            answer[name].as_u64().ok_or_else(not)
        };
        let all = self.batch.lines.len();
        // without the number all were, as with gateways that did not tell it
        let done = answer["done"].as_u64().map_or(all, |done| usize::try_from(done).unwrap_or(all));
        if done == 0 {
            return Err(Failure::failed("the gateway says that it has imported none of the refusals"));
        }
        self.sum.imported += count("imported")?;
        self.sum.present += count("present")?;
        self.sum.expired += count("expired")?;
        self.sum.skipped += count("skipped")?;
        self.sum.fenced += count("fenced")?;
        self.fence = self.fence.take().or_else(|| answer["fence"].as_str().map(ToOwned::to_owned));
        for invalid in answer["invalid"].as_array().into_iter().flatten() {
            let index = invalid["index"].as_u64().and_then(|index| usize::try_from(index).ok());
            let line = index.and_then(|index| self.batch.lines.get(index));
            let number = line.map(|(number, _)| *number).unwrap_or_default();
            self.broken(number, on_one_line(invalid["reason"].as_str().unwrap_or("?")));
        }
        self.batch.remove(done);
        Ok(())
    }

    fn broken(&mut self, line: u64, reason: String) {
        self.sum.broken += 1;
        match self.sum.broken_lines.len() {
            told if told < TOLD => {
                self.progress.tell(&format!("line {line}: {reason}"));
                self.sum.broken_lines.push(Broken { line, reason });
            }
            told if self.sum.broken == told as u64 + 1 => {
                self.progress.tell("more lines are broken: from here on they are counted only");
            }
            _ => {}
        }
    }
}

/// The text of a line that may be a refusal, `None` for an empty one; the gateway judges what is in it.
fn refusal(line: &Line) -> Result<Option<&str>, String> {
    let (bytes, cut) = match line {
        Line::Whole(bytes) => (bytes, false),
        Line::Cut(bytes) => (bytes, true),
        Line::TooLong => return Err("it is too long for a refusal".into()),
    };
    let why = |what: String| if cut { format!("it is cut: {what}") } else { what };
    let text = std::str::from_utf8(bytes).map_err(|_| why("it is not UTF-8".into()))?.trim_ascii();
    if text.is_empty() {
        return Ok(None);
    }
    // one line must not break the request that others are in
    serde_json::from_str::<IgnoredAny>(text)
        .map_err(|e| why(format!("it is no JSON: {}", on_this_line(&e))))?;
    if !text.starts_with('{') {
        return Err(why("it is no JSON object".into()));
    }
    Ok(Some(text))
}

/// The parser's words, which count lines within what it was given.
fn on_this_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

impl Sum {
    fn text(&self) -> String {
        let parts = [
            (self.present, "there already"),
            (self.expired, "expired"),
            (self.skipped, "skipped (suspect, too long for this gateway, or from a mass refusal)"),
            (self.fenced, "forgotten since the import began"),
        ];
        let mut text = match self.imported {
            1 => "1 refusal imported".to_owned(),
            n => format!("{n} refusals imported"),
        };
        for (count, what) in parts.into_iter().filter(|(count, _)| *count > 0) {
            text.push_str(&format!(", {count} {what}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use serde_json::json;

    use super::*;
    use crate::admin_client::tests::canned;

    const HEADER: &str = r#"{"nevertwice_refusals":1,"from":"x","version":"0","began_at":""}"#;

    fn answer(imported: u64, invalid: &[(usize, &str)]) -> Value {
        let invalid: Vec<_> =
            invalid.iter().map(|(index, why)| json!({ "index": index, "reason": why })).collect();
        json!({ "imported": imported, "present": 1, "expired": 2, "skipped": 3, "fenced": 4,
            "invalid": invalid, "fence": "77" })
    }

    #[tokio::test]
    async fn lines_go_in_requests_and_the_broken_ones_are_told_by_their_numbers() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(3 << 20));
        let text = format!(
            "{HEADER}\n{{\"a\":1}}\n\n{{\n[]\n{{\"a\":2}}\r\n{long}\n{long}\n\"x\"\n{{\"a\":3}}\n{{\"a"
        );
        let (client, mut server) =
            canned(vec![answer(1, &[(1, "its\nstatus"), (2, "its body")]), answer(2, &[(0, "again")])]).await;
        let sum = all(&client, "f", text.as_bytes(), None).await.unwrap();
        assert_eq!((sum.lines, sum.imported, sum.present, sum.fenced, sum.broken), (9, 3, 2, 8, 7));
        let broken: Vec<_> = sum.broken_lines.iter().map(|b| (b.line, b.reason.as_str())).collect();
        assert_eq!(broken.iter().map(|b| b.0).collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9, 11]);
        assert_eq!(broken[2..5], [(6, "its\\nstatus"), (7, "its body"), (8, "again")]);
        assert!(broken[6].1.starts_with("it is cut: it is no JSON"), "{broken:?}");
        let seen = server.join_next().await.unwrap().unwrap();
        assert!(seen[0].contains("\r\n\r\n{\"items\":[{\"a\":1},{\"a\":2},{\"a\":\"xxx"));
        assert!(seen[0].ends_with("\"}]}"), "no fence is known yet");
        assert!(seen[1].ends_with("\"},{\"a\":3}],\"fence\":\"77\"}"));
    }

    #[tokio::test]
    async fn what_the_gateway_did_not_come_to_is_sent_again() {
        let part = |done: u64, invalid: &[(usize, &str)]| {
            let mut part = answer(1, invalid);
            part["done"] = done.into();
            part
        };
        let text = format!("{HEADER}\n{{\"a\":1}}\n{{\"a\":2}}\n{{\"a\":3}}\n{{\"a\":4}}\n");
        let answers = vec![part(2, &[(1, "x")]), part(1, &[(0, "y")]), part(1, &[])];
        let (client, mut server) = canned(answers).await;
        let sum = all(&client, "f", text.as_bytes(), None).await.unwrap();
        assert_eq!((sum.lines, sum.imported, sum.broken), (4, 3, 2));
        assert_eq!(sum.broken_lines.iter().map(|b| b.line).collect::<Vec<_>>(), [3, 4]);
        let seen = server.join_next().await.unwrap().unwrap();
        assert!(seen[0].ends_with("{\"items\":[{\"a\":1},{\"a\":2},{\"a\":3},{\"a\":4}]}"));
        assert!(seen[1].ends_with("{\"items\":[{\"a\":3},{\"a\":4}],\"fence\":\"77\"}"));
        assert!(seen[2].ends_with("{\"items\":[{\"a\":4}],\"fence\":\"77\"}"));
        // one that does nothing is not asked for ever
        let (client, _server) = canned(vec![part(0, &[])]).await;
        let failure = all(&client, "f", text.as_bytes(), None).await.unwrap_err();
        assert!(failure.message.contains("none of the refusals"), "{}", failure.message);
    }

    #[tokio::test]
    async fn what_is_no_export_is_refused_before_anything_is_sent() {
        let (client, _server) = canned(Vec::new()).await;
        for text in ["", "{}\n", "\n", HEADER] {
            let failure = all(&client, "f", text.as_bytes(), None).await.unwrap_err();
            assert_eq!(failure.code, 2, "{text}: {}", failure.message);
        }
        let sum = all(&client, "f", format!("{HEADER}\n\n").as_bytes(), None).await.unwrap();
        assert_eq!((sum.lines, sum.text().as_str()), (0, "0 refusals imported"));
    }

    #[tokio::test]
    async fn few_broken_lines_are_told_and_all_are_counted() {
        let (client, _server) = canned(Vec::new()).await;
        let text = format!("{HEADER}\n{}", "{\n".repeat(150));
        let sum = all(&client, "f", text.as_bytes(), None).await.unwrap();
        assert_eq!((sum.lines, sum.broken, sum.broken_lines.len()), (150, 150, TOLD));
        assert_eq!(sum.broken_lines[0].reason, "it is no JSON: EOF while parsing an object at column 1");
    }

    #[test]
    fn the_end_says_what_became_of_all() {
        let sum = Sum { imported: 1, expired: 2, fenced: 1, ..Sum::default() };
        assert_eq!(sum.text(), "1 refusal imported, 2 expired, 1 forgotten since the import began");
    }
}
