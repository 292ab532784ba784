//! Random lives of operations and jobs, on SQLite and in the reference at once: both always say the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use nevertwice_domain::clock::{Clock, ManualClock};
use nevertwice_domain::entry::Selector;
use nevertwice_domain::job::{Job, JobId, JobStatus};
use nevertwice_store::work::memory::WorkInMemory;
use nevertwice_store::work::sqlite::SqliteWork;
use nevertwice_store::work::suite::samples;
use nevertwice_store::work::{
    CLAIM_LIFE, Claim, JobEnd, JobQuery, JobStore, OperationStore, Submitted, Untold,
};

use super::{Done, Failed, clock, open};

const UPSTREAMS: [&str; 2] = ["ocr", "tika"];

/// What there is little of.
#[derive(Clone, Copy)]
enum Bound {
    Queue,
    Bytes,
}

struct World {
    clock: Arc<ManualClock>,
    reference: WorkInMemory,
    store: Option<SqliteWork>,
    directory: tempfile::TempDir,
    /// How long jobs and operations live.
    life_ms: u64,
    bounded: Option<Bound>,
    ids: Vec<JobId>,
    claims: Vec<(Claim, Claim)>,
    untold: Vec<(Untold, Untold)>,
    submitted: u64,
    /// How often something came of a step: a world in which nothing happens proves nothing.
    handed_out: u64,
    to_tell: u64,
    /// How often there was no room, by the bound.
    full: BTreeMap<String, u64>,
}

/// Asks both, and demands the same answer.
macro_rules! both {
    ($world:expr, $method:ident($($argument:expr),*)) => {{
        let expected = $world.reference.$method($($argument),*).await?;
        let found = $world.store()?.$method($($argument),*).await?;
        if expected != found {
            let said = format!("{}: the reference says {expected:?}, SQLite {found:?}", stringify!($method));
            return Err(Failed::from(said));
        }
        expected
    }};
}

impl World {
    fn new(life_ms: u64, bounded: Option<Bound>) -> Result<Self, Failed> {
        let (clock, directory) = (clock(), tempfile::tempdir()?);
        let reference = WorkInMemory::new(Arc::<ManualClock>::clone(&clock));
        let store = Some(open(directory.path(), &clock)?);
        let (ids, claims) = (Vec::new(), Vec::new());
        Ok(Self {
            clock,
            reference,
            store,
            directory,
            life_ms,
            bounded,
            ids,
            claims,
            untold: Vec::new(),
            submitted: 0,
            handed_out: 0,
            to_tell: 0,
            full: BTreeMap::new(),
        })
    }

    fn store(&self) -> Result<&SqliteWork, Failed> {
        Ok(self.store.as_ref().ok_or("it is open")?)
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
        match rng.choice(&self.ids) {
            Some(id) => *id,
            None => samples::job(u64::MAX, self.clock.now()).id,
        }
    }

    fn end(&self, rng: &mut Rng) -> JobEnd {
        if rng.u8(..3) == 0 {
            let error = rng.bool().then(samples::transient);
            return JobEnd::Again { error, not_before: self.clock.now().plus_ms(rng.u64(..2000)) };
        }
        let body = Bytes::from(vec![rng.u8(..); rng.usize(..5000)]);
        let (status, error) = match rng.u8(..4) {
            0 => (JobStatus::Failed, Some(samples::transient())),
            1 => (JobStatus::Failed, Some(samples::verdict())),
            2 => (JobStatus::Cancelled, None),
            _ => (JobStatus::Succeeded, None),
        };
        let result = rng.bool().then(|| (samples::facts(200, &body), body));
        let at = self.clock.now();
        JobEnd::Final { status, error, result, at, expires_at: at.plus_ms(self.life_ms) }
    }

