//! The refusal memory of this process: the store, the attempts under way, and the guard of each upstream.
//!
//! It cannot fail a request. Whatever goes wrong with the store is counted, and the request goes upstream.

mod flights;

use std::sync::Arc;
use std::time::Duration;

use nevertwice_config::checked::{Memory as MemoryConfig, UpstreamMemory};
use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::{Candidate, Entry, Expected, Selector};
use nevertwice_domain::fingerprint::{DeploymentKey, DocumentDigest, Fingerprint};
use nevertwice_domain::guard::{GuardStep, MassRefusalGuard};
use nevertwice_domain::profile::NotRecorded;
use nevertwice_domain::status::StatusSet;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use nevertwice_store::{Fence, Recorded, RefusalStore, StoreError};
use quick_cache::sync::Cache;

pub(crate) use flights::{Attempt, Boarding, Flights, Landing};

use crate::lock::Lock;
use crate::metrics::{MemoryMetrics, Metrics};

/// How long a look-up may take before the request goes upstream without it.
const RECALL_DEADLINE: Duration = Duration::from_millis(250);
/// Fingerprints that were accepted lately, kept so that their next request does not wait for another.
const ACCEPTED_KEPT: usize = 8192;
/// How lately.
const ACCEPTED_MS: u64 = 600_000;

/// The memory.
pub(crate) struct Memory {
    pub(crate) store: Arc<dyn RefusalStore>,
    pub(crate) flights: Arc<Flights>,
    pub(crate) key: DeploymentKey,
    pub(crate) statuses: StatusSet,
    pub(crate) max_body_bytes: u64,
    max_entries: u64,
    accepted: Cache<Fingerprint, Millis>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
}

/// What a guarded request is to the memory of its upstream.
#[derive(Clone, Debug)]
pub(crate) struct Guarded {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) scope: Arc<str>,
}

/// The memory's side of one upstream.
pub(crate) struct UpstreamGuard {
    pub(crate) rules: UpstreamMemory,
    guard: Lock<MassRefusalGuard>,
}

impl UpstreamGuard {
    pub(crate) fn new(rules: UpstreamMemory) -> Self {
        Self { rules, guard: Lock::default() }
    }

    /// Since when the mass-refusal guard is on.
    pub(crate) fn tripped_at(&self) -> Option<Millis> {
        self.guard.hold().tripped_at()
    }

    /// Distinct documents in the guard's window: refused, and judged.
    pub(crate) fn window(&self) -> (u32, usize) {
        self.guard.hold().window()
    }

    /// An operator's word. Returns whether the guard was on.
    pub(crate) fn recover(&self) -> bool {
        let mut guard = self.guard.hold();
        let was_on = guard.tripped_at().is_some();
        guard.recover();
        was_on
    }
}

