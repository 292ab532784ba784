//! How long things are kept after they stopped to count. The rules are the same in every store, and they are applied when
//! something is used: when a store really removes what is over is its own affair and makes no difference to anyone.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::Entry;
use nevertwice_domain::strike::Strike;

/// For how long an entry that has expired is kept, unseen, so that its tally goes on when the same document is refused again:
/// a file that is sent every ten minutes for five weeks is one line with thousands of replays, not 35 lines.
pub(crate) const REMNANT_MS: u64 = 24 * 60 * 60 * 1000;

/// For how long refusals in a row count from the latest one.
pub(crate) const STRIKE_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// Whether the entry counts, by its own life.
pub(crate) fn is_live(entry: &Entry, now: Millis) -> bool {
    entry.remaining_ms(now).is_some()
}

/// Whether the entry may be replayed, as far as it says itself: one of a schema that is not known is kept for people to see, and is replaced
/// by the next record.
pub(crate) fn is_servable(entry: &Entry, now: Millis) -> bool {
    entry.is_understood() && is_live(entry, now)
}

/// Whether `new` is one more refusal of what `old` is about, which hands on its tally and its first refusal then.
pub(crate) fn goes_on(old: &Entry, new: &Entry, now: Millis) -> bool {
    now < old.expires_at().plus_ms(REMNANT_MS)
        && old.document.digest == new.document.digest
        && old.status == new.status
}

/// Whether the refusals in a row still count.
pub(crate) fn is_in_a_row(strike: &Strike, now: Millis) -> bool {
    now.since_ms(Millis(strike.last_at_ms)) < STRIKE_MS
}
