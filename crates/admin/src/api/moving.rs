//! A memory on its way to another gateway: all entries with all that they have, page by page, and back in.

mod portable;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequestParts, RawQuery, State};
use axum::{Extension, Json};
use bytes::Bytes;
use http::request::Parts;
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_gateway::{Gateway, MemoryBounds};
use nevertwice_store::{Fence, Imported, ListOrder, ListQuery, Moved, RefusalStore};
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::OwnedSemaphorePermit;

use self::portable::Portable;
use super::Answer;
use super::refusals::{page_length, read_cursor, whole, write_cursor};
use crate::access::Who;
use crate::problem::{Code, Problem};
use crate::query::{no_parameters, parameters};
use crate::{Peer, Shared};

/// The longest body of an import, in bytes: there is room for one entry with the longest body that can be configured.
pub(super) const IMPORT_MAX_BYTES: usize = 24 << 20;
/// The most entries of an import.
const ITEMS_MAX: usize = 1000;
/// A page of an export ends before the bodies on it are longer than this, unless it would be empty.
const PAGE_BYTES: u64 = 4 << 20;
/// A page of an export ends when it has taken so long.
const PAGE_TIME: Duration = Duration::from_secs(3);
/// How long the store may take for an import: it takes part of one that would last longer.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(7);
/// How much of a reason is told, in characters.
const REASON_MAX: usize = 300;

const PARAMETERS: [&str; 2] = ["limit", "cursor"];

/// Part of an export.
#[derive(Serialize)]
pub(super) struct Exported {
    items: Vec<Portable>,
    next_cursor: Option<String>,
    entries: u64,
}

pub(super) async fn export(
    State(state): State<Arc<Shared>>,
    Extension(who): Extension<Who>,
    Extension(Peer(peer)): Extension<Peer>,
    RawQuery(query): RawQuery,
) -> Answer<Exported> {
    let (_, store) = state.memory()?;
    let given = parameters(query.as_deref(), &PARAMETERS)?;
    let after = given.get("cursor", |text| read_cursor(ListOrder::Oldest, text))?;
    let limit = page_length(&given)?;
    if after.is_none() {
        tracing::info!(target: "nevertwice::audit", who = who.name(), %peer, "export of all refusals begun");
    }
    let began = Instant::now();
    let entries = store.entries().await?;
    let query = ListQuery { order: ListOrder::Oldest, limit, after, ..ListQuery::default() };
    let page = store.list(&query).await?;
    let (mut items, mut bytes, mut next) = (Vec::new(), 0, after);
    let mut ended_early = false;
    for summary in page.items {
        bytes += summary.body_bytes;
        if !items.is_empty() && (bytes > PAGE_BYTES || began.elapsed() > PAGE_TIME) {
            ended_early = true;
            break;
        }
        next = Some(summary.place);
        let shown = store.show(&summary.entry.fingerprint).await?;
        // one that was recorded again meanwhile comes later
        if let Some(shown) = shown.filter(|shown| shown.entry.recorded_at == summary.entry.recorded_at) {
            items.push(Portable::new(&shown, write_cursor(ListOrder::Oldest, summary.place)));
        }
    }
    let next = if ended_early { next } else { page.next };
    let next_cursor = next.map(|place| write_cursor(ListOrder::Oldest, place));
    Ok(Json(Exported { items, next_cursor, entries }))
}

/// What became of the entries of an import.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// So many items, from the first on, were dealt with. The others are for another request.
    done: usize,
    imported: u64,
    present: u64,
    expired: u64,
    skipped: u64,
    fenced: u64,
    invalid: Vec<Invalid>,
    fence: String,
}

/// An entry that is none.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Invalid {
    index: usize,
    reason: String,
}

/// A turn to import: bodies are large, so few are read at once.
pub(super) struct Turn {
    _place: OwnedSemaphorePermit,
}

impl FromRequestParts<Arc<Shared>> for Turn {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, state: &Arc<Shared>) -> Result<Self, Problem> {
        match Arc::clone(&state.imports).acquire_owned().await {
            Ok(place) => Ok(Self { _place: place }),
            Err(_) => Err(Problem::new(Code::Starting, "the gateway is stopping")),
        }
    }
}

