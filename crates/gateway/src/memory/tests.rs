//! The mass-refusal guard against what is under way: the clock stands still until it is moved, and the store writes and
//! marks when the test says so.
#![expect(clippy::unwrap_used, reason = "test")]

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::poll;
use nevertwice_config::secret::Process;
use nevertwice_domain::clock::ManualClock;
use nevertwice_store::memory::MemoryStore;
use nevertwice_store::suite::samples;
use nevertwice_store::{Imported, ListQuery, Moved, Page, Recalled, Shown, StoreErrorKind};
use tokio::sync::Semaphore;

use super::*;

const CONFIG: &str = "
negative_cache: {enabled: true}
upstreams:
  - name: ocr
    base_url: http://127.0.0.1:1
    sync_paths: [/classify]
    negative_cache:
      generation: g1
      mass_refusal_guard: {distinct: 3, share: 0.5, window_s: 60}
";
const WINDOW_MS: i64 = 60_000;
/// The document whose record waits until [`Bench::write`].
const SLOW: u64 = 1000;
/// Never reached.
const LIMIT: Duration = Duration::from_secs(600);

/// The reference store, whose writes and marks a test holds in its hand.
struct InHand {
    inner: MemoryStore,
    write: Semaphore,
    marks_fail: AtomicBool,
    forgets_fail: AtomicBool,
    /// Forgets wait for this.
    forgets_wait: AtomicBool,
    forget: Semaphore,
    /// Marks wait for this.
    marks_wait: AtomicBool,
    mark: Semaphore,
}

#[async_trait]
impl RefusalStore for InHand {
    fn near(&self, key: &Fingerprint) -> Option<Arc<Entry>> {
        self.inner.near(key)
    }

    async fn recall(&self, key: &Fingerprint) -> Result<Recalled, StoreError> {
        self.inner.recall(key).await
    }

    async fn record(&self, candidate: Candidate, fence: Fence) -> Result<Recorded, StoreError> {
        if candidate.entry.fingerprint == samples::fingerprint(SLOW) {
            self.write.acquire().await.unwrap().forget();
        }
        self.inner.record(candidate, fence).await
    }

    async fn import(
        &self,
        moved: Vec<Moved>,
        fence: Fence,
        max_entries: u64,
    ) -> Result<Vec<Imported>, StoreError> {
        self.inner.import(moved, fence, max_entries).await
    }

    async fn accept(&self, key: &Fingerprint, upstream: &UpstreamName) -> Result<bool, StoreError> {
        self.inner.accept(key, upstream).await
    }

    fn has_accepted(&self, upstream: &UpstreamName) -> bool {
        self.inner.has_accepted(upstream)
    }

    async fn forget(&self, which: &Selector) -> Result<u64, StoreError> {
        if self.forgets_fail.load(Ordering::SeqCst) {
            return Err(StoreError { kind: StoreErrorKind::Io, message: "the disk is gone".to_owned() });
        }
        if self.forgets_wait.load(Ordering::SeqCst) {
            self.forget.acquire().await.unwrap().forget();
        }
        self.inner.forget(which).await
    }

    fn accept_deadline(&self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }

    async fn suspect(&self, upstream: &UpstreamName, since: Millis) -> Result<u64, StoreError> {
        if self.marks_fail.load(Ordering::SeqCst) {
            return Err(StoreError { kind: StoreErrorKind::Io, message: "the disk is gone".to_owned() });
        }
        if self.marks_wait.load(Ordering::SeqCst) {
            self.mark.acquire().await.unwrap().forget();
        }
        self.inner.suspect(upstream, since).await
    }

    fn count_replay(&self, key: &Fingerprint, tenant: &TenantId, at: Millis) -> u64 {
        self.inner.count_replay(key, tenant, at)
    }

    async fn entries(&self) -> Result<u64, StoreError> {
        self.inner.entries().await
    }

    fn evictions(&self) -> u64 {
        self.inner.evictions()
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.inner.list(query).await
    }

