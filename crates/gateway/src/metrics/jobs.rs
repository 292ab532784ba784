//! The series of jobs. There are none where jobs are not served.

use std::collections::HashMap;
use std::sync::Arc;

use nevertwice_domain::job::JobStatus;
use nevertwice_domain::tenant::UpstreamName;
use nevertwice_store::work::JobDepth;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::{Metrics, ResultLabel, UpstreamLabel, register};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamEnd {
    upstream: Arc<str>,
    status: &'static str,
}

/// How jobs end.
const ENDS: [JobStatus; 3] = [JobStatus::Succeeded, JobStatus::Failed, JobStatus::Cancelled];

/// The series, all there from the start: labels are the configured upstreams and closed lists.
pub(crate) struct JobMetrics {
    of: HashMap<UpstreamName, OfUpstream>,
    stored_bytes: Gauge,
}

struct OfUpstream {
    ends: [Counter; ENDS.len()],
    queued: Gauge,
    running: Gauge,
}

/// The series of webhooks.
pub(crate) struct WebhookMetrics {
    pub(crate) delivered: Counter,
    pub(crate) refused: Counter,
    pub(crate) given_up: Counter,
    pub(crate) retried: Counter,
}

impl Metrics {
    /// The series of jobs at these upstreams.
    pub(crate) fn jobs<'a>(&self, upstreams: impl Iterator<Item = &'a UpstreamName>) -> JobMetrics {
        let mut registry = self.registry.hold();
        let r = &mut registry;
        let ends: Family<UpstreamEnd, Counter> =
            register(r, "gateway_jobs", "Jobs that this process has brought to their end");
        let queued: Family<UpstreamLabel, Gauge> =
            register(r, "gateway_jobs_queued", "Jobs that wait, in the store");
        let running: Family<UpstreamLabel, Gauge> =
            register(r, "gateway_jobs_running", "Jobs that workers have, in the store");
        let stored_bytes: Gauge =
            register(r, "gateway_jobs_stored_bytes", "Bytes of inputs and results of jobs, in the store");
        let of = upstreams.map(|name| {
            let upstream: Arc<str> = name.as_str().into();
            let label = UpstreamLabel { upstream: Arc::clone(&upstream) };
            let of = OfUpstream {
                ends: ENDS.map(|status| {
                    let upstream = Arc::clone(&upstream);
                    ends.get_or_create_owned(&UpstreamEnd { upstream, status: status.name() })
                }),
                queued: queued.get_or_create_owned(&label),
                running: running.get_or_create_owned(&label),
            };
            (name.clone(), of)
        });
        JobMetrics { of: of.collect(), stored_bytes }
    }

    /// The series of webhooks.
    pub(crate) fn webhooks(&self) -> WebhookMetrics {
        let results: Family<ResultLabel, Counter> =
            register(&mut self.registry.hold(), "gateway_webhooks", "Calls of webhooks by result");
        let of = |result| results.get_or_create_owned(&ResultLabel { result });
        WebhookMetrics {
            delivered: of("delivered"),
            refused: of("refused"),
            given_up: of("given_up"),
            retried: of("retried"),
        }
    }
}

impl JobMetrics {
    pub(crate) fn ended(&self, upstream: &UpstreamName, status: JobStatus) {
        if let (Some(of), Some(at)) = (self.of.get(upstream), ENDS.iter().position(|end| *end == status)) {
            of.ends[at].inc();
        }
    }

    /// Takes over what the store counts; upstreams that it does not name have none.
    pub(crate) fn set_depth(&self, depths: &[JobDepth]) {
        for (name, of) in &self.of {
            let depth = depths.iter().find(|depth| depth.upstream == *name);
            of.queued.set(depth.map_or(0, |depth| number(depth.queued)));
            of.running.set(depth.map_or(0, |depth| number(depth.running)));
        }
    }

    pub(crate) fn set_stored_bytes(&self, bytes: u64) {
        self.stored_bytes.set(number(bytes));
    }
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