impl Memory {
    pub(crate) fn new(
        config: &MemoryConfig,
        key: DeploymentKey,
        store: Arc<dyn RefusalStore>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            store,
            flights: Arc::new(Flights::default()),
            key,
            statuses: config.statuses.clone(),
            max_body_bytes: config.max_body_bytes,
            max_entries: config.max_entries,
            accepted: Cache::new(ACCEPTED_KEPT),
            clock,
            metrics,
        }
    }

    fn counts(&self, count: impl FnOnce(&MemoryMetrics)) {
        if let Some(metrics) = &self.metrics.memory {
            count(metrics);
        }
    }

    pub(crate) fn not_recorded(&self, reason: NotRecorded) {
        self.counts(|m| m.not_recorded(reason));
    }

    /// The entry, if it is the one that was asked for and still lives under the rule in force.
    fn verified(
        &self,
        entry: Arc<Entry>,
        asked: &Guarded,
        upstream: &UpstreamName,
        rules: &UpstreamMemory,
    ) -> Option<Arc<Entry>> {
        let expected = Expected {
            fingerprint: &asked.fingerprint,
            scope: &asked.scope,
            upstream,
            generation: &rules.generation,
        };
        if let Err(mismatch) = entry.verify(&expected) {
            self.counts(|m| m.verify_failure(mismatch.label()));
            tracing::error!(%mismatch, fingerprint = %asked.fingerprint, "an entry failed verification and was not used");
            return None;
        }
        self.statuses.get(entry.status.status_code())?;
        entry.remaining_ms(self.clock.now(), rules.life.ttl_ms).map(|_| entry)
    }

    /// The entry that answers this request, if this process has it at hand.
    pub(crate) fn near(
        &self,
        asked: &Guarded,
        upstream: &UpstreamName,
        rules: &UpstreamMemory,
    ) -> Option<Arc<Entry>> {
        self.verified(self.store.near(&asked.fingerprint)?, asked, upstream, rules)
    }

    /// Asks the store. `None` for the fence means that the store could not be asked: nothing will be recorded.
    pub(crate) async fn recall(
        &self,
        asked: &Guarded,
        upstream: &UpstreamName,
        rules: &UpstreamMemory,
    ) -> (Option<Arc<Entry>>, Option<Fence>) {
        match tokio::time::timeout(RECALL_DEADLINE, self.store.recall(&asked.fingerprint)).await {
            Ok(Ok(recalled)) => {
                let entry = recalled.entry.and_then(|entry| self.verified(entry, asked, upstream, rules));
                (entry, Some(recalled.fence))
            }
            Ok(Err(error)) => {
                self.store_error("recall", &error);
                (None, None)
            }
            Err(_) => {
                self.counts(|m| m.store_error("recall"));
                (None, None)
            }
        }
    }

    pub(crate) fn accepted_lately(&self, fingerprint: &Fingerprint) -> bool {
        self.accepted.get(fingerprint).is_some_and(|at| self.clock.now().since_ms(at) < ACCEPTED_MS)
    }

    /// The upstream accepted this document: its entry goes, and attempts that began before do not record after this.
    pub(crate) async fn accept(
        &self,
        asked: &Guarded,
        upstream: &UpstreamName,
        guard: &UpstreamGuard,
        attempt: Option<&Attempt>,
        deadline: Duration,
    ) {
        let now = self.clock.now();
        self.accepted.insert(asked.fingerprint, now);
        let step = guard.guard.hold().accepted(&guard.rules.guard, *asked.fingerprint.as_bytes(), now);
        if step == GuardStep::Recovered {
            tracing::warn!(%upstream, "mass-refusal guard off: the upstream accepts again, refusals are remembered again");
        }
        let alone = attempt.is_none_or(Attempt::is_alone);
        let removal = async {
            if !alone {
                // another attempt at this document is under way and may still be refused: fence it
                self.store.forget(&Selector::key(asked.fingerprint)).await?;
            }
            self.store.accept(&asked.fingerprint, upstream).await
        };
        match tokio::time::timeout(deadline, removal).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.store_error("accept", &error),
            Err(_) => self.counts(|m| m.store_error("accept")),
        }
    }

    /// Records a verdict. On `Ok` it is durable, and no later request with this fingerprint reaches the upstream.
    pub(crate) async fn record(
        &self,
        entry: Entry,
        fence: Option<Fence>,
        guard: &UpstreamGuard,
        deadline: Duration,
    ) -> Result<Arc<Entry>, NotRecorded> {
        let (fingerprint, upstream, scope) =
            (entry.fingerprint, entry.upstream.clone(), Arc::from(entry.scope.as_str()));
        self.accepted.remove(&fingerprint);
        self.watch(&entry.document.digest, &upstream, guard, deadline).await;
        if guard.tripped_at().is_some() {
            return Err(NotRecorded::Guard);
        }
        let fence = fence.ok_or(NotRecorded::Store)?;
        let candidate = Candidate { entry, life: guard.rules.life, max_entries: self.max_entries };
        match tokio::time::timeout(deadline, self.store.record(candidate, fence)).await {
            Ok(Ok(Recorded::Stored(entry))) => {
                self.counts(|m| {
                    m.recorded.inc();
                });
                Ok(entry)
            }
            Ok(Ok(Recorded::AlreadyThere(entry))) => {
                // what others will be answered with has to be what they ask for
                let asked = Guarded { fingerprint, scope };
                self.verified(entry, &asked, &upstream, &guard.rules).ok_or(NotRecorded::Store)
            }
            Ok(Ok(Recorded::Unconfirmed(_))) => Err(NotRecorded::Unconfirmed),
            Ok(Ok(Recorded::Fenced)) => Err(NotRecorded::Fenced),
            Ok(Err(error)) => {
                self.store_error("record", &error);
                Err(NotRecorded::Store)
            }
            Err(_) => {
                self.counts(|m| m.store_error("record"));
                Err(NotRecorded::Store)
            }
        }
    }

    /// Shows the refusal to the mass-refusal guard, and carries out what follows when it trips.
    async fn watch(
        &self,
        document: &DocumentDigest,
        upstream: &UpstreamName,
        guard: &UpstreamGuard,
        deadline: Duration,
    ) {
        let used_to_accept = self.store.has_accepted(upstream);
        let policy = &guard.rules.guard;
        let step = guard.guard.hold().refused(policy, used_to_accept, *document.as_bytes(), self.clock.now());
        let GuardStep::Tripped { since } = step else { return };
        tracing::error!(
            %upstream,
            distinct = policy.distinct,
            window_s = policy.window_ms / 1000,
            "mass-refusal guard on: an upstream that used to accept refuses nearly every document, \
             nothing more is remembered and what was remembered in this window is not used"
        );
        match tokio::time::timeout(deadline, self.store.suspect(upstream, since)).await {
            Ok(Ok(marked)) => self.counts(|m| {
                m.suspects.inc_by(marked);
            }),
            Ok(Err(error)) => self.store_error("suspect", &error),
            Err(_) => self.counts(|m| m.store_error("suspect")),
        }
    }

    /// Counts a replay, and says so when a document passes a round number: the first thing an operator should see.
    pub(crate) fn count_replay(&self, entry: &Entry, tenant: &TenantId) {
        let replays = self.store.count_replay(&entry.fingerprint, tenant, self.clock.now());
        if replays >= 10 && is_power_of_ten(replays) {
            tracing::warn!(
                replays,
                upstream = %entry.upstream,
                status = entry.status.get(),
                fingerprint = %entry.fingerprint,
                document_sha256 = %entry.document.digest,
                "one refused document keeps coming back"
            );
        }
    }

    pub(crate) fn waited(&self, result: &'static str) {
        self.counts(|m| m.wait(result));
    }

    fn store_error(&self, op: &'static str, error: &StoreError) {
        report(&self.metrics, op, error);
    }
}

/// Every failure is counted; the log gets one line in ten seconds, since a full disk fails every record.
fn report(metrics: &Metrics, op: &'static str, error: &StoreError) {
    let Some(memory) = &metrics.memory else { return };
    memory.store_error(op);
    if memory.may_log() {
        tracing::warn!(op, %error, "the refusal store failed, requests go on without it");
    }
}

fn is_power_of_ten(mut n: u64) -> bool {
    while n.is_multiple_of(10) && n > 0 {
        n /= 10;
    }
    n == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_numbers_are_told() {
        let told: Vec<u64> = (1..=10_000).filter(|n| *n >= 10 && is_power_of_ten(*n)).collect();
        assert_eq!(told, [10, 100, 1000, 10_000]);
        assert!(!is_power_of_ten(0));
    }
}