pub(super) async fn import(
    State(state): State<Arc<Shared>>,
    Extension(who): Extension<Who>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    _turn: Turn,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Outcome> {
    let (gateway, store) = state.memory()?;
    no_parameters(query.as_deref())?;
    let Some(bounds) = gateway.memory_bounds() else {
        return Err(Problem::new(Code::MemoryOff, "the refusal memory is off"));
    };
    let body = whole(body, IMPORT_MAX_BYTES)?;
    let asked: Asked<'_> = serde_json::from_slice(&body)
        .map_err(|e| Problem::bad(format!("the body has to be {{\"items\": [...]}}: {e}")))?;
    let begun = asked.fence.map(|text| text.parse().map(Fence).map_err(|_| no_fence())).transpose()?;
    let sorted = Sorted::of(&asked.items.0, &gateway, bounds);

    // no entry is asked for, only where the sequence of forgets stands
    let now = store.recall(&Fingerprint::from_bytes([0; 32])).await?.fence;
    let fence = begun.unwrap_or(now);
    if fence > now {
        return Err(no_fence());
    }
    carry_out(&state, store, Batch { sorted, fence, max_entries: bounds.max_entries }, who, peer)
        .await
        .map(Json)
}

fn no_fence() -> Problem {
    Problem::bad(
        "the field `fence`: has to be the one that this import was told first, by this start of the gateway; \
         without it the import begins anew",
    )
}

/// What can be imported, and the rest, each with its place among the items.
#[derive(Default)]
struct Sorted {
    moved: Vec<Moved>,
    /// The place of each that is moved, and behind them the number of all items.
    places: Vec<usize>,
    skipped: Vec<usize>,
    invalid: Vec<Invalid>,
}

impl Sorted {
    fn of(items: &[&RawValue], gateway: &Gateway, bounds: MemoryBounds) -> Self {
        let mut sorted = Self::default();
        for (index, raw) in items.iter().enumerate() {
            // the place is within the item, which is one line as a rule
            let why = |e: serde_json::Error| e.to_string().replace(" at line 1 column ", " at column ");
            let read = serde_json::from_str::<Portable>(raw.get()).map_err(why);
            match read.and_then(Portable::read) {
                Ok((Moved { entry, .. }, suspect))
                    if suspect
                        || entry.body.len() as u64 > bounds.max_body_bytes
                        || gateway.distrusts(&entry.upstream, entry.recorded_at) =>
                {
                    sorted.skipped.push(index);
                }
                Ok((one, _)) => {
                    sorted.moved.push(one);
                    sorted.places.push(index);
                }
                Err(why) => {
                    let reason = why.chars().take(REASON_MAX).collect();
                    sorted.invalid.push(Invalid { index, reason });
                }
            }
        }
        sorted.places.push(items.len());
        sorted
    }
}

/// What became of all before the first that the store did not come to.
fn told(
    imported: &[Imported],
    places: &[usize],
    skipped: &[usize],
    mut invalid: Vec<Invalid>,
    fence: Fence,
) -> Outcome {
    let done = places.get(imported.len()).copied().unwrap_or_default();
    invalid.retain(|invalid| invalid.index < done);
    let count = |what| imported.iter().filter(|one| **one == what).count() as u64;
    Outcome {
        done,
        imported: count(Imported::Stored),
        present: count(Imported::AlreadyThere),
        expired: count(Imported::Expired),
        skipped: skipped.iter().filter(|index| **index < done).count() as u64,
        fenced: count(Imported::Fenced),
        invalid,
        fence: fence.0.to_string(),
    }
}

/// What is asked of the store.
struct Batch {
    sorted: Sorted,
    fence: Fence,
    max_entries: u64,
}

/// Imports, and leaves an audit line whether or not the caller waits for the answer.
async fn carry_out(
    state: &Shared,
    store: Arc<dyn RefusalStore>,
    batch: Batch,
    who: Who,
    Peer(peer): Peer,
) -> Result<Outcome, Problem> {
    let task = state.tasks.spawn(async move {
        let Batch { sorted: Sorted { moved, places, skipped, invalid }, fence, max_entries } = batch;
        let (who, entries) = (who.name(), moved.len());
        match tokio::time::timeout(IMPORT_TIMEOUT, store.import(moved, fence, max_entries)).await {
            Ok(Ok(imported)) => {
                let outcome = told(&imported, &places, &skipped, invalid, fence);
                let Outcome { imported, present, expired, skipped, fenced, ref invalid, .. } = outcome;
                let invalid = invalid.len();
                tracing::info!(
                    target: "nevertwice::audit",
                    who, %peer, imported, present, expired, skipped, fenced, invalid,
                    "refusals imported"
                );
                Ok(outcome)
            }
            Ok(Err(error)) => {
                tracing::error!(
                    target: "nevertwice::audit",
                    who, %peer, entries, %error,
                    "import failed, some entries may be there"
                );
                Err(Problem::from(error))
            }
            Err(_) => {
                tracing::error!(
                    target: "nevertwice::audit",
                    who, %peer, entries,
                    "import took too long, it may still happen"
                );
                let detail =
                    "the store has not answered, the import may still happen; to import again is safe";
                Err(Problem::new(Code::TimedOut, detail))
            }
        }
    });
    task.await.unwrap_or_else(|_| Err(Problem::new(Code::StoreFailed, "the import was cut off")))
}

/// The body of an import.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    #[serde(borrow)]
    items: Few<'a>,
    #[serde(default)]
    fence: Option<String>,
}

