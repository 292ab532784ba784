//! The series of the loop breaker. There are none before one is on.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{UpstreamLabel, register};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamFailure {
    upstream: Arc<str>,
    status: &'static str,
}

/// The statuses that a held request is counted under.
const FAILURES: [&str; 4] = ["429", "500", "501", "5xx"];

/// The families.
pub(super) struct LoopBreakerFamilies {
    held: Family<UpstreamFailure, Counter>,
    fingerprints: Family<UpstreamLabel, Gauge>,
}

/// The handles of the loop breaker of one upstream.
pub(crate) struct LoopBreakerMetrics {
    held: [Counter; FAILURES.len()],
    fingerprints: Gauge,
}

impl LoopBreakerFamilies {
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            held: register(r, "gateway_loop_breaker_held", "Requests answered by the loop breaker"),
            fingerprints: register(
                r,
                "gateway_loop_breaker_fingerprints",
                "Fingerprints that the loop breaker holds now",
            ),
        }
    }

    /// The handles of one upstream.
    pub(super) fn of(&self, upstream: &str) -> LoopBreakerMetrics {
        let upstream: Arc<str> = upstream.into();
        LoopBreakerMetrics {
            held: FAILURES.map(|status| {
                let label = UpstreamFailure { upstream: Arc::clone(&upstream), status };
                self.held.get_or_create_owned(&label)
            }),
            fingerprints: self.fingerprints.get_or_create_owned(&UpstreamLabel { upstream }),
        }
    }
}

impl LoopBreakerMetrics {
    pub(crate) fn held(&self, status: u16) {
        let slot = FAILURES.iter().position(|name| name.parse() == Ok(status));
        self.held[slot.unwrap_or(FAILURES.len() - 1)].inc();
    }

    pub(crate) fn set_fingerprints(&self, held: usize) {
        self.fingerprints.set(i64::try_from(held).unwrap_or(i64::MAX));
    }
}