    async fn show(&self, key: &Fingerprint) -> Result<Option<Shown>, StoreError> {
        self.inner.show(key).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

/// The memory at one upstream, which has accepted document 0 long ago. Every sample is a document of its own.
struct Bench {
    clock: Arc<ManualClock>,
    store: Arc<InHand>,
    memory: Memory,
    guard: UpstreamGuard,
}

impl Bench {
    async fn new() -> Self {
        let mut config = nevertwice_config::from_text(CONFIG, "test.yaml", &Process).unwrap().checked;
        let clock = Arc::new(ManualClock::at(Millis(1_700_000_000_000)));
        let store = Arc::new(InHand {
            inner: MemoryStore::new(Arc::<ManualClock>::clone(&clock)),
            write: Semaphore::new(0),
            marks_fail: AtomicBool::new(false),
            forgets_fail: AtomicBool::new(false),
            forgets_wait: AtomicBool::new(false),
            forget: Semaphore::new(0),
            marks_wait: AtomicBool::new(false),
            mark: Semaphore::new(0),
        });
        let memory = Memory::new(
            config.memory.as_ref().unwrap(),
            DeploymentKey::from_secret(b"a secret of thirty-two characters"),
            Arc::<InHand>::clone(&store),
            Arc::<ManualClock>::clone(&clock),
            Arc::new(Metrics::new(true)),
            TaskTracker::new(),
        );
        let guard = UpstreamGuard::new(config.upstreams.remove(0).memory.unwrap());
        let bench = Self { clock, store, memory, guard };
        bench.accept(0).await;
        bench.clock.advance_ms(2 * WINDOW_MS);
        bench
    }

    fn asked(n: u64) -> Guarded {
        let entry = samples::entry(n);
        Guarded { fingerprint: entry.fingerprint, scope: entry.scope.into() }
    }

    /// The upstream refuses the document: looked up, judged and recorded as an exchange does it.
    async fn refuse(&self, n: u64) -> Result<Arc<Entry>, NotRecorded> {
        self.refuse_within(n, LIMIT).await
    }

    async fn refuse_within(&self, n: u64, limit: Duration) -> Result<Arc<Entry>, NotRecorded> {
        let attempt = self.memory.flights.join(Self::asked(n).fingerprint);
        self.refused(n, &attempt, limit).await
    }

    async fn refused(&self, n: u64, attempt: &Attempt, limit: Duration) -> Result<Arc<Entry>, NotRecorded> {
        let upstream = samples::upstream("ocr");
        let (_, fence) = self.memory.recall(&Self::asked(n), &upstream, &self.guard).await;
        let now = self.clock.now();
        let entry = Entry { first_refused_at: now, recorded_at: now, ..samples::entry(n) };
        let (life, until) = (self.guard.rules.life.clone(), Instant::now() + limit);
        self.memory.record(entry, life, attempt, fence, &self.guard, until).await
    }

    async fn accept(&self, n: u64) {
        self.memory.accept(&Self::asked(n), &samples::upstream("ocr"), &self.guard, LIMIT).await;
    }

    /// Whether the next request with this document is answered from the memory.
    async fn is_known(&self, n: u64) -> bool {
        let (asked, upstream) = (Self::asked(n), samples::upstream("ocr"));
        let near = self.memory.near(&asked, &upstream, &self.guard);
        let (recalled, _) = self.memory.recall(&asked, &upstream, &self.guard).await;
        assert_eq!(near, recalled, "document {n}");
        near.is_some()
    }

    /// Whether it would be after a restart: all that is left then is what the store has.
    async fn is_stored(&self, n: u64) -> bool {
        self.store.inner.recall(&samples::fingerprint(n)).await.unwrap().entry.is_some()
    }

    fn is_on(&self) -> bool {
        self.guard.tripped_at().is_some()
    }

    /// Refuses three new documents at once, of which the last trips the guard.
    async fn trip(&self, first: u64) {
        for n in first..first + 2 {
            assert!(self.refuse(n).await.is_ok() && !self.is_on(), "document {n}");
        }
        assert_eq!(self.refuse(first + 2).await.err(), Some(NotRecorded::Guard));
        assert!(self.is_on());
    }

    fn write(&self) {
        self.store.write.add_permits(1);
    }
}

/// How the guard is off again before the write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    NotYet,
    Acceptance,
    Operator,
}

#[tokio::test]
async fn a_refusal_that_is_being_written_when_the_guard_trips_is_not_left_behind() {
    for end in [End::NotYet, End::Acceptance, End::Operator] {
        let bench = Bench::new().await;
        {
            let mut slow = Box::pin(bench.refuse(SLOW));
            assert!(poll!(&mut slow).is_pending());
            assert!(!bench.is_on(), "judged in good times, as far as anybody knew");
            bench.clock.advance_ms(10);
            bench.refuse(1).await.unwrap();
            // with the slow one these are three; what is not there yet cannot be marked
            assert_eq!(bench.refuse(2).await.err(), Some(NotRecorded::Guard));
            assert!(bench.is_on() && !bench.is_stored(1).await);
            bench.clock.advance_ms(10);
            match end {
                End::NotYet => {}
                End::Acceptance => bench.accept(3).await,
                End::Operator => assert!(bench.guard.recover(bench.clock.now())),
            }
            assert_eq!(bench.is_on(), end == End::NotYet);
            bench.clock.advance_ms(10);
            assert!(poll!(&mut slow).is_pending());
            bench.write();
            assert_eq!(slow.await.err(), Some(NotRecorded::Guard), "{end:?}");
        }
        assert!(!bench.is_known(SLOW).await, "{end:?}");
        assert!(!bench.is_stored(SLOW).await, "{end:?}: nor after a restart");

        // it is refused afresh when the upstream is well again: that is a verdict
        bench.guard.recover(bench.clock.now());
        bench.clock.advance_ms(1);
        bench.write();
        bench.refuse(SLOW).await.unwrap();
        assert!(bench.is_known(SLOW).await && bench.is_stored(SLOW).await, "{end:?}");
        assert!(!bench.is_known(1).await, "{end:?}");
    }
}

/// What becomes of the document while the record of an attempt is on its way and its client has left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Nothing,
    /// Another attempt was refused too, and its caller has seen it.
    Recorded,
    Accepted,
    /// The guard trips.
    Distrusted,
}

