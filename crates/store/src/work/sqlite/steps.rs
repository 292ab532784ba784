//! What the writer does to jobs, within a transaction.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobId, JobStatus};
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use rusqlite::{Connection, OptionalExtension, Params};

use super::counts::{Counts, Shares};
use super::schema::{self, JOB_COLUMNS, SET_ASIDE, StoredJob};
use crate::work::life::{self, Taken};
use crate::work::{CLAIM_LIFE, Claim, Held, JobBounds, JobEnd, Submitted};

/// How many rows one sweep removes at most.
const SWEEP_ROWS: i64 = 1000;

/// How many bytes of bodies one sweep removes, and one body more.
const SWEEP_BYTES: u64 = 64 * 1024 * 1024;

/// A transaction under way.
pub(super) struct Steps<'a> {
    pub(super) connection: &'a Connection,
    pub(super) counts: &'a mut Counts,
    pub(super) shares: &'a mut Shares,
    /// Of whom a job may be due now; one for each job.
    pub(super) news: &'a mut Vec<UpstreamName>,
    pub(super) now: Millis,
    /// Milliseconds of the steady clock since the file was opened: claims lapse by it, whatever is done to the time.
    pub(super) steady_ms: i64,
}

/// What came of a claim.
pub(super) enum Next {
    Claimed(Box<Claim>),
    /// None is due before this time, as far as is known.
    NotBefore(Option<Millis>),
}

