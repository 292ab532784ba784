//! The reference: operations and jobs in maps behind one lock, each rule written down in the plainest way. Forgets everything
//! when the process ends. What it does is what every store has to do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::Selector;
use nevertwice_domain::job::{IdempotencyKey, Job, JobId, JobStatus};
use nevertwice_domain::operation::{Operation, OperationId};
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{
    CLAIM_LIFE, Claim, Held, JobBounds, JobDepth, JobEnd, JobPage, JobQuery, JobStore, OperationStore,
    Submitted, Untold,
    life::{self, Taken},
};
use crate::StoreError;

/// How often what has expired is removed.
const SWEEP_MS: u64 = 1000;

/// How long a waiter goes without another look, whatever the clock says.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Operations and jobs in the memory of this process.
pub struct WorkInMemory {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Something may be due.
    news: Notify,
}

#[derive(Default)]
struct State {
    operations: BTreeMap<OperationId, (u64, Operation)>,
    jobs: BTreeMap<JobId, Row>,
    keys: BTreeMap<IdempotencyKey, JobId>,
    last_sequence: u64,
    swept_at: Millis,
}

struct Row {
    job: Job,
    /// Its place in the order in which they came.
    sequence: u64,
    removed_at: Millis,
    /// When it is removed, if it was given up while it ran.
    given_up_until: Option<Millis>,
    /// How often it was handed out: the token of the latest claim.
    claims: u64,
    /// By the steady clock; `None` before the first claim.
    claimed_until: Option<std::time::Instant>,
    input: Option<Bytes>,
    result: Option<Bytes>,
    /// When its end is to be told next, and how often it was handed out for that.
    untold: Option<(Millis, u32)>,
}

impl WorkInMemory {
    /// An empty store that reads the time from `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default(), news: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        if now.since_ms(state.swept_at) >= SWEEP_MS {
            state.sweep(now);
        }
        state
    }
}

impl State {
    fn sweep(&mut self, now: Millis) {
        self.swept_at = now;
        self.operations.retain(|_, (_, operation)| operation.expires_at > now);
        self.jobs.retain(|_, row| row.removed_at > now);
        self.keys.retain(|_, id| self.jobs.contains_key(id));
    }

    fn operation(&mut self, id: &OperationId, now: Millis) -> Option<&mut Operation> {
        self.operations.get_mut(id).map(|(_, operation)| operation).filter(|o| o.expires_at > now)
    }

    fn job(&mut self, id: &JobId, now: Millis) -> Option<&mut Row> {
        self.jobs.get_mut(id).filter(|row| row.removed_at > now)
    }

    /// The job, as long as the claim on it holds.
    fn held(&mut self, claim: &Claim, now: Millis) -> Option<&mut Row> {
        self.job(&claim.job.id, now)
            .filter(|row| row.job.status == JobStatus::Running && row.claims.to_string() == claim.token)
    }

    fn submit(
        &mut self,
        mut job: Job,
        (input, result): (Bytes, Option<Bytes>),
        bounds: &JobBounds,
        now: Millis,
    ) -> Submitted {
        if let Some(key) = job.key
            && let Some(id) = self.keys.get(&key).copied()
            && let Some(present) = self.job(&id, now)
            && let Some(answer) = life::answer_to_key(&present.job, &job)
        {
            return answer;
        }
        life::begin(&mut job, bounds);
        let input = life::keeps_input(&job).then_some(input);
        let bytes = bytes_of(&input) + bytes_of(&result);
        if let Some(full) = life::full(&job, bytes, bounds, &self.taken(&job, now)) {
            return Submitted::Full(full);
        }
        self.keys.extend(job.key.map(|key| (key, job.id)));
        self.last_sequence += 1;
        let row = Row {
            job: job.clone(),
            sequence: self.last_sequence,
            removed_at: bounds.expires_at,
            given_up_until: None,
            claims: 0,
            claimed_until: None,
            input,
            result,
            untold: life::tell_at(&job).map(|at| (at, 0)),
        };
        self.jobs.insert(job.id, row);
        Submitted::New(job)
    }

    fn live(&self, now: Millis) -> impl Iterator<Item = &Row> {
        self.jobs.values().filter(move |row| row.removed_at > now)
    }

