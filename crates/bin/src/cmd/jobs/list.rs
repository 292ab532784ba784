//! `nevertwice jobs list`.

use clap::Args;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::JobStatus;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use serde_json::{Value, json};

use super::{Item, JOBS, a_status, now};
use crate::admin_client::AdminArgs;
use crate::args::{a_tenant, an_upstream};
use crate::exit::{Exit, Failure};
use crate::pages::{self, Page};
use crate::print;
use crate::table::{Side, Table, to_the_second};

const EXAMPLES: &str = "\
Examples:
  nevertwice jobs list --status running
  nevertwice jobs list --upstream ocr --status failed --limit 1000
  nevertwice jobs list --status failed --limit 1000 --json \\
      | jq -r '.items[] | select(.error.code == \"INTERRUPTED\").id'";

/// Which jobs to list.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct List {
    /// Of this upstream
    #[arg(long, value_name = "NAME", value_parser = an_upstream)]
    upstream: Option<UpstreamName>,
    /// Of this tenant
    #[arg(long, value_name = "ID", value_parser = a_tenant)]
    tenant: Option<TenantId>,
    /// With this status: queued, running, succeeded, failed or cancelled
    #[arg(long, value_parser = a_status)]
    status: Option<JobStatus>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: u32,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

impl List {
    pub(super) fn parameters(&self) -> Vec<(&'static str, String)> {
        let filters = [
            ("tenant", self.tenant.as_ref().map(ToString::to_string)),
            ("upstream", self.upstream.as_ref().map(ToString::to_string)),
            ("status", self.status.map(|status| status.name().to_owned())),
        ];
        filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

pub(super) async fn run(list: &List) -> Result<Exit, Failure> {
    let parameters = list.parameters();
    let Page { items, next, beside } =
        pages::all(&list.admin.client()?, JOBS, &parameters, list.limit).await?;
    let depth = &beside["depth"];
    if list.json {
        let stored_bytes = &beside["stored_bytes"];
        let json =
            json!({ "items": items, "next_cursor": next, "depth": depth, "stored_bytes": stored_bytes });
        return print::line(&format!("{json:#}"));
    }
    let items = items.iter().map(Item::read).collect::<Result<Vec<_>, _>>()?;
    let none = if parameters.is_empty() { "there is no job" } else { "no job matches" };
    let jobs = if items.is_empty() { none.to_owned() } else { table(&items, now()) };
    let parts = [Some(jobs), depth_table(depth), stored(&beside["stored_bytes"])];
    let done = print::line(&parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n"))?;
    if next.is_some() {
        print::error(&format!("{} shown, there are more: raise --limit to see them", items.len()));
    }
    Ok(done)
}

pub(super) fn table(items: &[Item], now: Millis) -> String {
    let mut table = Table::new([
        ("ID", Side::Left),
        ("STATUS", Side::Left),
        ("FOR", Side::Right),
        ("UPSTREAM", Side::Left),
        ("TENANT", Side::Left),
        ("CREATED", Side::Left),
        ("ATTEMPTS", Side::Right),
        ("NOTE", Side::Left),
    ]);
    for item in items {
        table.row([
            item.id.clone(),
            item.status.clone(),
            item.for_how_long(now),
            item.upstream.clone(),
            item.tenant.clone(),
            to_the_second(&item.created_at),
            item.attempts.to_string(),
            item.note(now),
        ]);
    }
    table.text()
}

/// What waits and runs; `None` when nothing does.
pub(super) fn depth_table(depth: &Value) -> Option<String> {
    let rows = depth.as_array().filter(|rows| !rows.is_empty())?;
    let mut table = Table::new([("UPSTREAM", Side::Left), ("QUEUED", Side::Right), ("RUNNING", Side::Right)]);
    for row in rows {
        let count = |name: &str| row[name].as_u64().unwrap_or_default().to_string();
        table.row([row["upstream"].as_str().unwrap_or("?").to_owned(), count("queued"), count("running")]);
    }
    Some(table.text())
}

/// What inputs and results take; `None` when they take nothing, and of a gateway that does not say.
pub(super) fn stored(bytes: &Value) -> Option<String> {
    let bytes = bytes.as_u64().filter(|bytes| *bytes > 0)?;
    Some(format!("stored inputs and results: {bytes} bytes"))
}