impl Steps<'_> {
    pub(super) fn submit(
        &mut self,
        job: &Job,
        input: &Bytes,
        result: Option<&Bytes>,
        bounds: &JobBounds,
    ) -> rusqlite::Result<Submitted> {
        let mut taken_over = None;
        if let Some(key) = job.key
            && let Some(present) = self.one("idempotency_key = ?", [key.as_bytes()])?
        {
            if present.removed_at > self.now
                && let Some(answer) = life::answer_to_key(&present.job, job)
            {
                return Ok(answer);
            }
            taken_over = Some(present);
        }
        let mut job = job.clone();
        life::begin(&mut job, bounds);
        let input = life::keeps_input(&job).then_some(input);
        let bytes = [input, result].into_iter().flatten().map(|body| body.len() as u64).sum();
        if let Some(full) = life::full(&job, bytes, bounds, &self.taken(&job)) {
            return Ok(Submitted::Full(full));
        }
        if let Some(mut present) = taken_over {
            present.key = None;
            present.insert(self.connection)?;
        }
        let stored = StoredJob {
            sequence: self.next_sequence("jobs")?,
            removed_at: bounds.expires_at,
            given_up_until: None,
            claims: 0,
            claimed_until: i64::MIN,
            key: job.key,
            job,
        };
        if let Some(input) = input {
            self.keep_body("inputs", &stored, input)?;
        }
        if let Some(result) = result {
            self.keep_body("results", &stored, result)?;
        }
        self.put(&stored, None)?;
        Ok(Submitted::New(stored.job))
    }

    fn taken(&self, job: &Job) -> Taken {
        let share = self.shares.of(&job.tenant);
        Taken {
            queued: self.counts.queued(&job.upstream),
            tenant_queued: share.queued(&job.upstream),
            bytes: self.counts.bytes,
            tenant_bytes: share.bytes,
        }
    }

    pub(super) fn cancel(&mut self, id: &JobId, expires_at: Millis) -> rusqlite::Result<Option<Job>> {
        let Some(mut stored) = self.live(id)? else { return Ok(None) };
        let before = stored.job.clone();
        if life::cancel(&mut stored.job, self.now, expires_at) {
            stored.given_up_until = Some(expires_at);
            self.put(&stored, Some(&before))?;
        }
        Ok(Some(stored.job))
    }

    pub(super) fn retry(&mut self, id: &JobId) -> rusqlite::Result<Option<Job>> {
        let Some(mut stored) = self.live(id)? else { return Ok(None) };
        let before = stored.job.clone();
        if life::retry(&mut stored.job) {
            stored.given_up_until = None;
            self.drop_body("results", stored.sequence, &stored.job.tenant)?;
            self.put(&stored, Some(&before))?;
        }
        Ok(Some(stored.job))
    }

    pub(super) fn claim(&mut self, upstream: &UpstreamName) -> rusqlite::Result<Next> {
        let Some(mut stored) = self.next(upstream)? else {
            let next = "SELECT not_before FROM jobs WHERE status = 0 AND upstream = ? AND not_before > ? \
                        ORDER BY not_before LIMIT 1";
            let mut next = self.connection.prepare_cached(next)?;
            let next = next.query_row((upstream.as_str(), self.now.0), |row| row.get(0)).optional()?;
            return Ok(Next::NotBefore(next.map(Millis)));
        };
        let before = stored.job.clone();
        life::hand_out(&mut stored.job, self.now);
        stored.claims += 1;
        self.prolong(&mut stored);
        self.put(&stored, Some(&before))?;
        Ok(Next::Claimed(Box::new(Claim { job: stored.job, token: stored.claims.to_string() })))
    }

    /// Those whose workers died come first, then the one that waits longest: since it came, or since its next attempt is due.
    fn next(&mut self, upstream: &UpstreamName) -> rusqlite::Result<Option<StoredJob>> {
        let at = (upstream.as_str(), self.now.0, self.now.0);
        let lapsed =
            "status = 1 AND upstream = ?1 AND claimed_until <= ?2 AND removed_at > ?3 ORDER BY sequence";
        if let Some(lapsed) = self.first_sound(lapsed, (upstream.as_str(), self.steady_ms, self.now.0))? {
            return Ok(Some(lapsed));
        }
        let first =
            "status = 0 AND upstream = ?1 AND not_before IS NULL AND removed_at > ?2 ORDER BY sequence";
        let first = self.first_sound(first, (upstream.as_str(), self.now.0))?;
        let again = "status = 0 AND upstream = ?1 AND not_before <= ?2 AND removed_at > ?3 \
                     ORDER BY not_before, sequence";
        let again = self.first_sound(again, at)?;
        Ok(match (first, again) {
            (Some(first), Some(again)) if again.job.not_before < Some(first.job.created_at) => Some(again),
            (Some(first), _) => Some(first),
            (None, again) => again,
        })
    }

    /// The first job that verifies. One that does not is put out of the way, so that it stops nobody else.
    fn first_sound(
        &mut self,
        which: &str,
        values: impl Params + Clone,
    ) -> rusqlite::Result<Option<StoredJob>> {
        let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE {which} LIMIT 1");
        let connection = self.connection;
        let mut statement = connection.prepare_cached(&sql)?;
        loop {
            let found = statement
                .query_row(values.clone(), |row| Ok((row.get(0)?, StoredJob::decode(row)?)))
                .optional()?;
            match found {
                Some((_, Ok(stored))) => return Ok(Some(stored)),
                Some((sequence, Err(_))) => self.set_aside(sequence)?,
                None => return Ok(None),
            }
        }
    }

    pub(super) fn renew(&mut self, id: &JobId, token: &str) -> rusqlite::Result<Held> {
        let Some(mut stored) = self.held(id, token)? else { return Ok(Held::No) };
        self.prolong(&mut stored);
        stored.insert(self.connection)?;
        Ok(if stored.job.cancel { Held::Cancelled } else { Held::Yes })
    }

    pub(super) fn sending(&mut self, id: &JobId, token: &str) -> rusqlite::Result<bool> {
        let held = self.held(id, token)?.filter(|stored| !stored.job.cancel);
        let Some(mut stored) = held else { return Ok(false) };
        life::send(&mut stored.job);
        self.prolong(&mut stored);
        stored.insert(self.connection)?;
        Ok(true)
    }

    pub(super) fn end(&mut self, id: &JobId, token: &str, end: &JobEnd) -> rusqlite::Result<bool> {
        let Some(mut stored) = self.held(id, token)? else { return Ok(false) };
        let before = stored.job.clone();
        life::end(&mut stored.job, end, self.now, stored.given_up_until);
        if let JobEnd::Final { result: Some((_, body)), .. } = end {
            self.keep_body("results", &stored, body)?;
        }
        self.put(&stored, Some(&before))?;
        Ok(true)
    }

    /// Nobody learned of this claim: the job waits as it did, or comes next if a worker before had sent it.
    pub(super) fn give_back(&mut self, id: &JobId, token: &str) -> rusqlite::Result<()> {
        let Some(mut stored) = self.held(id, token)? else { return Ok(()) };
        let before = stored.job.clone();
        stored.claimed_until = i64::MIN;
        if !stored.job.sent {
            stored.job.status = JobStatus::Queued;
        }
        self.put(&stored, Some(&before))?;
        self.news.push(stored.job.upstream);
        Ok(())
    }

    /// Removes some of the jobs whose time is over.
    pub(super) fn sweep_jobs(&mut self) -> rusqlite::Result<()> {
        let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE removed_at <= ? ORDER BY removed_at LIMIT ?");
        let connection = self.connection;
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query((self.now.0, SWEEP_ROWS))?;
        let (mut gone, mut damaged, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(row) = rows.next()? {
            match StoredJob::decode(row)? {
                Ok(stored) => {
                    bytes += stored.weight();
                    self.count(&stored.job, -1);
                    gone.push((stored.sequence, stored.job.tenant));
                }
                // Who knows whether its time is over.
                Err(_) => damaged.push(row.get(0)?),
            }
            if bytes > SWEEP_BYTES {
                break;
            }
        }
        drop(rows);
        for (sequence, tenant) in gone {
            self.drop_body("inputs", sequence, &tenant)?;
            self.drop_body("results", sequence, &tenant)?;
            self.drop_untold(sequence)?;
            self.connection.prepare_cached("DELETE FROM jobs WHERE sequence = ?")?.execute([sequence])?;
        }
        damaged.into_iter().try_for_each(|sequence| self.set_aside(sequence))
    }

    /// Writes a job; `before` = as it was.
    fn put(&mut self, stored: &StoredJob, before: Option<&Job>) -> rusqlite::Result<()> {
        let removed_at = stored.job.expires_at.unwrap_or(stored.removed_at);
        StoredJob { removed_at, ..stored.clone() }.insert(self.connection)?;
        if let Some(before) = before {
            self.count(before, -1);
        }
        self.count(&stored.job, 1);
        self.note_end(stored, before)?;
        if !life::keeps_input(&stored.job) {
            self.drop_body("inputs", stored.sequence, &stored.job.tenant)?;
        }
        if stored.job.status == JobStatus::Queued {
            self.news.push(stored.job.upstream.clone());
        }
        Ok(())
    }

    fn prolong(&self, stored: &mut StoredJob) {
        stored.claimed_until = self.steady_ms.saturating_add(CLAIM_LIFE.as_millis() as i64);
    }

    /// Counts a job, by `1` in and by `-1` out.
    fn count(&mut self, job: &Job, by: i64) {
        self.count_of(&job.tenant, &job.upstream, job.status, by);
    }

    fn count_of(&mut self, tenant: &TenantId, upstream: &UpstreamName, status: JobStatus, by: i64) {
        self.counts.add(upstream, status, by);
        if status == JobStatus::Queued {
            self.shares.add_queued(tenant, upstream, by);
        }
    }

    fn count_bytes(&mut self, tenant: &TenantId, by: i64) {
        self.counts.bytes = self.counts.bytes.saturating_add_signed(by);
        self.shares.add_bytes(tenant, by);
    }

    /// Keeps a body of a job that has none there.
    fn keep_body(&mut self, table: &str, of: &StoredJob, body: &Bytes) -> rusqlite::Result<()> {
        schema::insert_body(self.connection, table, of.sequence, body)?;
        self.count_bytes(&of.job.tenant, i64::try_from(body.len()).unwrap_or(i64::MAX));
        Ok(())
    }

    fn drop_body(&mut self, table: &str, sequence: i64, tenant: &TenantId) -> rusqlite::Result<()> {
        let Some(length) = schema::body_length(self.connection, table, sequence)? else { return Ok(()) };
        let sql = format!("DELETE FROM {table} WHERE sequence = ?");
        self.connection.prepare_cached(&sql)?.execute([sequence])?;
        self.count_bytes(tenant, length.saturating_neg());
        Ok(())
    }

    pub(super) fn live(&self, id: &JobId) -> rusqlite::Result<Option<StoredJob>> {
        Ok(self.one("id = ?", [id.to_string()])?.filter(|stored| stored.removed_at > self.now))
    }

    /// The job, as long as the claim on it holds.
    fn held(&self, id: &JobId, token: &str) -> rusqlite::Result<Option<StoredJob>> {
        let held = |stored: &StoredJob| {
            stored.job.status == JobStatus::Running && stored.claims.to_string() == token
        };
        Ok(self.live(id)?.filter(held))
    }

    fn one(&self, which: &str, values: impl Params) -> rusqlite::Result<Option<StoredJob>> {
        let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE {which} LIMIT 1");
        let found = self.connection.prepare_cached(&sql)?.query_row(values, StoredJob::decode).optional()?;
        found.map(|stored| stored.map_err(|_| schema::malformed())).transpose()
    }

    /// The place after all that are there.
    pub(super) fn next_sequence(&self, table: &str) -> rusqlite::Result<i64> {
        let sql = format!("SELECT coalesce(max(sequence), 0) + 1 FROM {table}");
        self.connection.prepare_cached(&sql)?.query_row([], |row| row.get(0))
    }

    /// A row that does not verify stays where it is for people to see, and is in nobody's way. It counts no more, as far as can be
    /// told what it counted for; its bodies, which stay with it, do.
    fn set_aside(&mut self, sequence: i64) -> rusqlite::Result<()> {
        tracing::error!(
            sequence,
            "a stored job is damaged and is not handed out: restore work.sqlite3 from a backup"
        );
        let counted = "SELECT tenant, upstream, status FROM jobs WHERE sequence = ?";
        let counted = self.connection.prepare_cached(counted)?.query_row([sequence], |row| {
            let tenant = TenantId::new(row.get_ref(0)?.as_str()?).ok();
            Ok((tenant.zip(UpstreamName::new(row.get_ref(1)?.as_str()?).ok()), row.get::<_, i64>(2)?))
        });
        if let (Some((tenant, upstream)), status) = counted?
            && let Some(status) = JobStatus::ALL.iter().find(|s| schema::number_of(**s) == status)
        {
            self.count_of(&tenant, &upstream, *status, -1);
        }
        self.connection
            .prepare_cached("UPDATE jobs SET status = ?, removed_at = ? WHERE sequence = ?")?
            .execute((SET_ASIDE, i64::MAX, sequence))
            .map(|_| ())
    }
}
