//! `nevertwice refusals show`.

use std::io::{ErrorKind, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use nevertwice_domain::clock::Millis;
use serde_json::Value;

use super::{Item, a_fingerprint, now, whole_fingerprint};
use crate::admin_client::AdminArgs;
use crate::exit::{Exit, Failure};
use crate::print;
use crate::table::{Side, Table, on_lines, to_the_second};

/// Which refusal to show.
#[derive(Args, Debug)]
pub(super) struct Show {
    /// Its fingerprint, or the beginning of it (8 hex digits or more)
    #[arg(value_parser = a_fingerprint)]
    pub(super) fingerprint: String,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    /// The stored body alone, byte for byte
    #[arg(long, conflicts_with = "json")]
    body: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) async fn run(show: &Show) -> Result<Exit, Failure> {
    let client = show.admin.client()?;
    let fingerprint = whole_fingerprint(&client, &show.fingerprint).await?;
    let shown = client.get(&format!("/admin/v1/refusals/{fingerprint}")).await?;
    if show.json {
        return print::line(&format!("{shown:#}"));
    }
    if show.body {
        return bytes(&body(&shown)?);
    }
    print::line(&text(&shown, now())?)
}

fn body(shown: &Value) -> Result<Vec<u8>, Failure> {
    let body = shown["body_base64"].as_str().and_then(|text| STANDARD.decode(text).ok());
    body.ok_or_else(|| Failure::failed("the gateway's answer is not understood: it has no body"))
}

fn bytes(bytes: &[u8]) -> Result<Exit, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::failed(&format!("cannot write: {e}"))),
        _ => Ok(Exit::Done),
    }
}

pub(super) fn text(shown: &Value, now: Millis) -> Result<String, Failure> {
    let item = Item::read(shown)?;
    let extra = |name: &str| shown[name].as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned);
    let parts = if item.documents > 1 { format!(" in {} files", item.documents) } else { String::new() };
    let replays = match (&item.first_replayed_at, &item.last_replayed_at) {
        (Some(first), Some(last)) => format!(
            "{}, from {} to {}, to {}",
            item.replays,
            to_the_second(first),
            to_the_second(last),
            item.tenants.join(", ")
        ),
        _ => item.replays.to_string(),
    };
    let suspect = "recorded during a mass refusal: kept to be seen, never replayed".to_owned();
    let reduced = "the body was too long to keep: values in it were replaced, and replays say so".to_owned();
    let expires = format!("{} (in {})", to_the_second(&item.expires_at), item.expires_in(now));
    let mut table = Table::new([("FINGERPRINT", Side::Left), (" ", Side::Left)]);
    for (name, value) in [
        ("fingerprint", Some(item.fingerprint.clone())),
        ("document sha256", Some(item.document_sha256.clone())),
        ("document", Some(format!("{} bytes{parts}", item.document_bytes))),
        ("upstream", Some(item.upstream.clone())),
        ("status", Some(item.status.to_string())),
        ("suspect", item.suspect.then_some(suspect)),
        ("reduced", item.reduced.then_some(reduced)),
        ("rule", Some(item.rule.clone())),
        ("scope", extra("scope")),
        ("generation", extra("generation")),
        ("refused", Some(format!("{}, to {}", to_the_second(&item.first_refused_at), item.refused_tenant))),
        ("replays", Some(replays)),
        ("expires", Some(expires)),
        ("content-type", item.content_type.clone()),
        ("content-encoding", extra("content_encoding")),
        ("content-language", extra("content_language")),
        ("body", Some(format!("{} bytes", item.body_bytes))),
    ] {
        if let Some(value) = value {
            table.row([name.to_owned(), value]);
        }
    }
    let facts = table.text();
    // a list of facts needs no head
    let facts = facts.split_once('\n').map_or("", |(_, rows)| rows);
    let body = match shown["body_text"].as_str() {
        Some(text) => on_lines(text),
        None => "(not text: --body writes it as it is)".to_owned(),
    };
    Ok(format!("{facts}\n\n{}", body.trim_end()))
}
