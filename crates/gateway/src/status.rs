//! What operators can see and do, as plain values: the admin API and the command line are made of these.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::Selector;
use nevertwice_domain::profile::Profile;
use nevertwice_domain::tenant::UpstreamName;
use nevertwice_store::{News, RefusalStore, StoreError};
use serde::Serialize;

use crate::Gateway;
use crate::memory::Memory;
use crate::memory::unclassified::UnclassifiedRow;
use crate::upstream::Upstream;

mod coverage;
mod jobs;

pub use coverage::{Coverage, RouteCoverage};

/// How long the store may take to count its entries for the metrics.
const COUNT_DEADLINE: Duration = Duration::from_millis(250);

/// Where the gateway is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    /// It takes requests.
    Serving = 0,
    /// It ends what is under way and takes nothing new.
    Draining = 1,
}

/// An upstream, as operators see it.
#[derive(Clone, Debug, Serialize)]
pub struct UpstreamStatus {
    /// Its name.
    pub name: UpstreamName,
    /// Its adapter.
    pub adapter: &'static str,
    /// Its base URLs.
    pub base_urls: Vec<String>,
    /// The tenant-facing prefix; `None` = reachable by jobs only.
    pub mount: Option<String>,
    /// Requests at it now.
    pub in_flight: usize,
    /// Requests waiting for a place.
    pub queued: usize,
    /// Places.
    pub max_in_flight: usize,
    /// The mass-refusal guard; absent while the memory is off here.
    pub guard: Option<GuardStatus>,
    /// The loop breaker; absent while it is off here.
    pub loop_breaker: Option<LoopBreakerStatus>,
}

/// The mass-refusal guard of an upstream.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GuardStatus {
    /// Since when it is on.
    pub tripped_at: Option<Millis>,
    /// Distinct documents refused within its window.
    pub refused: u32,
    /// Distinct documents judged within its window.
    pub judged: usize,
}

/// The loop breaker of an upstream, in this process.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LoopBreakerStatus {
    /// Fingerprints that it holds now.
    pub held: usize,
}

/// What the memory takes in.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBounds {
    /// The most entries.
    pub max_entries: u64,
    /// The longest body of a refusal, in bytes.
    pub max_body_bytes: u64,
}

/// Refusals that no rule knows, as this process has seen them since it began.
#[derive(Clone, Debug, Serialize)]
pub struct UnclassifiedRefusals {
    /// One for each upstream, status and code.
    pub items: Vec<UnclassifiedRow>,
    /// Rows that made room for others.
    pub dropped: u64,
}

impl Gateway {
    /// Where it is in its life.
    #[must_use]
    pub fn phase(&self) -> Phase {
        if self.shared.phase.load(Ordering::Relaxed) == Phase::Draining as u8 {
            Phase::Draining
        } else {
            Phase::Serving
        }
    }

    /// The store; `None` while the memory is off.
    #[must_use]
    pub fn store(&self) -> Option<Arc<dyn RefusalStore>> {
        self.shared.memory.as_ref().map(|m| Arc::clone(&m.store))
    }

    /// What the memory takes in; `None` while it is off.
    #[must_use]
    pub fn memory_bounds(&self) -> Option<MemoryBounds> {
        let of = |m: &Memory| MemoryBounds { max_entries: m.max_entries, max_body_bytes: m.max_body_bytes };
        self.shared.memory.as_ref().map(of)
    }

    /// Whether this gateway believes nothing that was recorded for an upstream at this time, because of a mass refusal.
    #[must_use]
    pub fn distrusts(&self, name: &UpstreamName, recorded_at: Millis) -> bool {
        let upstream = self.shared.upstreams.iter().find(|u| u.name() == name);
        upstream.and_then(|u| u.guard.as_ref()).is_some_and(|guard| guard.distrusts(recorded_at))
    }

    /// The time, as the gateway sees it.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    /// All series, with gauges brought up to date.
    pub async fn metrics(&self) -> String {
        let shared = &self.shared;
        for upstream in &shared.upstreams {
            upstream.metrics.set_load(upstream.pool.load());
            upstream.metrics.set_guard(upstream.guard.as_ref().is_some_and(|g| g.tripped_at().is_some()));
            if let Some(breaker) = &upstream.loop_breaker {
                breaker.metrics.set_fingerprints(breaker.count(shared.clock.as_ref()));
            }
        }
        if let (Some(memory), Some(series)) = (&shared.memory, &shared.metrics.memory) {
            // a store that does not answer leaves the last count standing
            let entries = tokio::time::timeout(COUNT_DEADLINE, memory.store.entries()).await;
            series.set_store(entries.ok().and_then(Result::ok), memory.store.evictions());
        }
        if let Some(jobs) = &shared.jobs {
            jobs.measure(COUNT_DEADLINE).await;
        }
        shared.metrics.text()
    }