#[tokio::test]
async fn a_record_that_nobody_waits_for_any_more_takes_away_what_nobody_may_see_and_no_more() {
    use Meanwhile::{Accepted, Distrusted, Nothing, Recorded};
    for meanwhile in [Nothing, Recorded, Accepted, Distrusted] {
        let bench = Bench::new().await;
        {
            let mut left = Box::pin(bench.refuse(SLOW));
            assert!(poll!(&mut left).is_pending());
        }
        bench.clock.advance_ms(10);
        match meanwhile {
            Nothing => {}
            Recorded => {
                let fence = bench.store.inner.recall(&samples::fingerprint(SLOW)).await.unwrap().fence;
                bench.store.inner.record(samples::candidate(SLOW), fence).await.unwrap();
                assert!(bench.is_known(SLOW).await);
            }
            Accepted => bench.accept(SLOW).await,
            // with the slow one these are three
            Distrusted => {
                bench.refuse(1).await.unwrap();
                assert_eq!(bench.refuse(2).await.err(), Some(NotRecorded::Guard));
            }
        }
        bench.clock.advance_ms(10);
        bench.write();
        bench.memory.tracker.close();
        bench.memory.tracker.wait().await;
        let stays = matches!(meanwhile, Nothing | Recorded);
        assert_eq!(bench.is_stored(SLOW).await, stays, "{meanwhile:?}");
    }
}

#[tokio::test]
async fn a_refusal_that_is_being_written_when_the_document_is_accepted_is_not_left_behind() {
    let bench = Bench::new().await;
    {
        let mut slow = Box::pin(bench.refuse(SLOW));
        assert!(poll!(&mut slow).is_pending());
        bench.clock.advance_ms(10);
        // for a moment the store cannot fence it
        bench.store.forgets_fail.store(true, Ordering::SeqCst);
        bench.accept(SLOW).await;
        bench.store.forgets_fail.store(false, Ordering::SeqCst);
        bench.write();
        assert_eq!(slow.await.err(), Some(NotRecorded::Fenced));
    }
    assert!(!bench.is_known(SLOW).await && !bench.is_stored(SLOW).await);
}

#[tokio::test]
async fn an_accepted_answer_does_not_wait_until_a_store_that_is_silent_has_fenced_a_refusal() {
    let bench = Bench::new().await;
    let mut slow = Box::pin(bench.refuse(SLOW));
    assert!(poll!(&mut slow).is_pending());
    bench.clock.advance_ms(10);
    bench.store.forgets_wait.store(true, Ordering::SeqCst);
    // the forget is not there yet when this returns
    bench.accept(SLOW).await;
    // it is done all the same, and with it alone the refusal is not recorded
    bench.store.forget.add_permits(1);
    bench.memory.tracker.close();
    bench.memory.tracker.wait().await;
    bench.write();
    assert_eq!(slow.await.err(), Some(NotRecorded::Fenced));
    assert!(!bench.is_stored(SLOW).await);
}

