//! The loop breaker at one upstream: the failures that requests met there, and the last answer of those that are held. In this
//! process alone, and bounded; who needs a place takes that of the one that failed longest ago.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use nevertwice_domain::clock::Clock;
use nevertwice_domain::entry::{ReplayFields, Selector};
use nevertwice_domain::fingerprint::{DocumentDigest, Fingerprint};
use nevertwice_domain::loop_breaker::{FailureRun, LoopBreakerPolicy};
use nevertwice_domain::tenant::{Scope, TenantId, UpstreamName};

use crate::lock::Lock;
use crate::memory::Guarded;
use crate::metrics::LoopBreakerMetrics;

/// The most fingerprints whose failures are counted or that are held.
const MAX_RUNS: usize = 4096;
/// The most bytes of answers: the longest that can be configured fits.
const MAX_BYTES: usize = (16 << 20) + (64 << 10);

/// The loop breaker of one upstream.
pub(crate) struct LoopBreaker {
    pub(crate) policy: LoopBreakerPolicy,
    pub(crate) metrics: LoopBreakerMetrics,
    runs: Lock<Runs>,
}

/// An upstream's answer that is given again.
pub(crate) struct LastAnswer {
    pub(crate) status: StatusCode,
    pub(crate) fields: ReplayFields,
    pub(crate) body: Bytes,
}

/// A request that is not sent.
pub(crate) struct Held {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) answer: Arc<LastAnswer>,
    /// Once it is known.
    pub(crate) document: Option<DocumentDigest>,
    /// How old the answer is.
    pub(crate) age_ms: u64,
    /// How long the hold lasts yet.
    pub(crate) left_ms: u64,
}

#[derive(Default)]
struct Runs {
    by_key: HashMap<Fingerprint, Kept>,
    /// In the order of their latest failures.
    order: BTreeMap<u64, Fingerprint>,
    next: u64,
    bytes: usize,
}

struct Kept {
    run: FailureRun,
    place: u64,
    /// While it is held.
    answer: Option<Arc<LastAnswer>>,
    document: Option<DocumentDigest>,
}

impl LoopBreaker {
    pub(crate) fn new(policy: LoopBreakerPolicy, metrics: LoopBreakerMetrics) -> Self {
        Self { policy, metrics, runs: Lock::default() }
    }

    /// Whether this request is held, and with what it is answered then.
    pub(crate) fn held(&self, fingerprint: &Fingerprint, clock: &dyn Clock) -> Option<Held> {
        let mut runs = self.runs.hold();
        let Runs { by_key, bytes, .. } = &mut *runs;
        let kept = by_key.get_mut(fingerprint)?;
        // read under the lock: it does not seem to step back when two come at once
        let now = clock.now();
        let Some(hold) = kept.run.held(now) else {
            *bytes -= kept.answer.take().map_or(0, |answer| answer.bytes());
            return None;
        };
        let answer = Arc::clone(kept.answer.as_ref()?);
        Some(Held {
            fingerprint: *fingerprint,
            answer,
            document: kept.document,
            age_ms: now.since_ms(hold.since),
            left_ms: hold.until.since_ms(now),
        })
    }

    /// The upstream failed once more on this request. Returns whether it is held from now on.
    pub(crate) fn failed(
        &self,
        asked: &Guarded,
        tenant: &TenantId,
        answer: LastAnswer,
        clock: &dyn Clock,
    ) -> bool {
        // nobody else can ever fail on what is one tenant's own
        let two_tenants = self.policy.two_tenants && !Scope::is_one_tenant_s(&asked.scope);
        let policy = LoopBreakerPolicy { two_tenants, ..self.policy };
        let mut runs = self.runs.hold();
        let now = clock.now();
        let mut kept = runs.take(&asked.fingerprint).unwrap_or_else(|| Kept {
            run: FailureRun::new(answer.status),
            place: 0,
            answer: None,
            document: None,
        });
        let begins = kept.run.failed(&policy, answer.status, tenant, now);
        if begins {
            kept.answer = Some(Arc::new(answer));
        } else if kept.run.held(now).is_none() {
            kept.answer = None;
        }
        runs.put(asked.fingerprint, kept);
        while let Some((_, oldest)) = runs.order.first_key_value() {
            let oldest = *oldest;
            let over = runs.by_key.get(&oldest).is_none_or(|kept| kept.run.is_over(&policy, now));
            if !over && runs.by_key.len() <= MAX_RUNS && runs.bytes <= MAX_BYTES {
                break;
            }
            runs.take(&oldest);
        }
        begins
    }

    /// Which document it is that is held.
    pub(crate) fn is_of(&self, fingerprint: &Fingerprint, document: DocumentDigest) {
        if let Some(kept) = self.runs.hold().by_key.get_mut(fingerprint) {
            kept.document = Some(document);
        }
    }

    /// The upstream has answered this request in another way: it is not held, and counted anew.
    pub(crate) fn clear(&self, fingerprint: &Fingerprint) {
        self.runs.hold().take(fingerprint);
    }

