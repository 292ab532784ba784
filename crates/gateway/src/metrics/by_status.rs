//! What is counted for each status of an upstream.

use std::sync::Arc;

use nevertwice_domain::status::RefusalStatus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct UpstreamStatus {
    upstream: Arc<str>,
    status: u16,
}

/// One family of an upstream by status.
pub(super) struct ByStatus {
    family: Family<UpstreamStatus, Counter>,
    upstream: Arc<str>,
    counters: Vec<(RefusalStatus, Counter)>,
}

impl ByStatus {
    /// The series of these statuses are there from the start.
    pub(super) fn new(
        family: &Family<UpstreamStatus, Counter>,
        upstream: &Arc<str>,
        statuses: &[RefusalStatus],
    ) -> Self {
        let (family, upstream) = (family.clone(), Arc::clone(upstream));
        let mut all = Self { family, upstream, counters: Vec::new() };
        all.counters = statuses.iter().map(|status| (*status, all.series(*status))).collect();
        all
    }

    fn series(&self, status: RefusalStatus) -> Counter {
        let label = UpstreamStatus { upstream: Arc::clone(&self.upstream), status: status.get() };
        self.family.get_or_create_owned(&label)
    }

    pub(super) fn count(&self, status: RefusalStatus) {
        match self.counters.iter().find(|(s, _)| *s == status) {
            Some((_, counter)) => counter.inc(),
            // of a profile that was put in force later
            None => self.series(status).inc(),
        };
    }
}
