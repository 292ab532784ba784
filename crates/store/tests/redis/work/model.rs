//! Random lives of operations and jobs, on Redis and in the reference at once: both always say the same. Not so where the order
//! of jobs that are tried again is concerned, and what a forget ends.

use std::fmt::Debug;

use fastrand::Rng;
use nevertwice_domain::clock::ManualClock;
use nevertwice_store::StoreError;
use nevertwice_store::work::memory::WorkInMemory;

use super::*;

const UPSTREAMS: [&str; 2] = ["ocr", "tika"];

/// What there is little of.
#[derive(Clone, Copy)]
enum Bound {
    Queue,
    Bytes,
}

struct World<'a> {
    server: &'a Redis,
    clock: Arc<ManualClock>,
    reference: WorkInMemory,
    store: RedisStore,
    prefix: String,
    ids: Vec<JobId>,
    claims: Vec<(Claim, Claim)>,
    untold: Vec<(Untold, Untold)>,
    submitted: u64,
    handed_out: u64,
    to_tell: u64,
    /// How often there was no room, by the bound.
    full: BTreeMap<String, u64>,
}

/// The same answer of both.
#[track_caller]
fn same<T: Debug + PartialEq>(expected: Result<T, StoreError>, found: Result<T, StoreError>) -> T {
    match (expected, found) {
        (Ok(expected), Ok(found)) => {
            assert_eq!(found, expected, "what Redis says, and what the reference does");
            expected
        }
        (expected, found) => panic!("{expected:?}, {found:?}"),
    }
}

macro_rules! both {
    ($world:expr, $method:ident($($argument:expr),*)) => {
        same($world.reference.$method($($argument),*).await, $world.store.$method($($argument),*).await)
    };
}

impl<'a> World<'a> {
    async fn new(server: &'a Redis, prefix: String) -> Self {
        let clock = Arc::new(ManualClock::at(Millis(1_700_000_000_000)));
        let store =
            RedisStore::start(bench::options(server.addr(), &prefix), Arc::<ManualClock>::clone(&clock))
                .await;
        Self {
            server,
            reference: WorkInMemory::new(Arc::<ManualClock>::clone(&clock)),
            clock,
            store,
            prefix,
            ids: Vec::new(),
            claims: Vec::new(),
            untold: Vec::new(),
            submitted: 0,
            handed_out: 0,
            to_tell: 0,
            full: BTreeMap::new(),
        }
    }

    fn job(&mut self, rng: &mut Rng) -> Job {
        self.submitted += 1;
        let mut job = samples::job(self.submitted, self.clock.now());
        job.upstream = samples::upstream(UPSTREAMS[rng.usize(..2)]);
        job.tenant = samples::tenant(["a", "b"][rng.usize(..2)]);
        if rng.bool() {
            job.key = Some(samples::key(&rng.u8(..4).to_string()));
            job.request.digest = samples::fingerprint(rng.u64(..2));
        }
        if rng.u8(..4) == 0 {
            job.webhook = None;
        }
        if rng.u8(..8) == 0 {
            (job.status, job.error) = (JobStatus::Failed, Some(samples::verdict()));
            job.finished_at = Some(job.created_at);
        }
        job
    }

    fn id(&self, rng: &mut Rng) -> JobId {
        rng.choice(&self.ids).copied().unwrap_or_else(|| samples::job(u64::MAX, self.clock.now()).id)
    }

    fn end(&self, rng: &mut Rng, life_ms: u64) -> JobEnd {
        let at = self.clock.now();
        if rng.u8(..3) == 0 {
            return JobEnd::Again {
                error: rng.bool().then(samples::transient),
                not_before: at.plus_ms(rng.u64(..2000)),
            };
        }
        let body = Bytes::from(vec![rng.u8(..); rng.usize(..5000)]);
        let (status, error) = match rng.u8(..4) {
            0 => (JobStatus::Failed, Some(samples::transient())),
            1 => (JobStatus::Failed, Some(samples::verdict())),
            2 => (JobStatus::Cancelled, None),
            _ => (JobStatus::Succeeded, None),
        };
        let result = rng.bool().then(|| (samples::facts(200, &body), body));
        JobEnd::Final { status, error, result, at, expires_at: at.plus_ms(life_ms) }
    }

