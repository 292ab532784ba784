//! The refusal memory's settings for all upstreams. The hard rail on statuses is [`RefusalStatus`]; its reasons are told
//! here.

use nevertwice_domain::status::{RefusalStatus, StatusSet};

use super::Context;
use crate::bounds;
use crate::checked::Memory;
use crate::problem::Place;
use crate::raw;
use crate::raw::read::{At, Whole};
use crate::secret::{self, Purpose};

/// Checks the whole block even when the memory is off, so that switching it on brings no surprise.
pub(super) fn memory(raw: Option<&At<raw::NegativeCache>>, cx: &mut Context<'_>) -> Option<Memory> {
    let At { value: raw, place } = raw?;
    let memory = Memory {
        ttl: cx.seconds(&bounds::TTL_S, raw.ttl_s.as_ref()),
        max_entries: bounds::MAX_ENTRIES.take(raw.max_entries.as_ref(), cx.found),
        max_body_bytes: bounds::MAX_BODY_BYTES.take(raw.max_body_bytes.as_ref(), cx.found),
        statuses: statuses(raw.statuses.as_ref(), cx),
        key_secret: raw
            .key_secret
            .as_ref()
            .and_then(|secret| secret::resolve(secret, Purpose::HashKey, cx.base, cx.secrets, cx.found)),
    };
    if raw.enabled.is_none() && !cx.found.explains(&place.key_path("enabled")) {
        let cause = "`enabled` is not given, so the memory is off";
        cx.found.warning(
            &place.missing("enabled"),
            cause,
            "write `enabled: true`, or `enabled: false` if that is meant",
        );
    }
    raw.enabled.as_ref().is_some_and(|e| e.value).then_some(memory)
}

/// The statuses that are remembered, whether or not the memory is on. Tells no problems: [`memory`] does.
pub(super) fn remembered(raw: Option<&At<raw::NegativeCache>>) -> StatusSet {
    let Some(given) = raw.and_then(|raw| raw.value.statuses.as_ref()) else { return StatusSet::default() };
    let numbers = given.value.iter().filter_map(|status| u16::try_from(status.value.0).ok());
    StatusSet::new(numbers.filter_map(|number| RefusalStatus::new(number).ok()))
}

/// The status, unless it can never be remembered.
pub(super) fn status(raw: &At<Whole>, cx: &mut Context<'_>) -> Option<RefusalStatus> {
    let At { value: Whole(number), place } = raw;
    match u16::try_from(*number).map(RefusalStatus::new) {
        Ok(Ok(status)) => return Some(status),
        Ok(Err(reason)) => cx.found.error(place, reason.to_string(), "remove it"),
        Err(_) => {
            let cause = format!("{number} is not an HTTP status");
            cx.found.error(place, cause, "statuses are 400 to 499 here");
        }
    }
    None
}

fn statuses(raw: Option<&At<Vec<At<Whole>>>>, cx: &mut Context<'_>) -> StatusSet {
    let Some(At { value: raw, place }) = raw else { return StatusSet::default() };
    if raw.is_empty() && !cx.found.explains(&place.path) {
        let cure = "to switch the memory off write `enabled: false`; for the usual statuses remove the key";
        cx.found.error(place, "the list is empty", cure);
    }
    let mut seen: Vec<(RefusalStatus, &Place)> = Vec::new();
    for number in raw {
        let Some(status) = status(number, cx) else { continue };
        let place = &number.place;
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == status) {
            let cause = format!("{status} stands here a second time (first on {})", first.word());
            cx.found.error(place, cause, "keep one of them");
            continue;
        }
        if let Some(doubt) = status.doubt() {
            let cause = format!("{status} is seldom a verdict on a document: {doubt}");
            cx.found.warning(place, cause, "remove it unless this upstream uses it for documents");
        }
        seen.push((status, place));
    }
    StatusSet::new(seen.into_iter().map(|(status, _)| status))
}
