//! The refusal memory of this process: the store, the attempts under way, and the guard of each upstream.
//!
//! It cannot fail a request. Whatever goes wrong with the store is counted, and the request goes upstream.

pub(crate) mod fleet;
mod flights;
#[cfg(test)]
mod tests;
pub(crate) mod unclassified;
mod writing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use nevertwice_config::checked::{Memory as MemoryConfig, UpstreamMemory};
use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::{Candidate, Entry, Expected, Selector};
use nevertwice_domain::fingerprint::{DeploymentKey, DocumentDigest, Fingerprint};
use nevertwice_domain::guard::{GuardStep, MassRefusalGuard};
use nevertwice_domain::profile::{Dependency, NotRecorded, Terms};
use nevertwice_domain::status::{RefusalStatus, StatusSet};
use nevertwice_domain::strike::LifePolicy;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use nevertwice_store::{Fence, Lease, News, Recorded, RefusalStore, StoreError};
use quick_cache::sync::Cache;
use tokio::time::error::Elapsed;
use tokio::time::timeout_at;
use tokio_util::task::TaskTracker;

pub(crate) use flights::{Attempt, Boarding, Flights, Landing};

use crate::lock::Lock;
use crate::metrics::{MemoryMetrics, Metrics};
use unclassified::{Refusal, Unclassified};
use writing::Writing;

/// Fingerprints that were accepted lately, kept so that their next request does not wait for another.
const ACCEPTED_KEPT: usize = 8192;
/// Times of mass refusals that are kept in mind, beside the marks in the store.
const DISTRUSTED_KEPT: usize = 64;
/// How lately.
const ACCEPTED_MS: u64 = 600_000;

/// The memory.
pub(crate) struct Memory {
    pub(crate) store: Arc<dyn RefusalStore>,
    pub(crate) flights: Arc<Flights>,
    pub(crate) key: DeploymentKey,
    pub(crate) statuses: StatusSet,
    pub(crate) max_body_bytes: u64,
    pub(crate) max_entries: u64,
    pub(crate) unclassified: Unclassified,
    accepted: Arc<Cache<Fingerprint, Millis>>,
    tracker: TaskTracker,
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
    /// What its key holds beside the bytes of the request.
    key_holds: Vec<Dependency>,
    mass_refusal: Lock<MassRefusalGuard>,
    distrusted: Arc<Distrusted>,
}

/// What was recorded in these times is not used: from the window before the mass-refusal guard tripped until it recovered.
#[derive(Default)]
struct Distrusted(Lock<VecDeque<(Millis, Millis)>>);

impl Distrusted {
    fn includes(&self, at: Millis) -> bool {
        self.0.hold().iter().any(|(since, until)| (*since..=*until).contains(&at))
    }
}

impl UpstreamGuard {
    pub(crate) fn new(rules: UpstreamMemory) -> Self {
        let key_holds = crate::upstream::key_holds(&rules);
        Self { rules, key_holds, mass_refusal: Lock::default(), distrusted: Arc::default() }
    }

    /// The terms on which refusals are judged here.
    pub(crate) fn terms(&self) -> Terms<'_> {
        Terms {
            trust_refusal_class: self.rules.trust_refusal_class,
            keyed: self.rules.remember_keyed.then_some(&self.key_holds),
        }
    }

    /// Since when the mass-refusal guard is on.
    pub(crate) fn tripped_at(&self) -> Option<Millis> {
        self.mass_refusal.hold().tripped_at()
    }

    /// Distinct documents in the guard's window: refused, and judged.
    pub(crate) fn window(&self) -> (u32, usize) {
        self.mass_refusal.hold().window()
    }

    /// An operator's word. Returns whether the guard was on.
    pub(crate) fn recover(&self, now: Millis) -> bool {
        let mut guard = self.mass_refusal.hold();
        let was_on = guard.tripped_at().is_some();
        guard.recover();
        drop(guard);
        if was_on {
            self.trust_from(now);
        }
        was_on
    }

    /// What was recorded since `since` is not believed, until further notice.
    fn distrust_from(&self, since: Millis) {
        let mut distrusted = self.distrusted.0.hold();
        if distrusted.len() == DISTRUSTED_KEPT {
            // by then its entries were marked in the store, or have ended
            distrusted.pop_front();
        }
        distrusted.push_back((since, Millis(i64::MAX)));
    }

    /// What is recorded from now on is believed again.
    fn trust_from(&self, now: Millis) {
        if let Some((_, until)) = self.distrusted.0.hold().back_mut() {
            *until = now;
        }
    }

    /// Whether any of the time since then is one whose records are not used.
    pub(crate) fn distrusts_since(&self, then: Millis) -> bool {
        self.distrusted.0.hold().iter().any(|(_, until)| *until >= then)
    }

    /// Whether what was recorded at this time is not used.
    pub(crate) fn distrusts(&self, recorded_at: Millis) -> bool {
        self.distrusted.includes(recorded_at)
    }
}