    async fn step(&mut self, rng: &mut Rng, life_ms: u64, bounded: Option<Bound>) {
        let now = self.clock.now();
        match rng.u8(..22) {
            0..4 => {
                let job = self.job(rng);
                let mut bounds = samples::bounds(now.plus_ms(life_ms));
                match bounded {
                    Some(Bound::Queue) => (bounds.max_queued, bounds.tenant_max_queued) = (4, 2),
                    Some(Bound::Bytes) => (bounds.max_bytes, bounds.tenant_max_bytes) = (60_000, 32_000),
                    None => {}
                }
                let input = Bytes::from(vec![rng.u8(..); rng.usize(..5000)]);
                let result = job.status.is_final().then(|| Bytes::from(vec![rng.u8(..); rng.usize(..1000)]));
                match both!(self, submit(job.clone(), input.clone(), result.clone(), &bounds)) {
                    Submitted::New(job) => self.ids.push(job.id),
                    Submitted::Full(full) => *self.full.entry(format!("{full:?}")).or_default() += 1,
                    _ => {}
                }
            }
            4..8 => {
                let upstream = samples::upstream(UPSTREAMS[rng.usize(..2)]);
                let expected = self.reference.claim(&upstream, Duration::ZERO).await;
                let found = self.store.claim(&upstream, Duration::ZERO).await;
                let claims = (expected.ok().flatten(), found.ok().flatten());
                assert_eq!(claims.1.as_ref().map(|c| &c.job), claims.0.as_ref().map(|c| &c.job));
                self.handed_out += u64::from(claims.0.is_some());
                self.claims.extend(claims.0.zip(claims.1));
            }
            8..13 if !self.claims.is_empty() => {
                let at = rng.usize(..self.claims.len());
                let (a, b) = self.claims[at].clone();
                match rng.u8(..3) {
                    0 => _ = same(self.reference.renew(&a).await, self.store.renew(&b).await),
                    1 => _ = same(self.reference.sending(&a).await, self.store.sending(&b).await),
                    _ => {
                        let end = self.end(rng, life_ms);
                        let expected = self.reference.settle_job(&a, end.clone()).await;
                        same(expected, self.store.settle_job(&b, end).await);
                        if rng.bool() {
                            self.claims.swap_remove(at);
                        }
                    }
                }
            }
            13 => {
                let id = self.id(rng);
                both!(self, cancel(&id, now.plus_ms(life_ms)));
            }
            14 => {
                let operation = samples::operation(rng.u64(..20), now);
                both!(self, put(&operation));
            }
            15 => {
                let limit = rng.usize(1..4);
                both!(self, due(now, now.plus_ms(500), limit));
            }
            16 => match (rng.u8(..4), samples::operation_id(rng.u64(..20))) {
                (0, id) => both!(self, remove(&id)),
                (_, id) => _ = both!(self, settle(&id)),
            },
            18 | 19 => {
                let tenant = samples::tenant(["a", "b"][rng.usize(..2)]);
                let (again_at, limit) = (now.plus_ms(rng.u64(1..5000)), rng.usize(1..4));
                let (due, named) =
                    (self.reference.tenants_to_tell().await, self.store.tenants_to_tell().await);
                let named = named.unwrap_or_default();
                assert!(due.iter().flatten().all(|tenant| named.contains(tenant)), "{due:?}, and {named:?}");
                let expected = self.reference.to_tell(&tenant, again_at, limit).await.unwrap_or_default();
                let found = self.store.to_tell(&tenant, again_at, limit).await.unwrap_or_default();
                let seen = |all: &[Untold]| all.iter().map(|u| (u.job.clone(), u.calls)).collect::<Vec<_>>();
                assert_eq!(seen(&found), seen(&expected));
                self.to_tell += expected.len() as u64;
                self.untold.extend(expected.into_iter().zip(found));
            }
            20 if !self.untold.is_empty() => {
                let (a, b) = self.untold.swap_remove(rng.usize(..self.untold.len()));
                let again_at = rng.bool().then(|| now.plus_ms(rng.u64(..2000)));
                same(self.reference.told(&a, again_at).await, self.store.told(&b, again_at).await);
            }
            17 if rng.u8(..6) == 0 => {
                self.clock.advance_ms(15_000);
                self.lapse();
            }
            _ => {
                // no claim lapses by the steps of the clock alone: Redis goes by its own
                for (a, b) in &self.claims {
                    same(self.reference.renew(a).await, self.store.renew(b).await);
                }
                self.clock.advance_ms(rng.i64(1..800));
            }
        }
        self.compare(rng).await;
    }

    /// The time of a claim is over at the server too.
    fn lapse(&self) {
        for upstream in UPSTREAMS {
            let stream = format!("{{{}}}:jq:{upstream}", self.prefix);
            let pending = self.server.try_ask(&["xpending", &stream, "workers", "-", "+", "1000", "running"]);
            for entry in pending.unwrap_or_default().split_whitespace().filter(|word| word.contains('-')) {
                self.server
                    .ask(&["xclaim", &stream, "workers", "running", "0", entry, "idle", "15000", "justid"]);
            }
        }
    }

    async fn compare(&self, rng: &mut Rng) {
        let id = self.id(rng);
        both!(self, job(&id));
        both!(self, input(&id));
        both!(self, result(&id));
        let operation = samples::operation_id(rng.u64(..20));
        both!(self, operation(&operation));
        let query = JobQuery {
            tenant: rng.bool().then(|| samples::tenant("a")),
            upstream: rng.bool().then(|| samples::upstream("ocr")),
            status: rng.bool().then(|| JobStatus::ALL[rng.usize(..5)]),
            limit: rng.usize(1..20),
            after: rng.bool().then(|| self.id(rng)),
        };
        both!(self, list(&query));
        both!(self, depth());
        both!(self, stored_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_redis_and_the_reference_say_the_same() {
    let server = Redis::start();
    let mut full = BTreeMap::<String, u64>::new();
    for seed in 0..12 {
        let mut rng = Rng::with_seed(seed);
        let mut world = World::new(&server, format!("world-{seed}")).await;
        // what has expired counts for the bounds until it is removed: one at a time
        let bounded = [Some(Bound::Bytes), None, Some(Bound::Queue)][seed as usize % 3];
        let life_ms = if bounded.is_some() { u64::from(u32::MAX) } else { 20_000 };
        for _ in 0..600 {
            world.step(&mut rng, life_ms, bounded).await;
        }
        assert!(world.to_tell > 12, "seed {seed}: {} to tell", world.to_tell);
        assert!(world.handed_out > 12, "seed {seed}: {} handed out", world.handed_out);
        for (bound, times) in world.full {
            *full.entry(bound).or_default() += times;
        }
    }
    assert_eq!(full.len(), 4, "each bound had its turn: {full:?}");
}
