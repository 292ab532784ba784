//! What a [`ListQuery`] asks for.

use nevertwice_domain::entry::{Entry, Tally};

use crate::ListQuery;

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

    /// How many entries a page has at most.
    pub(crate) fn page_length(&self) -> usize {
        self.limit.clamp(1, 1000)
    }
}
