//! `nevertwice refusals list`.

use clap::{Args, ValueEnum};
use nevertwice_domain::clock::Millis;
use nevertwice_domain::fingerprint::DocumentDigest;
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use serde_json::json;

use super::{Item, REFUSALS, a_document, a_status, now};
use crate::admin_client::AdminArgs;
use crate::args::{a_tenant, an_upstream};
use crate::exit::{Exit, Failure};
use crate::pages::{self, Page};
use crate::print;
use crate::table::{Side, Table, to_the_second};

/// Tenants that are named in the narrow table.
const TENANTS_SHOWN: usize = 4;

/// Which refusals to list.
#[derive(Args, Debug)]
pub(super) struct List {
    /// Of this upstream
    #[arg(long, value_name = "NAME", value_parser = an_upstream)]
    pub(super) upstream: Option<UpstreamName>,
    /// With this status
    #[arg(long, value_parser = a_status)]
    pub(super) status: Option<RefusalStatus>,
    /// Of the document with this SHA-256, or of the document in this file
    #[arg(long, value_name = "SHA256|FILE", value_parser = a_document)]
    pub(super) document: Option<DocumentDigest>,
    /// Refused to, or replayed to, this tenant
    #[arg(long, value_name = "ID", value_parser = a_tenant)]
    pub(super) tenant: Option<TenantId>,
    /// What stands first
    #[arg(long, value_enum, default_value = "replays")]
    pub(super) sort: Sort,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: u32,
    /// Whole fingerprints, and all tenants
    #[arg(long)]
    wide: bool,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    /// The most replayed
    Replays,
    /// The latest recorded
    Recent,
}

impl List {
    pub(super) fn parameters(&self) -> Vec<(&'static str, String)> {
        let sort = match self.sort {
            Sort::Replays => "replays",
            Sort::Recent => "recent",
        };
        let filters = [
            ("upstream", self.upstream.as_ref().map(ToString::to_string)),
            ("status", self.status.map(|v| v.to_string())),
            ("document", self.document.map(|v| v.to_string())),
            ("tenant", self.tenant.as_ref().map(ToString::to_string)),
            ("sort", Some(sort.to_owned())),
        ];
        filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

pub(super) async fn run(list: &List) -> Result<Exit, Failure> {
    let parameters = list.parameters();
    let client = list.admin.client()?;
    let Page { items, next, .. } = pages::all(&client, REFUSALS, &parameters, list.limit).await?;
    if list.json {
        return print::line(&format!("{:#}", json!({ "items": items, "next_cursor": next })));
    }
    let items = items.iter().map(Item::read).collect::<Result<Vec<_>, _>>()?;
    if items.is_empty() {
        let filtered = parameters.len() > 1;
        return print::line(if filtered { "no refusal matches" } else { "no refusal is remembered" });
    }
    let done = print::line(&table(&items, list.wide, now()))?;
    if next.is_some() {
        print::error(&format!("{} shown, there are more: raise --limit to see them", items.len()));
    }
    Ok(done)
}

pub(super) fn table(items: &[Item], wide: bool, now: Millis) -> String {
    let mut table = Table::new([
        ("REPLAYS", Side::Right),
        ("STATUS", Side::Left),
        ("UPSTREAM", Side::Left),
        ("DOCUMENT", Side::Left),
        ("FINGERPRINT", Side::Left),
        ("FIRST REFUSED", Side::Left),
        ("LAST REPLAY", Side::Left),
        ("EXPIRES IN", Side::Right),
        ("TENANTS", Side::Left),
    ]);
    for item in items {
        let fingerprint =
            if wide { &item.fingerprint } else { item.fingerprint.get(..12).unwrap_or_default() };
        table.row([
            item.replays.to_string(),
            item.status(),
            item.upstream.clone(),
            item.document_sha256.clone(),
            fingerprint.to_owned(),
            to_the_second(&item.first_refused_at),
            item.last_replayed_at.as_deref().map_or_else(|| "-".to_owned(), to_the_second),
            item.expires_in(now),
            tenants(&item.senders(), wide),
        ]);
    }
    table.text()
}

fn tenants(all: &[&str], wide: bool) -> String {
    match all.split_at_checked(TENANTS_SHOWN) {
        Some((shown, rest)) if !wide && !rest.is_empty() => format!("{} +{}", shown.join(", "), rest.len()),
        _ => all.join(", "),
    }
}
