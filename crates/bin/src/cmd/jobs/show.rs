//! `nevertwice jobs show`.

use clap::Args;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::JobId;
use serde_json::Value;

use super::{Item, JOBS, an_id, now};
use crate::admin_client::AdminArgs;
use crate::exit::{Exit, Failure};
use crate::print;
use crate::table::{Side, Table, to_the_second};

const EXAMPLES: &str = "\
Examples:
  nevertwice jobs show 019a2f6e-7c1b-7d3e-9a51-0d2c4b6f8e10
  grep 019a2f6e-7c1b-7d3e-9a51-0d2c4b6f8e10 audit.jsonl    # its attempts";

/// Which job to show.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Show {
    /// Its id
    #[arg(value_parser = an_id)]
    id: JobId,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) async fn run(show: &Show) -> Result<Exit, Failure> {
    let shown = show.admin.client()?.get(&format!("{JOBS}/{}", show.id)).await?;
    if show.json {
        return print::line(&format!("{shown:#}"));
    }
    print::line(&text(&shown, now())?)
}

pub(super) fn text(shown: &Value, now: Millis) -> Result<String, Failure> {
    let item = Item::read(shown)?;
    let time = |at: &Option<String>| at.as_deref().map(to_the_second);
    let note = Some(item.note(now)).filter(|note| note != "-" && !item.is_final());
    let status = format!("{} for {}", item.status, item.for_how_long(now));
    let mut table = Table::new([("JOB", Side::Left), (" ", Side::Left)]);
    let error = item.error.as_ref();
    let kind = error.map(|error| match (error.verdict, error.retryable) {
        // it had failed when it came
        (true, _) if item.started_at.is_none() => {
            "a verdict on the document, known when it came: its input is not kept"
        }
        (true, _) => "a verdict on the document: a retry asks the memory first",
        (false, true) => "another attempt may end otherwise",
        (false, false) => "another attempt is not expected to end otherwise",
    });
    let result = item.result.as_ref().map(|result| {
        let of = result.content_type.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
        format!("{}, {} bytes{of}", result.status, result.bytes)
    });
    for (name, value) in [
        ("job", Some(item.id.clone())),
        ("status", Some(status)),
        ("now", note),
        ("tenant", Some(item.tenant.clone())),
        ("upstream", Some(item.upstream.clone())),
        ("path", Some(item.path.clone())),
        ("input", Some(format!("{} bytes", item.bytes))),
        ("document sha256", item.document_sha256.clone()),
        ("created", Some(to_the_second(&item.created_at))),
        ("started", time(&item.started_at)),
        ("finished", time(&item.finished_at)),
        ("removed", time(&item.expires_at)),
        ("attempts", Some(item.attempts.to_string())),
        ("error", error.map(|error| error.code.clone())),
        ("message", error.map(|error| error.message.clone()).filter(|message| !message.is_empty())),
        ("that is", kind.map(str::to_owned)),
        ("result", result),
    ] {
        if let Some(value) = value {
            table.row([name.to_owned(), value]);
        }
    }
    let facts = table.text();
    // a list of facts needs no head
    Ok(facts.split_once('\n').map_or("", |(_, rows)| rows).to_owned())
}