    async fn step(&mut self, rng: &mut Rng) -> Done {
        let now = self.clock.now();
        match rng.u8(..23) {
            0..4 => {
                let job = self.job(rng);
                let mut bounds = samples::bounds(now.plus_ms(self.life_ms));
                match self.bounded {
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
                let expected = self.reference.claim(&upstream, Duration::ZERO).await?;
                let found = self.store()?.claim(&upstream, Duration::ZERO).await?;
                let jobs = (expected.as_ref().map(|c| &c.job), found.as_ref().map(|c| &c.job));
                if jobs.0 != jobs.1 {
                    return Err(format!("{jobs:?} were handed out").into());
                }
                self.handed_out += u64::from(expected.is_some());
                self.claims.extend(expected.zip(found));
            }
            8..13 if !self.claims.is_empty() => {
                let at = rng.usize(..self.claims.len());
                let (expected, found) = self.claims[at].clone();
                match rng.u8(..3) {
                    0 => {
                        let held =
                            (self.reference.renew(&expected).await?, self.store()?.renew(&found).await?);
                        assert_eq!(held.0, held.1, "renew");
                    }
                    1 => {
                        let held =
                            (self.reference.sending(&expected).await?, self.store()?.sending(&found).await?);
                        assert_eq!(held.0, held.1, "sending");
                    }
                    _ => {
                        let end = self.end(rng);
                        let held = self.reference.settle_job(&expected, end.clone()).await?;
                        assert_eq!(held, self.store()?.settle_job(&found, end).await?, "settle_job");
                        if rng.bool() {
                            self.claims.swap_remove(at);
                        }
                    }
                }
            }
            13 => {
                let id = self.id(rng);
                both!(self, cancel(&id, now.plus_ms(self.life_ms)));
            }
            14 => {
                let id = self.id(rng);
                both!(self, retry(&id));
            }
            15 => {
                let operation = samples::operation(rng.u64(..20), now);
                both!(self, put(&operation));
            }
            16 => {
                let limit = rng.usize(1..4);
                both!(self, due(now, now.plus_ms(500), limit));
            }
            17 => {
                let n = rng.u64(..20);
                match rng.u8(..4) {
                    0 => both!(self, remove(&samples::operation_id(n))),
                    1 => both!(self, forget_pending(&Selector::key(samples::fingerprint(n)))),
                    _ => drop(both!(self, settle(&samples::operation_id(n)))),
                }
            }
            18 | 19 => {
                let tenant = samples::tenant(["a", "b"][rng.usize(..2)]);
                let (again_at, limit) = (now.plus_ms(rng.u64(1..5000)), rng.usize(1..4));
                let due = self.reference.tenants_to_tell().await?;
                let named = self.store()?.tenants_to_tell().await?;
                assert!(due.iter().all(|tenant| named.contains(tenant)), "{due:?}, and {named:?}");
                let expected = self.reference.to_tell(&tenant, again_at, limit).await?;
                let found = self.store()?.to_tell(&tenant, again_at, limit).await?;
                let seen = |all: &[Untold]| all.iter().map(|u| (u.job.clone(), u.calls)).collect::<Vec<_>>();
                assert_eq!(seen(&expected), seen(&found), "to_tell");
                self.to_tell += expected.len() as u64;
                self.untold.extend(expected.into_iter().zip(found));
            }
            20 if !self.untold.is_empty() => {
                let (expected, found) = self.untold.swap_remove(rng.usize(..self.untold.len()));
                let again_at = rng.bool().then(|| now.plus_ms(rng.u64(..2000)));
                let was = self.reference.told(&expected, again_at).await?;
                assert_eq!(was, self.store()?.told(&found, again_at).await?, "told");
            }
            _ => self.clock.advance_ms(match rng.u8(..12) {
                0 => i64::try_from(CLAIM_LIFE.as_millis())?,
                1 => i64::try_from(self.life_ms.min(40_000) / 2)?,
                _ => rng.i64(1..800),
            }),
        }
        self.compare(rng).await
    }

    async fn compare(&self, rng: &mut Rng) -> Done {
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
        Ok(())
    }

    /// What has expired is removed, and counts for nothing then.
    async fn all_goes(&mut self, seed: u64) -> Done {
        self.clock.advance_ms(2 * i64::from(u32::MAX));
        for _ in 0..1000 {
            if self.store()?.stored_bytes().await? == 0 && self.store()?.depth().await?.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(format!("seed {seed}: {} bytes stay counted", self.store()?.stored_bytes().await?).into())
    }

    /// As it is after a restart, except that claims are over, in the reference too.
    fn reopen(&mut self) -> Done {
        self.store = None;
        self.clock.advance_ms(i64::try_from(CLAIM_LIFE.as_millis())?);
        self.store = Some(open(self.directory.path(), &self.clock)?);
        Ok(())
    }
}

async fn lives(worlds: u64, steps: u64, seed: u64) -> Done {
    let mut full = BTreeMap::<String, u64>::new();
    for world in 0..worlds {
        let mut rng = Rng::with_seed(seed + world);
        // What has expired counts for the bounds until it is removed: one at a time.
        let bounded = [Some(Bound::Bytes), None, Some(Bound::Queue)][world as usize % 3];
        let mut it = World::new(if bounded.is_some() { u64::from(u32::MAX) } else { 20_000 }, bounded)?;
        for step in 0..steps {
            it.step(&mut rng).await.map_err(|e| format!("seed {}, step {step}: {e}", seed + world))?;
            if bounded.is_some() {
                let depth = it.reference.depth().await?;
                assert_eq!(depth, it.store()?.depth().await?, "seed {}, step {step}", seed + world);
                let bytes = it.reference.stored_bytes().await?;
                assert_eq!(bytes, it.store()?.stored_bytes().await?, "seed {}, step {step}", seed + world);
            }
            if rng.u8(..100) == 0 {
                it.reopen()?;
            }
        }
        assert!(it.to_tell > steps / 300, "seed {}: {} to tell", seed + world, it.to_tell);
        assert!(it.handed_out > steps / 50, "seed {}: {} handed out", seed + world, it.handed_out);
        for (bound, times) in std::mem::take(&mut it.full) {
            *full.entry(bound).or_default() += times;
        }
        it.all_goes(seed + world).await?;
    }
    assert_eq!(full.len(), 4, "each bound had its turn: {full:?}");
    Ok(())
}

#[tokio::test]
async fn both_say_the_same() -> Done {
    lives(6, 800, 1).await
}

#[tokio::test]
async fn slow_both_say_the_same_for_long() -> Done {
    lives(40, 1500, 1000).await
}
