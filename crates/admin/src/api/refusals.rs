//! Entries: list, show, forget.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, RawQuery, State};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::StatusCode;
use nevertwice_domain::entry::Selector;
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::UpstreamName;
use nevertwice_gateway::Gateway;
use nevertwice_store::{Cursor, ListOrder, ListQuery, RefusalStore};
use serde::Serialize;

use super::shapes::{Detail, Item, Items};
use super::{Answer, segment};
use crate::access::Who;
use crate::near;
use crate::problem::{Code, Problem};
use crate::query::{self, Given, fields, no_parameters, parameters};
use crate::{Peer, Shared};

/// Entries on a page when nothing is said.
const LIMIT: usize = 100;
/// The most entries on a page.
const LIMIT_MAX: usize = 1000;
/// How long the store may take for a forget, which goes on when the caller has left.
const FORGET_TIMEOUT: Duration = Duration::from_secs(7);

const PARAMETERS: [&str; 7] = ["upstream", "status", "document", "tenant", "sort", "limit", "cursor"];
const FIELDS: [&str; 6] = ["fingerprint", "document", "upstream", "status", "before", "all"];

pub(super) async fn list(State(state): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Answer<Items> {
    let (gateway, store) = state.memory()?;
    let query = list_query(query.as_deref())?;
    let page = store.list(&query).await?;
    if page.items.is_empty()
        && let Some(upstream) = &query.upstream
    {
        check_upstream(&gateway, store.as_ref(), upstream).await?;
    }
    let next_cursor = page.next.map(|cursor| write_cursor(query.order, cursor));
    Ok(Json(Items { items: page.items.into_iter().map(Item::from).collect(), next_cursor }))
}

fn list_query(query: Option<&str>) -> Result<ListQuery, Problem> {
    let given = parameters(query, &PARAMETERS)?;
    let order = given.get("sort", |text| match text.as_str() {
        "replays" => Ok(ListOrder::Replays),
        "recent" => Ok(ListOrder::Recent),
        _ => Err("has to be `replays` or `recent`".to_owned()),
    })?;
    let order = order.unwrap_or_default();
    let status = given.get("status", |text| {
        text.parse().map_err(|_| "has to be a number".to_owned()).and_then(query::status)
    })?;
    Ok(ListQuery {
        upstream: given.get("upstream", |text| query::upstream(text))?,
        status,
        document: given.get("document", |text| query::document(text))?,
        tenant: given.get("tenant", |text| query::tenant(text))?,
        order,
        limit: page_length(&given)?,
        after: given.get("cursor", |text| read_cursor(order, text))?,
    })
}

/// The parameter `limit`.
pub(super) fn page_length(given: &Given<String>) -> Result<usize, Problem> {
    let limit = given.get("limit", |text| {
        let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
        limit.ok_or_else(|| format!("has to be a number from 1 to {LIMIT_MAX}"))
    })?;
    Ok(limit.unwrap_or(LIMIT))
}

/// The place in the list, with the order that it belongs to.
pub(super) fn write_cursor(order: ListOrder, cursor: Cursor) -> String {
    let mut bytes = vec![order_byte(order)];
    bytes.extend(cursor.replays.to_be_bytes());
    bytes.extend(cursor.sequence.to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(super) fn read_cursor(order: ListOrder, text: &str) -> Result<Cursor, String> {
    let unknown = || "has to be the `next_cursor` of the page before".to_owned();
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| unknown())?;
    let [kind, numbers @ ..] = bytes.as_slice() else { return Err(unknown()) };
    let (replays, sequence) = numbers.split_at_checked(8).ok_or_else(unknown)?;
    // the store's numbers are signed
    let number =
        |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes).filter(|n| i64::try_from(*n).is_ok());
    let (Some(replays), Some(sequence)) = (number(replays), number(sequence)) else { return Err(unknown()) };
    if *kind != order_byte(order) {
        return Err("belongs to a list in another order".to_owned());
    }
    Ok(Cursor { replays, sequence })
}

fn order_byte(order: ListOrder) -> u8 {
    match order {
        ListOrder::Replays => 1,
        ListOrder::Recent => 2,
        ListOrder::Oldest => 3,
    }
}

pub(super) async fn show(
    State(state): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
    path: Result<Path<String>, PathRejection>,
) -> Answer<Detail> {
    let (_, store) = state.memory()?;
    no_parameters(query.as_deref())?;
    let shown = store.show(&fingerprint(path)?).await?;
    shown.map(|shown| Json(Detail::from(shown))).ok_or_else(no_refusal)
}

/// What was forgotten.
#[derive(Serialize)]
pub(super) struct Forgotten {
    forgotten: u64,
}

pub(super) async fn forget_one(
    State(state): State<Arc<Shared>>,
    Extension(who): Extension<Who>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    path: Result<Path<String>, PathRejection>,
) -> Answer<Forgotten> {
    let memory = state.memory()?;
    no_parameters(query.as_deref())?;
    let which = Selector::key(fingerprint(path)?);
    match carry_out(&state, memory, which, who, peer).await? {
        0 => Err(no_refusal()),
        forgotten => Ok(Json(Forgotten { forgotten })),
    }
}

pub(super) async fn forget(
    State(state): State<Arc<Shared>>,
    Extension(who): Extension<Who>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Forgotten> {
    let (gateway, store) = state.memory()?;
    no_parameters(query.as_deref())?;
    let which = selector(&whole(body, super::BODY_MAX_BYTES)?)?;
    if let Some(upstream) = &which.upstream {
        check_upstream(&gateway, store.as_ref(), upstream).await?;
    }
    Ok(Json(Forgotten { forgotten: carry_out(&state, (gateway, store), which, who, peer).await? }))
}

pub(super) fn whole(body: Result<Bytes, BytesRejection>, most: usize) -> Result<Bytes, Problem> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(Code::BodyTooLarge, format!("at most {most} bytes")),
        _ => Problem::bad("the body ended early"),
    })
}