    fn taken(&self, job: &Job, now: Millis) -> Taken {
        let mut taken = Taken::default();
        for row in self.live(now) {
            let (waits, own) = (row.waits_with(job), row.job.tenant == job.tenant);
            taken.queued += u64::from(waits);
            taken.tenant_queued += u64::from(waits && own);
            taken.bytes += row.bytes();
            taken.tenant_bytes += if own { row.bytes() } else { 0 };
        }
        taken
    }

    /// Those whose workers died come first, then the one that waits longest: since it came, or since its next attempt is due.
    fn next(&self, upstream: &UpstreamName, now: Millis, steady: std::time::Instant) -> Option<JobId> {
        let jobs = || self.jobs.values().filter(|row| row.removed_at > now && row.job.upstream == *upstream);
        let queued = || jobs().filter(|row| row.job.status == JobStatus::Queued);
        let lapsed = jobs()
            .filter(|row| row.job.status == JobStatus::Running && row.claimed_until <= Some(steady))
            .min_by_key(|row| row.sequence);
        let first = queued().filter(|row| row.job.not_before.is_none()).min_by_key(|row| row.sequence);
        let again = queued()
            .filter_map(|row| Some((row.job.not_before.filter(|at| *at <= now)?, row.sequence, row)))
            .min_by_key(|(at, sequence, _)| (*at, *sequence));
        let longest = match (first, again) {
            (Some(first), Some((at, _, again))) if at < first.job.created_at => Some(again),
            (Some(first), _) => Some(first),
            (None, again) => again.map(|(_, _, row)| row),
        };
        lapsed.or(longest).map(|row| row.job.id)
    }

    fn claim(&mut self, upstream: &UpstreamName, clock: &dyn Clock) -> Option<Claim> {
        let (now, steady) = (clock.now(), clock.steady());
        let id = self.next(upstream, now, steady)?;
        let row = self.jobs.get_mut(&id)?;
        life::hand_out(&mut row.job, now);
        row.claims += 1;
        row.prolong(steady);
        Some(Claim { job: row.job.clone(), token: row.claims.to_string() })
    }

    fn list(&self, query: &JobQuery, now: Millis) -> JobPage {
        let limit = query.limit.clamp(1, 1000);
        let selected = self.jobs.values().rev().filter(|row| row.removed_at > now).map(|row| &row.job);
        let mut selected = selected
            .filter(|job| query.tenant.as_ref().is_none_or(|tenant| *tenant == job.tenant))
            .filter(|job| query.upstream.as_ref().is_none_or(|upstream| *upstream == job.upstream))
            .filter(|job| query.status.is_none_or(|status| status == job.status))
            .filter(|job| query.after.is_none_or(|after| job.id < after));
        let items: Vec<_> = selected.by_ref().take(limit).cloned().collect();
        let next = items.last().map(|job| job.id).filter(|_| selected.next().is_some());
        JobPage { items, next }
    }

    /// The jobs with ends that are to be told now, the longest due first.
    fn untold(&mut self, now: Millis) -> Vec<(Millis, &mut Row)> {
        let live = self.jobs.values_mut().filter(|row| row.removed_at > now);
        let due = live.filter_map(|row| Some((row.untold?.0, row)).filter(|(at, _)| *at <= now));
        let mut due: Vec<_> = due.collect();
        due.sort_by_key(|(at, row)| (*at, row.job.id));
        due
    }

    fn depth(&self, now: Millis) -> Vec<JobDepth> {
        let mut depths = BTreeMap::<UpstreamName, (u64, u64)>::new();
        for row in self.live(now) {
            match row.job.status {
                JobStatus::Queued => depths.entry(row.job.upstream.clone()).or_default().0 += 1,
                JobStatus::Running => depths.entry(row.job.upstream.clone()).or_default().1 += 1,
                _ => {}
            }
        }
        let depth = |(upstream, (queued, running))| JobDepth { upstream, queued, running };
        depths.into_iter().map(depth).collect()
    }
}

impl Row {
    fn prolong(&mut self, steady: std::time::Instant) {
        self.claimed_until = Some(steady + CLAIM_LIFE);
    }

    fn waits_with(&self, job: &Job) -> bool {
        self.job.status == JobStatus::Queued && self.job.upstream == job.upstream
    }