    /// All upstreams.
    #[must_use]
    pub fn upstreams(&self) -> Vec<UpstreamStatus> {
        self.shared.upstreams.iter().map(|u| status(u, self.shared.clock.as_ref())).collect()
    }

    /// Puts a profile in force on an upstream with the memory, for requests that begin from now on. Returns whether it is another one
    /// than before, by name or by rules.
    #[must_use]
    pub fn judge_by(&self, name: &UpstreamName, profile: Arc<Profile>) -> bool {
        let upstream = self.shared.upstreams.iter().find(|upstream| upstream.name() == name);
        let (Some(upstream), Some(memory)) = (upstream, &self.shared.memory) else { return false };
        let changed = upstream.judge_by(profile, &memory.key);
        if changed {
            memory.unclassified.begin_anew(name);
        }
        changed
    }

    /// The profiles in force, by upstream with the memory.
    #[must_use]
    pub fn profiles(&self) -> BTreeMap<String, String> {
        let all = self.shared.upstreams.iter();
        all.filter_map(|u| Some((u.name().to_string(), u.profile()?.name().to_owned()))).collect()
    }

    /// Whether there is an upstream of this name.
    #[must_use]
    pub fn has_upstream(&self, name: &UpstreamName) -> bool {
        self.shared.upstreams.iter().any(|u| u.name() == name)
    }

    /// An operator's word that an upstream is to be believed again: its mass-refusal guard goes off. Returns whether it was
    /// on; `None` when there is no such upstream, or no memory on it.
    #[must_use]
    pub fn recover(&self, name: &UpstreamName) -> Option<bool> {
        let upstream = self.shared.upstreams.iter().find(|u| u.name() == name)?;
        let recovered = upstream.guard.as_ref()?.recover(self.now());
        if recovered {
            tracing::warn!(upstream = %name, "mass-refusal guard off by an operator's word");
        }
        // also where it was off here: on another replica it may be on
        if let Some(memory) = &self.shared.memory {
            memory.tell(|upstream| News::Recovered { upstream }, name);
        }
        Some(recovered)
    }

    /// What is selected is not recorded by a poll that comes later. To be called before the memory itself forgets.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn forget_pending(&self, which: &Selector) -> Result<(), StoreError> {
        match &self.shared.operations {
            Some(operations) => operations.forget_pending(which).await,
            None => Ok(()),
        }
    }

    /// Lets the loop breakers of this process forget what is selected. Returns how many fingerprints they had held of it.
    #[must_use]
    pub fn forget_held(&self, which: &Selector) -> u64 {
        let clock = self.shared.clock.as_ref();
        let breakers =
            self.shared.upstreams.iter().filter_map(|u| Some((u.loop_breaker.as_ref()?, u.name())));
        breakers.map(|(breaker, name)| breaker.forget(which, name, clock)).sum()
    }

    /// Codes that came back for one fingerprint and that no rule knows; with `all`, also those that did not come back. `None`
    /// while the memory is off.
    #[must_use]
    pub fn unclassified(&self, all: bool) -> Option<UnclassifiedRefusals> {
        let list = &self.shared.memory.as_ref()?.unclassified;
        Some(UnclassifiedRefusals { items: list.rows(all), dropped: list.dropped() })
    }
}

fn status(upstream: &Upstream, clock: &dyn Clock) -> UpstreamStatus {
    let (in_flight, queued) = upstream.pool.load();
    let config = &upstream.config;
    UpstreamStatus {
        name: config.name.clone(),
        adapter: config.adapter.name(),
        base_urls: config.base_urls.iter().map(ToString::to_string).collect(),
        mount: config.mount.as_ref().map(|mount| if mount.is_empty() { "/".into() } else { mount.clone() }),
        in_flight,
        queued,
        max_in_flight: upstream.pool.limit(),
        guard: upstream.guard.as_ref().map(|g| {
            let (refused, judged) = g.window();
            GuardStatus { tripped_at: g.tripped_at(), refused, judged }
        }),
        loop_breaker: upstream.loop_breaker.as_ref().map(|b| LoopBreakerStatus { held: b.count(clock) }),
    }
}