/// Not too many items, not read yet.
struct Few<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Few<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Few<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {ITEMS_MAX} entries")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == ITEMS_MAX {
                        return Err(serde::de::Error::custom(format_args!("more than {ITEMS_MAX} items")));
                    }
                    items.push(item);
                }
                Ok(Few(items))
            }
        }
        deserializer.deserialize_seq(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Result<usize, String> {
        serde_json::from_str::<Asked<'_>>(body).map(|asked| asked.items.0.len()).map_err(|e| e.to_string())
    }

    #[test]
    fn of_an_import_that_took_too_long_the_first_items_are_told() {
        let invalid = |index| Invalid { index, reason: String::new() };
        // 0 moved, 1 skipped, 2 invalid, 3 and 4 moved, 5 skipped, 6 invalid
        let told = |imported: &[Imported]| {
            let outcome = told(imported, &[0, 3, 4, 7], &[1, 5], vec![invalid(2), invalid(6)], Fence(9));
            let invalid: Vec<_> = outcome.invalid.iter().map(|invalid| invalid.index).collect();
            (outcome.done, outcome.imported, outcome.present, outcome.skipped, invalid)
        };
        use Imported::{AlreadyThere, Stored};
        assert_eq!(told(&[Stored]), (3, 1, 0, 1, vec![2]));
        assert_eq!(told(&[Stored, AlreadyThere]), (4, 1, 1, 1, vec![2]));
        assert_eq!(told(&[Stored, AlreadyThere, Stored]), (7, 2, 1, 2, vec![2, 6]));
    }

    #[test]
    fn the_body_of_an_import_is_a_list_that_is_not_too_long() {
        assert_eq!(asked("{\"items\":[]}"), Ok(0));
        assert_eq!(asked("{\"items\":[{\"a\":1}, 2, []],\"fence\":\"7\"}"), Ok(3));
        let many = |n: usize| format!("{{\"items\":[{}]}}", vec!["1"; n].join(","));
        assert_eq!(asked(&many(ITEMS_MAX)), Ok(ITEMS_MAX));
        for (body, part) in [
            (many(ITEMS_MAX + 1).as_str(), "more than 1000 items"),
            ("", "EOF"),
            ("{}", "missing field `items`"),
            ("[]", "invalid length"),
            ("{\"items\":{}}", "a list of at most 1000"),
            ("{\"items\":[],\"itmes\":[]}", "unknown field"),
            ("{\"items\":[],\"items\":[]}", "duplicate field"),
            ("{\"items\":[{]}", "line 1"),
            ("{\"items\":[],\"fence\":7}", "expected a string"),
        ] {
            let told = asked(body).err().unwrap_or_default();
            assert!(told.contains(part), "{body}: {told}");
        }
    }
}