fn selector(body: &[u8]) -> Result<Selector, Problem> {
    let given = fields(body, &FIELDS)?;
    let all = given.get("all", |value| match value.as_bool() {
        Some(true) => Ok(()),
        _ => Err("has to be true, or left out".to_owned()),
    })?;
    if all.is_some() && given.len() > 1 {
        return Err(Problem::bad("`all` stands alone: with another field it is not clear what is meant"));
    }
    if given.is_empty() {
        let detail = "no field says what to forget; to forget everything, say `{\"all\": true}`";
        return Err(Problem::bad(detail));
    }
    Ok(Selector {
        fingerprint: given.get("fingerprint", |v| query::string(v).and_then(query::fingerprint))?,
        document: given.get("document", |v| query::string(v).and_then(query::document))?,
        upstream: given.get("upstream", |v| query::string(v).and_then(query::upstream))?,
        status: given.get("status", |v| {
            v.as_u64().ok_or_else(|| "has to be a number".to_owned()).and_then(query::status)
        })?,
        before: given.get("before", |v| query::string(v).and_then(query::time))?,
    })
}

/// Forgets, and leaves an audit line whether or not the caller waits for the answer.
async fn carry_out(
    state: &Shared,
    (gateway, store): (Gateway, Arc<dyn RefusalStore>),
    which: Selector,
    who: Who,
    Peer(peer): Peer,
) -> Result<u64, Problem> {
    let task = state.tasks.spawn(async move {
        let what = described(&which);
        let who = who.name();
        // also when the store fails: nobody should have to wait for the end of a hold
        let held = gateway.forget_held(&which);
        let forgetting = async {
            // the one first, and the other whatever became of it
            let pending = gateway.forget_pending(&which).await;
            let forgotten = store.forget(&which).await;
            pending.and(forgotten)
        };
        match tokio::time::timeout(FORGET_TIMEOUT, forgetting).await {
            Ok(Ok(remembered)) => {
                let forgotten = remembered + held;
                tracing::info!(target: "nevertwice::audit", who, %peer, what, forgotten, held, "refusals forgotten");
                Ok(forgotten)
            }
            Ok(Err(error)) => {
                tracing::error!(target: "nevertwice::audit", who, %peer, what, %error, "forget failed");
                Err(Problem::from(error))
            }
            Err(_) => {
                tracing::error!(target: "nevertwice::audit", who, %peer, what, "forget took too long, it may still happen");
                Err(Problem::new(Code::TimedOut, "the store has not answered, the forget may still happen"))
            }
        }
    });
    task.await.unwrap_or_else(|_| Err(Problem::new(Code::StoreFailed, "the forget was cut off")))
}

/// The conditions that are set, for the audit.
fn described(which: &Selector) -> String {
    let conditions = [
        which.fingerprint.map(|v| format!("fingerprint={v}")),
        which.document.map(|v| format!("document={v}")),
        which.upstream.as_ref().map(|v| format!("upstream={v}")),
        which.status.map(|v| format!("status={v}")),
        which.before.map(|v| format!("before={v}")),
    ];
    let set: Vec<_> = conditions.into_iter().flatten().collect();
    if set.is_empty() { "all".to_owned() } else { set.join(" ") }
}