    /// An operator's word. Returns how many of those that went were held.
    pub(crate) fn forget(&self, which: &Selector, upstream: &UpstreamName, clock: &dyn Clock) -> u64 {
        // a status that can be selected is a refusal's, and no failure's
        if which.status.is_some() || which.upstream.as_ref().is_some_and(|name| name != upstream) {
            return 0;
        }
        let selected = |(key, kept): &(&Fingerprint, &Kept)| {
            which.fingerprint.is_none_or(|fingerprint| fingerprint == **key)
                && which.document.is_none_or(|document| kept.document == Some(document))
                && which.before.is_none_or(|before| kept.run.first_at() < before)
        };
        let mut runs = self.runs.hold();
        let now = clock.now();
        let keys: Vec<Fingerprint> = runs.by_key.iter().filter(selected).map(|(key, _)| *key).collect();
        let gone = keys.iter().filter_map(|key| runs.take(key));
        gone.map(|mut kept| u64::from(kept.run.held(now).is_some())).sum()
    }

    /// How many fingerprints are held.
    pub(crate) fn count(&self, clock: &dyn Clock) -> usize {
        let mut runs = self.runs.hold();
        let now = clock.now();
        runs.by_key.values_mut().filter_map(|kept| kept.run.held(now)).count()
    }
}

impl LastAnswer {
    fn bytes(&self) -> usize {
        let fields =
            [&self.fields.content_type, &self.fields.content_encoding, &self.fields.content_language];
        self.body.len() + fields.into_iter().flatten().map(Bytes::len).sum::<usize>()
    }
}

impl Kept {
    fn bytes(&self) -> usize {
        self.answer.as_ref().map_or(0, |answer| answer.bytes())
    }
}

impl Runs {
    fn take(&mut self, key: &Fingerprint) -> Option<Kept> {
        let kept = self.by_key.remove(key)?;
        self.order.remove(&kept.place);
        self.bytes -= kept.bytes();
        Some(kept)
    }