impl Memory {
    pub(crate) fn new(
        config: &MemoryConfig,
        key: DeploymentKey,
        store: Arc<dyn RefusalStore>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        tracker: TaskTracker,
    ) -> Self {
        Self {
            store,
            flights: Arc::new(Flights::default()),
            key,
            statuses: config.statuses.clone(),
            max_body_bytes: config.max_body_bytes,
            max_entries: config.max_entries,
            unclassified: Unclassified::default(),
            accepted: Arc::new(Cache::new(ACCEPTED_KEPT)),
            tracker,
            clock,
            metrics,
        }
    }

    /// The statuses of entries that are used: those opted in to, and that of a failed operation, which only a profile that knows one
    /// when it sees it has recorded under its key.
    pub(crate) fn usable_statuses(&self) -> impl Iterator<Item = RefusalStatus> {
        self.statuses.iter().chain([RefusalStatus::failed_operation()])
    }

    fn counts(&self, count: impl FnOnce(&MemoryMetrics)) {
        if let Some(metrics) = &self.metrics.memory {
            count(metrics);
        }
    }

    pub(crate) fn not_recorded(&self, reason: NotRecorded) {
        self.counts(|m| m.not_recorded(reason));
    }

    /// Takes note of a refusal that no rule of its profile knows, for operators to see.
    pub(crate) fn unclassified(&self, refusal: &Refusal<'_>) {
        if self.unclassified.note(refusal, self.clock.now()).dropped {
            self.counts(|m| {
                m.unclassified_dropped.inc();
            });
        }
    }

    /// The entry, if it is the one that was asked for and still lives under the rule in force.
    fn verified(
        &self,
        entry: Arc<Entry>,
        asked: &Guarded,
        upstream: &UpstreamName,
        guard: &UpstreamGuard,
    ) -> Option<Arc<Entry>> {
        let expected = Expected {
            fingerprint: &asked.fingerprint,
            scope: &asked.scope,
            upstream,
            generation: &guard.rules.generation,
        };
        if let Err(mismatch) = entry.verify(&expected) {
            self.counts(|m| {
                m.verify_failure(mismatch.label());
                if m.may_log() {
                    tracing::error!(%mismatch, fingerprint = %asked.fingerprint, "an entry failed verification and was not used");
                }
            });
            return None;
        }
        if !self.usable_statuses().any(|s| s == entry.status) || guard.distrusts(entry.recorded_at) {
            return None;
        }
        entry.remaining_under(&guard.rules.life, self.clock.now()).map(|_| entry)
    }

    /// The entry that answers this request, if this process has it at hand.
    pub(crate) fn near(
        &self,
        asked: &Guarded,
        upstream: &UpstreamName,
        guard: &UpstreamGuard,
    ) -> Option<Arc<Entry>> {
        self.verified(self.store.near(&asked.fingerprint)?, asked, upstream, guard)
    }

    /// As [`Memory::recall`], for a request that would make an attempt: says also whose attempt it is, among the processes that
    /// share the store.
    pub(crate) async fn look(
        &self,
        asked: &Guarded,
        upstream: &UpstreamName,
        guard: &UpstreamGuard,
    ) -> (Option<Arc<Entry>>, Option<Fence>, Lease) {
        match self.in_time(self.store.look(&asked.fingerprint)).await {
            Ok(Ok(looked)) => {
                let entry = looked.entry.and_then(|entry| self.verified(entry, asked, upstream, guard));
                (entry, Some(looked.fence), looked.lease)
            }
            failed => (None, self.unknown(failed.ok().and_then(Result::err)), Lease::NotNeeded),
        }
    }

    /// A look-up, until it has taken too long.
    async fn in_time<T>(&self, look_up: impl Future<Output = T>) -> Result<T, Elapsed> {
        match self.store.look_deadline() {
            Some(deadline) => tokio::time::timeout(deadline, look_up).await,
            None => Ok(look_up.await),
        }
    }

    /// The store could not be asked: what is learned may be recorded later, if the store knows how.
    fn unknown(&self, error: Option<StoreError>) -> Option<Fence> {
        match error {
            Some(error) => self.store_error("recall", &error),
            None => self.counts(|m| m.store_error("recall")),
        }
        self.store.last_fence()
    }

