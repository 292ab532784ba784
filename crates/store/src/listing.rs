//! What a [`ListQuery`] asks for.

use nevertwice_domain::entry::{Entry, Tally};

use crate::{Cursor, ListOrder, ListQuery};

/// The last place there can be in the order of recording.
const LAST: u64 = i64::MAX.cast_unsigned();

impl Cursor {
    /// The cursor at a place of [`ListQuery::place`].
    pub(crate) fn at((replays, sequence): (u64, u64)) -> Self {
        Self { replays, sequence }
    }
}

impl ListQuery {
    /// Whether the filters let this entry through.
    pub(crate) fn selects(&self, entry: &Entry, tally: &Tally) -> bool {
        self.upstream.as_ref().is_none_or(|upstream| entry.upstream == *upstream)
            && self.status.is_none_or(|status| entry.status == status)
            && self.document.is_none_or(|document| entry.document.digest == document)
            && self
                .tenant
                .as_ref()
                .is_none_or(|tenant| entry.refused_tenant == *tenant || tally.tenants.contains(tenant))
    }

    /// Where an entry stands in the order that is asked for: the greatest place comes first.
    pub(crate) fn place(&self, replays: u64, sequence: u64) -> (u64, u64) {
        match self.order {
            ListOrder::Replays => (replays, sequence),
            ListOrder::Recent => (0, sequence),
            ListOrder::Oldest => (0, LAST.saturating_sub(sequence)),
        }
    }

    /// The sequence after which the page begins, where the earliest come first; 0 in another order.
    pub(crate) fn begins_after(&self) -> u64 {
        match (self.order, self.after) {
            (ListOrder::Oldest, Some(after)) => LAST.saturating_sub(after.sequence),
            _ => 0,
        }
    }

    /// How many entries a page has at most.
    pub(crate) fn page_length(&self) -> usize {
        self.limit.clamp(1, 1000)
    }
}