    /// Puts it last.
    fn put(&mut self, key: Fingerprint, mut kept: Kept) {
        kept.place = self.next;
        self.next += 1;
        self.order.insert(kept.place, key);
        self.bytes += kept.bytes();
        self.by_key.insert(key, kept);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that breaks should stop")]
mod tests {
    use nevertwice_domain::clock::{ManualClock, Millis};

    use super::*;
    use crate::metrics::Metrics;

    const POLICY: LoopBreakerPolicy =
        LoopBreakerPolicy { failures: 3, window_ms: 1000, hold_ms: 500, two_tenants: true };

    struct Bench {
        breaker: LoopBreaker,
        clock: ManualClock,
        upstream: UpstreamName,
    }

    impl Bench {
        fn new(policy: LoopBreakerPolicy) -> Self {
            let breaker = LoopBreaker::new(policy, Metrics::new(true).loop_breaker("ocr"));
            let upstream = UpstreamName::new("ocr").unwrap();
            Self { breaker, clock: ManualClock::at(Millis(1_700_000_000_000)), upstream }
        }

        fn fail(&self, n: u32, scope: &str, tenant: &str, body: &[u8]) -> bool {
            let answer = LastAnswer {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                fields: ReplayFields::default(),
                body: Bytes::copy_from_slice(body),
            };
            let asked = Guarded { fingerprint: key(n), scope: scope.into() };
            self.breaker.failed(&asked, &TenantId::new(tenant).unwrap(), answer, &self.clock)
        }

        /// Fails from two tenants until it is held.
        fn hold(&self, n: u32, body: &[u8]) {
            assert!(!self.fail(n, "fleet", "a", body) && !self.fail(n, "fleet", "b", body));
            assert!(self.fail(n, "fleet", "a", body));
        }

        fn held(&self, n: u32) -> Option<Held> {
            self.breaker.held(&key(n), &self.clock)
        }

        fn forget(&self, which: &Selector) -> u64 {
            self.breaker.forget(which, &self.upstream, &self.clock)
        }

        /// What is counted twice agrees.
        #[track_caller]
        fn consistent(&self) {
            let runs = self.breaker.runs.hold();
            assert_eq!(runs.order.len(), runs.by_key.len());
            assert_eq!(runs.bytes, runs.by_key.values().map(Kept::bytes).sum::<usize>());
            assert!(runs.by_key.len() <= MAX_RUNS && runs.bytes <= MAX_BYTES);
            assert!(runs.order.iter().all(|(place, key)| runs.by_key[key].place == *place));
        }
    }

    fn key(n: u32) -> Fingerprint {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        Fingerprint::from_bytes(bytes)
    }

    #[test]
    fn a_held_request_gets_the_last_answer_until_the_hold_ends() {
        let bench = Bench::new(POLICY);
        assert!(!bench.fail(1, "fleet", "a", b"one") && !bench.fail(1, "fleet", "b", b"two"));
        assert!(bench.held(1).is_none());
        assert!(bench.fail(1, "fleet", "a", b"three"));
        bench.breaker.is_of(&key(1), DocumentDigest::of(b"doc"));
        bench.clock.advance_ms(499);
        let held = bench.held(1).unwrap();
        assert_eq!((&held.answer.body[..], held.age_ms, held.left_ms), (&b"three"[..], 499, 1));
        assert_eq!(held.document, Some(DocumentDigest::of(b"doc")));
        assert!(bench.held(2).is_none(), "another request is not");
        assert_eq!(bench.breaker.count(&bench.clock), 1);
        bench.clock.advance_ms(1);
        assert!(bench.held(1).is_none());
        assert_eq!((bench.breaker.count(&bench.clock), bench.breaker.runs.hold().bytes), (0, 0));
        assert!(bench.fail(1, "fleet", "a", b"four"), "the count is kept");
        assert_eq!(bench.held(1).unwrap().answer.body, "four");
        bench.breaker.clear(&key(1));
        assert!(bench.held(1).is_none() && !bench.fail(1, "fleet", "b", b"five"));
        bench.consistent();
    }

    #[test]
    fn in_a_tenant_s_own_scope_its_failures_suffice() {
        let bench = Bench::new(POLICY);
        for (n, scope, begins) in [
            (0, "fleet", [false; 4]),
            (1, "tenant:a", [false, false, true, false]),
            (2, "domain:a", [false; 4]),
        ] {
            assert_eq!([(); 4].map(|()| bench.fail(n, scope, "a", b"")), begins, "{scope}");
        }
    }

    #[test]
    fn a_forget_clears_what_it_selects() {
        let bench = Bench::new(POLICY);
        let all = Selector::default();
        let other = UpstreamName::new("other").unwrap();
        let set = || {
            for n in 0..3 {
                bench.hold(n, b"x");
                bench.breaker.is_of(&key(n), DocumentDigest::of(&[n as u8]));
            }
            bench.fail(9, "fleet", "a", b"counted, not held");
        };
        let now = bench.clock.now();
        for (which, gone) in [
            (Selector::key(key(1)), 1),
            (Selector::key(key(7)), 0),
            (Selector::key(key(9)), 0),
            (Selector { document: Some(DocumentDigest::of(&[2])), ..all.clone() }, 1),
            (Selector { upstream: Some(bench.upstream.clone()), ..all.clone() }, 3),
            (Selector { upstream: Some(other), ..all.clone() }, 0),
            (Selector { before: Some(now), ..all.clone() }, 0),
            (Selector { before: Some(now.plus_ms(1)), ..all.clone() }, 3),
            (Selector { status: nevertwice_domain::status::RefusalStatus::new(400).ok(), ..all.clone() }, 0),
            (all.clone(), 3),
        ] {
            set();
            assert_eq!(bench.forget(&which), gone, "{which:?}");
            assert_eq!(bench.breaker.count(&bench.clock) as u64, 3 - gone, "{which:?}");
            bench.consistent();
            bench.forget(&all);
        }
        assert!(bench.breaker.runs.hold().by_key.is_empty());
    }

    #[test]
    fn it_is_bounded_and_the_one_that_failed_longest_ago_goes_first() {
        let bench = Bench::new(POLICY);
        let most = u32::try_from(MAX_RUNS).unwrap();
        bench.hold(0, b"x");
        for n in 1..most {
            bench.fail(n, "fleet", "a", b"x");
        }
        assert!(bench.held(0).is_some());
        bench.fail(1, "fleet", "a", b"x");
        bench.fail(most, "fleet", "a", b"x");
        assert!(bench.held(0).is_none(), "looking does not keep it");
        bench.fail(most + 1, "fleet", "a", b"x");
        assert!(bench.breaker.runs.hold().by_key.contains_key(&key(1)), "failing does");
        bench.consistent();
        // what does not count any more makes room by itself
        bench.clock.advance_ms(1001);
        bench.fail(7, "fleet", "a", b"x");
        assert_eq!(bench.breaker.runs.hold().by_key.len(), 1);

        let large = vec![0; 16 << 20];
        bench.hold(1, &large);
        assert!(bench.held(1).is_some(), "one of the longest fits");
        bench.hold(2, &large);
        assert!(bench.held(1).is_none() && bench.held(2).is_some());
        bench.consistent();
    }

    #[test]
    fn a_thousand_failures_at_once_are_all_counted() {
        for _ in 0..20 {
            let bench = Bench::new(LoopBreakerPolicy { failures: 100, ..POLICY });
            let begun: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..10)
                    .map(|t| {
                        let bench = &bench;
                        scope.spawn(move || {
                            let tenant = format!("t{t}");
                            (0..100).filter(|n| bench.fail(n % 10, "fleet", &tenant, b"x")).count()
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!((begun, bench.breaker.count(&bench.clock)), (10, 10));
            bench.consistent();
        }
    }
}