    /// Asks the store. `None` for the fence means that the store could not be asked: nothing will be recorded.
    pub(crate) async fn recall(
        &self,
        asked: &Guarded,
        upstream: &UpstreamName,
        guard: &UpstreamGuard,
    ) -> (Option<Arc<Entry>>, Option<Fence>) {
        match self.in_time(self.store.recall(&asked.fingerprint)).await {
            Ok(Ok(recalled)) => {
                let entry = recalled.entry.and_then(|entry| self.verified(entry, asked, upstream, guard));
                (entry, Some(recalled.fence))
            }
            failed => (None, self.unknown(failed.ok().and_then(Result::err))),
        }
    }

    /// The entry that answers this request, at hand or in the store.
    pub(crate) async fn known(
        &self,
        asked: &Guarded,
        upstream: &UpstreamName,
        guard: &UpstreamGuard,
    ) -> Option<Arc<Entry>> {
        match self.near(asked, upstream, guard) {
            Some(entry) => Some(entry),
            None => self.recall(asked, upstream, guard).await.0,
        }
    }

    pub(crate) fn accepted_lately(&self, fingerprint: &Fingerprint) -> bool {
        self.accepted.get(fingerprint).is_some_and(|at| self.clock.now().since_ms(at) < ACCEPTED_MS)
    }

    /// Whether this process knows of an acceptance of this document since then.
    pub(crate) fn accepted_since(&self, fingerprint: &Fingerprint, then: Millis) -> bool {
        self.accepted.get(fingerprint).is_some_and(|at| at >= then)
    }

    /// Another process has learned that the upstream accepts this: attempts that were sent before this was heard do not record.
    pub(crate) fn accepted_elsewhere(&self, fingerprint: Fingerprint) {
        self.flights.accepted(&fingerprint);
        self.accepted.insert(fingerprint, self.clock.now());
    }

    /// The upstream accepted this document: its entry goes, and attempts that began before do not record after this. Takes until
    /// `deadline` at most, and no longer than the store lets an answer wait.
    pub(crate) async fn accept(
        &self,
        asked: &Guarded,
        upstream: &UpstreamName,
        guard: &UpstreamGuard,
        deadline: Duration,
    ) {
        let now = self.clock.now();
        let contested = self.flights.accepted(&asked.fingerprint);
        self.accepted.insert(asked.fingerprint, now);
        let step = guard.mass_refusal.hold().accepted(&guard.rules.guard, *asked.fingerprint.as_bytes(), now);
        self.tell(
            |upstream| News::Judged { upstream, document: *asked.fingerprint.as_bytes(), refused: false },
            upstream,
        );
        if step == GuardStep::Recovered {
            guard.trust_from(now);
            self.tell(|upstream| News::Recovered { upstream }, upstream);
            tracing::warn!(%upstream, "mass-refusal guard off: the upstream accepts again, refusals are remembered again");
        }
        let (store, metrics) = (Arc::clone(&self.store), Arc::clone(&self.metrics));
        let (key, of) = (asked.fingerprint, upstream.clone());
        let is_known = store.near(&key).is_some();
        let mut removal = Box::pin(async move {
            // another attempt at this document was refused and is being recorded; the store is to know of the acceptance even where
            // that cannot be barred now
            let bar = async {
                match contested {
                    true => store.forget(&Selector::key(key)).await.map(drop),
                    false => Ok(()),
                }
            };
            let (barred, accepted) = futures_util::join!(bar, store.accept(&key, &of));
            barred.and(accepted)
        });
        let ended = move |removed: Result<bool, StoreError>| {
            if let Err(error) = removed {
                report(&metrics, "accept", &error);
            }
        };
        // What this process has to know of it, it knows before anything that the client does next.
        if let Some(removed) = removal.as_mut().now_or_never() {
            return ended(removed);
        }
        // a store that does not answer keeps the answer from nobody: what it has not done in time, it does later
        let removing = self.tracker.spawn(async move { ended(removal.await) });
        // where nothing is there that could be replayed, the answer does not wait at all
        if contested || is_known {
            let most = self.store.accept_deadline().map_or(deadline, |most| most.min(deadline));
            // whether it was done in time makes no difference to this answer
            let _ = tokio::time::timeout(most, removing).await;
        }
    }

