//! The demo's table and closing words.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nevertwice_document_checker::Sample;
use nevertwice_domain::fingerprint::DocumentDigest;
use serde_json::Value;

use super::caller::Answer;

/// One document and what became of it.
pub struct Row {
    name: &'static str,
    pub document: DocumentDigest,
    answers: Vec<Answer>,
    upstream_calls: u64,
    pub replays: u64,
    codes: Vec<(String, usize)>,
}

impl Row {
    pub fn new(sample: &Sample, answers: Vec<Answer>, upstream_calls: u64) -> Self {
        let document = DocumentDigest::of(sample.bytes);
        Self { name: sample.name, document, answers, upstream_calls, replays: 0, codes: Vec::new() }
    }

    pub fn attempts(&self) -> usize {
        self.answers.len()
    }

    /// Counts the audit codes of this document's requests.
    pub fn codes(&mut self, audit: &[Value]) {
        for answer in &self.answers {
            let line = audit.iter().find(|line| line["trace_id"] == answer.trace_id.as_str());
            let code = line.and_then(|l| l["code"].as_str()).unwrap_or("?");
            match self.codes.iter_mut().find(|(c, _)| c == code) {
                Some((_, n)) => *n += 1,
                None => self.codes.push((code.to_owned(), 1)),
            }
        }
    }

    fn hits(&self) -> usize {
        self.answers.iter().filter(|a| a.hit).count()
    }

    fn identical(&self) -> bool {
        self.answers.windows(2).all(|w| w[0].status == w[1].status && w[0].body == w[1].body)
    }

    fn mean(&self, hit: bool) -> Option<Duration> {
        let times: Vec<_> = self.answers.iter().filter(|a| a.hit == hit).map(|a| a.took).collect();
        let n = u32::try_from(times.len()).ok().filter(|n| *n > 0)?;
        Some(times.iter().sum::<Duration>() / n)
    }
}

/// The table, with its sums.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<34} {:>6} {:>8} {:>5} {:>5} {:>9} {:>9} {:>8}  audit codes",
        "document", "status", "attempts", "LIVE", "HIT", "LIVE ms", "HIT ms", "replays"
    );
    let ms = |time: Option<Duration>| time.map_or("-".into(), |t| format!("{:.1}", t.as_secs_f64() * 1000.0));
    for row in rows {
        let codes: Vec<_> = row.codes.iter().map(|(code, n)| format!("{code} x{n}")).collect();
        let _ = writeln!(
            out,
            "{:<34} {:>6} {:>8} {:>5} {:>5} {:>9} {:>9} {:>8}  {}{}",
            row.name,
            row.answers.first().map_or(0, |a| a.status),
            row.attempts(),
            row.upstream_calls,
            row.hits(),
            ms(row.mean(false)),
            ms(row.mean(true)),
            row.replays,
            codes.join(", "),
            if row.identical() { "" } else { "  (answers differ)" },
        );
    }
    let attempts: usize = rows.iter().map(Row::attempts).sum();
    let calls: u64 = rows.iter().map(|r| r.upstream_calls).sum();
    let hits: usize = rows.iter().map(Row::hits).sum();
    let _ = write!(
        out,
        "\n{attempts} attempts, {calls} upstream calls, {hits} answered from the memory. LIVE is counted at the service itself."
    );
    out
}

/// What to do next.
pub fn how_to_go_on(
    gateway: SocketAddr,
    admin: SocketAddr,
    service: SocketAddr,
    audit: &Path,
    once: bool,
) -> String {
    let mut out = String::new();
    if !once {
        let _ = writeln!(
            out,
            "\nThe gateway serves on. Try it:\n\
             \x20 curl -i -H 'Authorization: Bearer demo-key-a' -H 'Content-Type: application/octet-stream' \\\n\
             \x20      --data-binary @FILE http://{gateway}/classify\n\
             \x20 (the documents of the table are in examples/document-checker/documents)\n\
             \x20 nevertwice refusals list --admin http://{admin}\n\
             \x20 tail -f {}\n\
             The document service itself is at http://{service}/classify.",
            audit.display(),
        );
    }
    let _ = write!(
        out,
        "\nTo put the gateway in front of a service of your own:\n\
         \x20 nevertwice serve --upstream http://localhost:9000\n\
         and send to http://{} what you send to the service now.{}",
        nevertwice_config::DEFAULT_LISTEN,
        if once { "" } else { "\n\nCtrl-C ends the demo." },
    );
    out
}