    fn bytes(&self) -> u64 {
        bytes_of(&self.input) + bytes_of(&self.result)
    }

    /// What is kept, and told, follows from where the job is now.
    fn tidy(&mut self) {
        self.untold = life::tell_at(&self.job).map(|at| (at, 0));
        if !life::keeps_input(&self.job) {
            self.input = None;
        }
        if let Some(at) = self.job.expires_at {
            self.removed_at = at;
        }
    }
}

fn bytes_of(body: &Option<Bytes>) -> u64 {
    body.as_ref().map_or(0, |body| body.len() as u64)
}

#[async_trait]
impl OperationStore for WorkInMemory {
    async fn put(&self, operation: &Operation) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.last_sequence += 1;
        let sequence = state.last_sequence;
        state.operations.insert(operation.id, (sequence, operation.clone()));
        let minted = life::is_minted(operation);
        let most = life::most_of(minted);
        // as long as there are no more in all, there is nothing to count
        if state.operations.len() as u64 > most {
            let alike = || state.operations.iter().filter(|(_, (_, other))| life::is_minted(other) == minted);
            let oldest = alike().min_by_key(|(_, (sequence, _))| *sequence).map(|(id, _)| *id);
            if let Some(oldest) = oldest.filter(|_| alike().count() as u64 > most) {
                state.operations.remove(&oldest);
            }
        }
        Ok(())
    }

    async fn operation(&self, id: &OperationId) -> Result<Option<Operation>, StoreError> {
        Ok(self.lock().operation(id, self.clock.now()).cloned())
    }

    async fn settle(&self, id: &OperationId) -> Result<bool, StoreError> {
        let mut state = self.lock();
        let operation = state.operation(id, self.clock.now());
        Ok(operation.is_some_and(life::settle))
    }

    async fn remove(&self, id: &OperationId) -> Result<(), StoreError> {
        self.lock().operations.remove(id);
        Ok(())
    }

    async fn due(&self, now: Millis, again_at: Millis, limit: usize) -> Result<Vec<Operation>, StoreError> {
        let mut state = self.lock();
        let today = self.clock.now();
        let mut due: Vec<_> = state
            .operations
            .values_mut()
            .map(|(_, operation)| operation)
            .filter(|operation| operation.expires_at > today)
            .filter_map(|operation| Some((life::next_look_at(operation)?, operation)))
            .filter(|(at, _)| *at <= now)
            .collect();
        due.sort_by_key(|(at, operation)| (*at, operation.id));
        due.truncate(limit);
        for (_, operation) in &mut due {
            life::look(operation, again_at);
        }
        Ok(due.into_iter().map(|(_, operation)| operation.clone()).collect())
    }

    async fn forget_pending(&self, which: &Selector) -> Result<(), StoreError> {
        let mut state = self.lock();
        for (_, operation) in state.operations.values_mut() {
            if life::may_match(operation, which) {
                life::settle(operation);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl JobStore for WorkInMemory {
    async fn submit(
        &self,
        job: Job,
        input: Bytes,
        result: Option<Bytes>,
        bounds: &JobBounds,
    ) -> Result<Submitted, StoreError> {
        let submitted = self.lock().submit(job, (input, result), bounds, self.clock.now());
        self.news.notify_waiters();
        Ok(submitted)
    }

    async fn job(&self, id: &JobId) -> Result<Option<Job>, StoreError> {
        Ok(self.lock().job(id, self.clock.now()).map(|row| row.job.clone()))
    }

    async fn input(&self, id: &JobId) -> Result<Option<Bytes>, StoreError> {
        Ok(self.lock().job(id, self.clock.now()).and_then(|row| row.input.clone()))
    }

    async fn result(&self, id: &JobId) -> Result<Option<Bytes>, StoreError> {
        Ok(self.lock().job(id, self.clock.now()).and_then(|row| row.result.clone()))
    }

    async fn list(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        Ok(self.lock().list(query, self.clock.now()))
    }

    async fn depth(&self) -> Result<Vec<JobDepth>, StoreError> {
        Ok(self.lock().depth(self.clock.now()))
    }

    async fn stored_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.lock().live(self.clock.now()).map(Row::bytes).sum())
    }

    async fn cancel(&self, id: &JobId, expires_at: Millis) -> Result<Option<Job>, StoreError> {
        let mut state = self.lock();
        let now = self.clock.now();
        let Some(row) = state.job(id, now) else { return Ok(None) };
        if life::cancel(&mut row.job, now, expires_at) {
            row.given_up_until = Some(expires_at);
            row.tidy();
        }
        Ok(Some(row.job.clone()))
    }

    async fn retry(&self, id: &JobId) -> Result<Option<Job>, StoreError> {
        let mut state = self.lock();
        let Some(row) = state.job(id, self.clock.now()) else { return Ok(None) };
        if life::retry(&mut row.job) {
            (row.result, row.given_up_until, row.untold) = (None, None, None);
            self.news.notify_waiters();
        }
        Ok(Some(row.job.clone()))
    }

    async fn claim(&self, upstream: &UpstreamName, wait: Duration) -> Result<Option<Claim>, StoreError> {
        let end = Instant::now() + wait;
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // What comes between the look and the wait counts too.
            news.as_mut().enable();
            if let Some(claim) = self.lock().claim(upstream, &*self.clock) {
                return Ok(Some(claim));
            }
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            // Whether it was news or time, a look tells.
            let _ = tokio::time::timeout(rest.min(LOOK_AGAIN), news).await;
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<Held, StoreError> {
        let mut state = self.lock();
        let now = self.clock.now();
        let Some(row) = state.held(claim, now) else { return Ok(Held::No) };
        row.prolong(self.clock.steady());
        Ok(if row.job.cancel { Held::Cancelled } else { Held::Yes })
    }

    async fn sending(&self, claim: &Claim) -> Result<bool, StoreError> {
        let mut state = self.lock();
        let now = self.clock.now();
        let Some(row) = state.held(claim, now).filter(|row| !row.job.cancel) else { return Ok(false) };
        life::send(&mut row.job);
        row.prolong(self.clock.steady());
        Ok(true)
    }

    async fn settle_job(&self, claim: &Claim, end: JobEnd) -> Result<bool, StoreError> {
        life::check(&end)?;
        let mut state = self.lock();
        let now = self.clock.now();
        let Some(row) = state.held(claim, now) else { return Ok(false) };
        life::end(&mut row.job, &end, now, row.given_up_until);
        if let JobEnd::Final { result: Some((_, body)), .. } = end {
            row.result = Some(body);
        }
        row.tidy();
        self.news.notify_waiters();
        Ok(true)
    }

    async fn tenants_to_tell(&self) -> Result<Vec<TenantId>, StoreError> {
        let mut state = self.lock();
        let mut first = BTreeMap::new();
        for (at, row) in state.untold(self.clock.now()) {
            first.entry(row.job.tenant.clone()).or_insert(at);
        }
        let mut tenants: Vec<_> = first.into_iter().collect();
        tenants.sort_by_key(|(_, at)| *at);
        Ok(tenants.into_iter().map(|(tenant, _)| tenant).collect())
    }

    async fn to_tell(
        &self,
        tenant: &TenantId,
        again_at: Millis,
        limit: usize,
    ) -> Result<Vec<Untold>, StoreError> {
        let mut state = self.lock();
        let due = state.untold(self.clock.now()).into_iter().map(|(_, row)| row);
        let hand_out = |row: &mut Row| {
            let calls = row.untold.map_or(0, |(_, calls)| calls).saturating_add(1);
            row.untold = Some((again_at, calls));
            Untold { job: row.job.clone(), calls, token: life::telling(&row.job, calls) }
        };
        Ok(due.filter(|row| row.job.tenant == *tenant).take(limit).map(hand_out).collect())
    }

    async fn told(&self, untold: &Untold, again_at: Option<Millis>) -> Result<bool, StoreError> {
        let mut state = self.lock();
        let Some(row) = state.job(&untold.job.id, self.clock.now()) else { return Ok(false) };
        let calls = row.untold.map(|(_, calls)| calls);
        let Some(calls) = calls.filter(|calls| life::telling(&row.job, *calls) == untold.token) else {
            return Ok(false);
        };
        row.untold = again_at.map(|at| (at, calls));
        Ok(true)
    }
}