    /// Records a verdict until `deadline` at the latest. On `Ok` it is durable, and no later request with this fingerprint
    /// reaches the upstream.
    pub(crate) async fn record(
        &self,
        entry: Entry,
        life: LifePolicy,
        attempt: &Attempt,
        fence: Option<Fence>,
        guard: &UpstreamGuard,
        deadline: Instant,
    ) -> Result<Arc<Entry>, NotRecorded> {
        let (key, upstream) = (entry.fingerprint, entry.upstream.clone());
        let asked = Guarded { fingerprint: key, scope: entry.scope.as_str().into() };
        if !attempt.is_overtaken() {
            self.accepted.remove(&key);
        }
        let judged_at = self.clock.now();
        self.watch(&entry.document.digest, &upstream, guard, deadline).await;
        if guard.tripped_at().is_some() {
            return Err(NotRecorded::Guard);
        }
        let fence = fence.ok_or(NotRecorded::Store)?;
        let _recording = attempt.record().ok_or(NotRecorded::Fenced)?;
        let candidate = Candidate { entry, life, max_entries: self.max_entries };
        let mut writing = Writing::begin(self, &guard.distrusted, candidate, fence, judged_at);
        match timeout_at(deadline.into(), writing.ended()).await {
            Ok(Ok(Recorded::Stored(entry)))
                if guard.distrusts(judged_at) || guard.distrusts(entry.recorded_at) =>
            {
                // the guard tripped while this was written, after the marks, and may be off again by now
                self.forget_within(key, deadline).await;
                Err(NotRecorded::Guard)
            }
            // the acceptance could not fence it, or was another process's
            Ok(Ok(Recorded::Stored(_))) if attempt.is_overtaken() => {
                self.forget_within(key, deadline).await;
                Err(NotRecorded::Fenced)
            }
            Ok(Ok(Recorded::Stored(entry))) => {
                self.counts(|m| {
                    m.recorded.inc();
                });
                Ok(entry)
            }
            Ok(Ok(Recorded::AlreadyThere(entry))) => {
                // what others are answered with has to be what they ask for; what can never be used makes room for the next
                let usable = self.verified(entry, &asked, &upstream, guard);
                if usable.is_none() {
                    self.forget_within(key, deadline).await;
                }
                usable.ok_or(NotRecorded::Fenced)
            }
            Ok(Ok(Recorded::Unconfirmed(_))) => Err(NotRecorded::Unconfirmed),
            Ok(Ok(Recorded::Fenced)) => Err(NotRecorded::Fenced),
            Ok(Err(error)) => {
                self.store_error("record", &error);
                // it may be written all the same, or wait to be
                if attempt.is_overtaken() || guard.distrusts(judged_at) {
                    self.forget_within(key, deadline).await;
                }
                Err(NotRecorded::Store)
            }
            Err(_) => {
                self.counts(|m| m.store_error("record"));
                Err(NotRecorded::Store)
            }
        }
    }

    /// Removes an entry that must not be used, durably; it is done too where it takes longer than that.
    async fn forget_within(&self, key: Fingerprint, deadline: Instant) {
        match timeout_at(deadline.into(), self.store.forget(&Selector::key(key))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.store_error("forget", &error),
            Err(_) => {
                let (store, metrics) = (Arc::clone(&self.store), Arc::clone(&self.metrics));
                self.tracker.spawn(async move { writing::forget(store.as_ref(), &metrics, key).await });
            }
        }
    }

    /// Shows the refusal to the mass-refusal guard, and carries out what follows when it trips.
    async fn watch(
        &self,
        document: &DocumentDigest,
        upstream: &UpstreamName,
        guard: &UpstreamGuard,
        deadline: Instant,
    ) {
        let used_to_accept = self.store.has_accepted(upstream);
        let policy = &guard.rules.guard;
        let now = self.clock.now();
        let step = guard.mass_refusal.hold().refused(policy, used_to_accept, *document.as_bytes(), now);
        self.tell(
            |upstream| News::Judged { upstream, document: *document.as_bytes(), refused: true },
            upstream,
        );
        let GuardStep::Tripped { since } = step else { return };
        // known here at once, whatever becomes of the marks in the store
        guard.distrust_from(since);
        self.tell(|upstream| News::Tripped { upstream, since }, upstream);
        tracing::error!(
            %upstream,
            distinct = policy.distinct,
            window_s = policy.window_ms / 1000,
            "mass-refusal guard on: an upstream that used to accept refuses nearly every document, \
             nothing more is remembered and what was remembered in this window is not used"
        );
        self.suspect(upstream, since, deadline).await;
    }

    /// Tells the other processes that share the store.
    pub(crate) fn tell(&self, news: impl FnOnce(UpstreamName) -> News, upstream: &UpstreamName) {
        self.store.tell(news(upstream.clone()));
    }

    /// Marks what was recorded since then, durably. In a large store that takes longer than the answer may wait, and goes on.
    async fn suspect(&self, upstream: &UpstreamName, since: Millis, deadline: Instant) {
        let (store, metrics, upstream) =
            (Arc::clone(&self.store), Arc::clone(&self.metrics), upstream.clone());
        let marking = self.tracker.spawn(async move {
            match store.suspect(&upstream, since).await {
                Ok(marked) => {
                    if let Some(memory) = &metrics.memory {
                        memory.suspects.inc_by(marked);
                    }
                }
                Err(error) => report(&metrics, "suspect", &error),
            }
        });
        // whether it was done in time makes no difference to this answer: nothing of it is used here
        let _ = timeout_at(deadline.into(), marking).await;
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
