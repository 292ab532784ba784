//! `nevertwice refusals`: what the memory of a running gateway holds, forgetting it, and moving it to another.

mod export;
mod forget;
mod import;
mod list;
mod moving;
mod show;
mod unclassified;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use clap::{Args, Subcommand};
use nevertwice_domain::clock::{Clock as _, Millis, SystemClock, parse_rfc3339};
use nevertwice_domain::fingerprint::DocumentDigest;
use nevertwice_domain::status::RefusalStatus;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::admin_client::Client;
use crate::exit::{Exit, Failure};
use crate::pages::{self, Page};
use crate::table::span;

/// Where they are in the API.
const REFUSALS: &str = "/admin/v1/refusals";
/// Pages that are read to find a fingerprint by its beginning.
const PAGES_MAX: usize = 1000;

/// What to do with the refusals.
#[derive(Args, Debug)]
pub struct Refusals {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List remembered refusals, the most replayed first
    List(list::List),
    /// Show one refusal, with the upstream's answer
    Show(show::Show),
    /// Forget refusals, so that the next request with such a document goes to the upstream
    Forget(forget::Forget),
    /// List error codes that came back for one document and that no rule knows, with the rule to add
    Unclassified(unclassified::Unclassified),
    /// Write all refusals to a file, with everything, to be imported elsewhere or kept as a copy
    Export(export::Export),
    /// Read refusals from such a file; those that are there already stay as they are
    Import(import::Import),
}

/// Does it.
pub async fn run(refusals: &Refusals) -> Result<Exit, Failure> {
    match &refusals.command {
        Command::List(list) => list::run(list).await,
        Command::Show(show) => show::run(show).await,
        Command::Forget(forget) => forget::run(forget).await,
        Command::Unclassified(unclassified) => unclassified::run(unclassified).await,
        Command::Export(export) => export::run(export).await,
        Command::Import(import) => import::run(import).await,
    }
}

/// A refusal, as the API lists it. What an older gateway does not tell stays empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Item {
    fingerprint: String,
    document_sha256: String,
    documents: u64,
    document_bytes: u64,
    upstream: String,
    status: u16,
    rule: String,
    suspect: bool,
    reduced: bool,
    replays: u64,
    first_refused_at: String,
    first_replayed_at: Option<String>,
    last_replayed_at: Option<String>,
    expires_at: String,
    refused_tenant: String,
    tenants: Vec<String>,
    content_type: Option<String>,
    body_bytes: u64,
}

impl Item {
    fn read(json: &Value) -> Result<Self, Failure> {
        Self::deserialize(json)
            .map_err(|e| Failure::failed(&format!("the gateway's answer is not understood: {e}")))
    }

    /// Everyone who sent the document, the first one first.
    fn senders(&self) -> Vec<&str> {
        let mut all = vec![self.refused_tenant.as_str()];
        all.extend(self.tenants.iter().map(String::as_str).filter(|tenant| *tenant != self.refused_tenant));
        all
    }

    /// The status, and what is to be known of the entry.
    fn status(&self) -> String {
        let marks = [(self.suspect, "suspect"), (self.reduced, "reduced")];
        let marks: Vec<_> = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
        if marks.is_empty() {
            self.status.to_string()
        } else {
            format!("{} ({})", self.status, marks.join(", "))
        }
    }

    fn expires_in(&self, now: Millis) -> String {
        match parse_rfc3339(&self.expires_at) {
            Ok(at) if at > now => span(at.since_ms(now)),
            Ok(_) => "now".into(),
            Err(_) => "?".into(),
        }
    }
}

fn now() -> Millis {
    SystemClock.now()
}

/// The whole fingerprint for one, or for the beginning of one.
async fn whole_fingerprint(client: &Client, begun: &str) -> Result<String, Failure> {
    let begun = begun.to_ascii_lowercase();
    if begun.len() == 64 {
        return Ok(begun);
    }
    let (mut found, mut cursor) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let Page { items, next, .. } =
            pages::page(client, REFUSALS, &[("sort", "recent".into())], pages::MOST, cursor.as_deref())
                .await?;
        let all = items.iter().filter_map(|item| item["fingerprint"].as_str());
        found.extend(all.filter(|whole| whole.starts_with(&begun)).map(ToOwned::to_owned));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Failure::failed(&format!(
            "no refusal that is remembered has a fingerprint that begins with {begun}"
        ))),
        several => {
            let message = format!("{} fingerprints begin with {begun}: give more digits", several.len());
            Err(Failure::input(&message))
        }
    }
}

fn a_fingerprint(text: &str) -> Result<String, String> {
    if (8..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(text.to_ascii_lowercase());
    }
    Err("a fingerprint has 64 hex digits; its first 8 or more will do".into())
}

fn a_status(text: &str) -> Result<RefusalStatus, String> {
    let number = text.parse().map_err(|_| "a status is a number".to_owned())?;
    RefusalStatus::of_entry(number).map_err(|e| e.to_string())
}

fn a_time(text: &str) -> Result<Millis, String> {
    parse_rfc3339(text).map_err(|_| "a time is written as 2026-01-31T12:00:00Z".into())
}

/// A document by its SHA-256, or by a file that has it.
fn a_document(text: &str) -> Result<DocumentDigest, String> {
    if let Ok(digest) = text.parse() {
        return Ok(digest);
    }
    let unread = |e: std::io::Error| format!("neither 64 hex digits nor a file that can be read ({e})");
    let mut file = File::open(Path::new(text)).map_err(unread)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer).map_err(unread)? {
            0 => return Ok(DocumentDigest::from_bytes(hash.finalize().into())),
            read => hash.update(buffer.get(..read).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests;