#[tokio::test]
async fn a_refusal_is_not_recorded_after_an_acceptance_elsewhere_that_was_heard_since_it_was_sent() {
    let bench = Bench::new().await;
    let key = Bench::asked(1).fingerprint;
    let sent_before = bench.memory.flights.join(key);
    bench.clock.advance_ms(10);
    bench.memory.accepted_elsewhere(key);
    bench.clock.advance_ms(10);
    assert_eq!(bench.refused(1, &sent_before, LIMIT).await.err(), Some(NotRecorded::Fenced));
    assert!(!bench.is_stored(1).await);
    assert!(bench.memory.accepted_lately(&key), "the refusal is the older of the two");
    // what is sent now is newer
    bench.refuse(1).await.unwrap();
    assert!(bench.is_known(1).await && !bench.memory.accepted_lately(&key));

    // heard while the refusal is being written
    let mut slow = Box::pin(bench.refuse(SLOW));
    assert!(poll!(&mut slow).is_pending());
    bench.memory.accepted_elsewhere(Bench::asked(SLOW).fingerprint);
    bench.write();
    assert_eq!(slow.await.err(), Some(NotRecorded::Fenced));
    assert!(!bench.is_stored(SLOW).await);
}

#[tokio::test]
async fn the_window_is_not_used_though_the_store_could_not_mark_it() {
    let bench = Bench::new().await;
    bench.store.marks_fail.store(true, Ordering::SeqCst);
    bench.trip(1).await;
    for n in 1..=2 {
        assert!(bench.is_stored(n).await, "the marks failed");
        assert!(!bench.is_known(n).await, "document {n}");
    }
    bench.clock.advance_ms(10);
    assert!(bench.guard.recover(bench.clock.now()));
    bench.clock.advance_ms(1);
    assert!(!bench.is_known(1).await, "the end of the guard is no absolution");
    // a fresh refusal finds the old entry in its place: that goes, and the next one is remembered
    assert_eq!(bench.refuse(1).await.err(), Some(NotRecorded::Fenced));
    assert!(!bench.is_stored(1).await);
    bench.refuse(1).await.unwrap();
    assert!(bench.is_known(1).await);
}

#[tokio::test]
async fn marks_that_take_longer_than_an_answer_may_wait_are_made_all_the_same() {
    let bench = Bench::new().await;
    bench.store.marks_wait.store(true, Ordering::SeqCst);
    for n in 1..=2 {
        bench.refuse(n).await.unwrap();
    }
    assert_eq!(bench.refuse_within(3, Duration::from_millis(1)).await.err(), Some(NotRecorded::Guard));
    assert!(bench.is_on() && bench.is_stored(1).await, "not marked yet");
    bench.store.mark.add_permits(1);
    bench.memory.tracker.close();
    bench.memory.tracker.wait().await;
    assert!(!bench.is_stored(1).await && !bench.is_stored(2).await);
}

#[tokio::test]
async fn entries_of_good_times_stay() {
    let bench = Bench::new().await;
    bench.refuse(1).await.unwrap();
    bench.clock.advance_ms(1);
    bench.refuse(2).await.unwrap();
    // the window goes back to the second one, and the first one is a millisecond older
    bench.clock.advance_ms(WINDOW_MS);
    assert!(bench.refuse(3).await.is_ok() && !bench.is_on());
    assert_eq!(bench.refuse(4).await.err(), Some(NotRecorded::Guard));
    assert!(bench.is_on());
    for (n, good) in [(1, true), (2, false), (3, false), (4, false)] {
        assert_eq!((bench.is_known(n).await, bench.is_stored(n).await), (good, good), "document {n}");
    }
    // between two such windows there are good times too
    bench.clock.advance_ms(10);
    bench.accept(5).await;
    assert!(!bench.is_on());
    bench.clock.advance_ms(1);
    bench.refuse(6).await.unwrap();
    bench.clock.advance_ms(WINDOW_MS + 1);
    bench.trip(7).await;
    for (n, good) in [(1, true), (2, false), (6, true), (7, false), (8, false), (9, false)] {
        assert_eq!((bench.is_known(n).await, bench.is_stored(n).await), (good, good), "document {n}");
    }
}

#[test]
fn round_numbers_are_told() {
    let told: Vec<u64> = (1..=10_000).filter(|n| *n >= 10 && is_power_of_ten(*n)).collect();
    assert_eq!(told, [10, 100, 1000, 10_000]);
    assert!(!is_power_of_ten(0));
}