/// Refuses a name that is neither configured nor in the store: entries of an upstream that was removed can still be
/// listed and forgotten, but a mistyped name does not look like an upstream without refusals.
async fn check_upstream(
    gateway: &Gateway,
    store: &dyn RefusalStore,
    name: &UpstreamName,
) -> Result<(), Problem> {
    if gateway.has_upstream(name) {
        return Ok(());
    }
    let query = ListQuery { upstream: Some(name.clone()), limit: 1, ..ListQuery::default() };
    if store.list(&query).await?.items.is_empty() {
        let detail = format!("there is no upstream `{name}`; {}", known_upstreams(gateway));
        return Err(Problem::bad(detail));
    }
    Ok(())
}

/// `upstreams: a, b`; at most 50 of them.
pub(super) fn known_upstreams(gateway: &Gateway) -> String {
    let all = gateway.upstreams();
    let names: Vec<_> = all.iter().map(|u| u.name.as_str()).take(50).collect();
    format!("upstreams: {}", names.join(", "))
}

fn fingerprint(path: Result<Path<String>, PathRejection>) -> Result<Fingerprint, Problem> {
    let text = segment(path)?;
    query::fingerprint(&text)
        .map_err(|why| Problem::bad(format!("the fingerprint {} in the path: {why}", near::quoted(&text))))
}

fn no_refusal() -> Problem {
    Problem::new(Code::NoRefusal, "it expired, was forgotten or accepted, or never was")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_as_they_were_and_nothing_else_is_one() {
        for cursor in
            [Cursor { replays: 0, sequence: 0 }, Cursor { replays: 3019, sequence: i64::MAX as u64 }]
        {
            let text = write_cursor(ListOrder::Replays, cursor);
            assert_eq!(read_cursor(ListOrder::Replays, &text), Ok(cursor));
            assert!(read_cursor(ListOrder::Recent, &text).is_err());
            assert!(read_cursor(ListOrder::Replays, &text[1..]).is_err());
            assert!(read_cursor(ListOrder::Replays, &format!("{text}AAAA")).is_err());
        }
        let too_big = write_cursor(ListOrder::Replays, Cursor { replays: u64::MAX, sequence: 1 });
        for text in ["", "AQ", "x y", "1", &too_big] {
            assert!(read_cursor(ListOrder::Replays, text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_selection_says_what_it_means() {
        let told = |body: &str| match selector(body.as_bytes()) {
            Ok(which) => described(&which),
            Err(problem) => format!("{problem:?}"),
        };
        let hex = "ab".repeat(32);
        assert_eq!(told("{\"all\":true}"), "all");
        assert_eq!(told("{\"upstream\":\"ocr\",\"status\":422}"), "upstream=ocr status=422");
        assert_eq!(told("{\"status\":200}"), "status=200");
        assert_eq!(told(&format!("{{\"document\":\"{}\"}}", hex.to_uppercase())), format!("document={hex}"));
        assert_eq!(told("{\"before\":\"2026-01-31T13:00:00+01:00\"}"), "before=2026-01-31T12:00:00.000Z");
        for (body, part) in [
            ("{}", "no field says what to forget"),
            ("{\"all\":false}", "has to be true"),
            ("{\"all\":\"true\"}", "has to be true"),
            ("{\"all\":true,\"status\":400}", "stands alone"),
            ("{\"statuss\":400}", "did you mean `status`?"),
            ("{\"status\":404}", "never remembered: it speaks of the route"),
            ("{\"status\":500}", "not a 4xx status"),
            ("{\"status\":201}", "not a 4xx status"),
            ("{\"status\":70000}", "is no status"),
            ("{\"status\":\"400\"}", "the field `status`: has to be a number"),
            ("{\"status\":null}", "has to be a number"),
            ("{\"upstream\":null}", "has to be a string"),
            ("{\"upstream\":\"\"}", "the field `upstream`"),
            ("{\"document\":\"abc\"}", "64 hex digits"),
            ("{\"fingerprint\":\"*\"}", "64 hex digits"),
            ("{\"before\":\"yesterday\"}", "has to be a time"),
            ("{\"before\":\"2026-01-31T12:00:00\"}", "has to be a time"),
        ] {
            let told = told(body);
            assert!(told.contains(part), "{body}: {told}");
        }
    }
}
