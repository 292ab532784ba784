//! What the writer does to jobs, within a transaction.

use std::collections::BTreeMap;

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobId, JobStatus};
use nevertwice_domain::tenant::UpstreamName;
use rusqlite::{Connection, OptionalExtension, Params};

use super::schema::{self, JOB_COLUMNS, SET_ASIDE, StoredJob};
use crate::work::{CLAIM_LIFE, Claim, Held, JobBounds, JobEnd, Submitted, life};

/// How many rows one sweep removes at most.
const SWEEP_ROWS: i64 = 1000;

/// How many bytes of bodies one sweep removes, and one body more.
const SWEEP_BYTES: u64 = 64 * 1024 * 1024;

/// How many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Operations at upstreams.
    pub(super) operations: u64,
    /// Operations of the gateway's own making.
    pub(super) minted: u64,
    /// Of each upstream, the jobs that wait and those that run.
    pub(super) jobs: BTreeMap<UpstreamName, (u64, u64)>,
}

impl Counts {
    /// Counts a job, by `1` in and by `-1` out.
    pub(super) fn add(&mut self, job: &Job, by: i64) {
        self.add_to(&job.upstream, job.status, by);
    }

    fn add_to(&mut self, upstream: &UpstreamName, status: JobStatus, by: i64) {
        let counts = self.jobs.entry(upstream.clone()).or_default();
        match status {
            JobStatus::Queued => counts.0 = counts.0.saturating_add_signed(by),
            JobStatus::Running => counts.1 = counts.1.saturating_add_signed(by),
            _ => {}
        }
        if counts == &(0, 0) {
            self.jobs.remove(upstream);
        }
    }

    /// Operations of one kind.
    pub(super) fn of_kind(&mut self, minted: bool) -> &mut u64 {
        if minted { &mut self.minted } else { &mut self.operations }
    }

    pub(super) fn queued(&self, upstream: &UpstreamName) -> u64 {
        self.jobs.get(upstream).map_or(0, |(queued, _)| *queued)
    }
}

/// A transaction under way.
pub(super) struct Steps<'a> {
    pub(super) connection: &'a Connection,
    pub(super) counts: &'a mut Counts,
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
        if !job.status.is_final() && self.counts.queued(&job.upstream) >= bounds.max_queued {
            return Ok(Submitted::Full);
        }
        if let Some(mut present) = taken_over {
            present.key = None;
            present.insert(self.connection)?;
        }
        let mut job = job.clone();
        life::begin(&mut job, bounds);
        let stored = StoredJob {
            sequence: self.next_sequence("jobs")?,
            removed_at: bounds.expires_at,
            given_up_until: None,
            claims: 0,
            claimed_until: i64::MIN,
            key: job.key,
            job,
        };
        if life::keeps_input(&stored.job) {
            schema::insert_body(self.connection, "inputs", stored.sequence, input)?;
        }
        if let Some(result) = result {
            schema::insert_body(self.connection, "results", stored.sequence, result)?;
        }
        self.put(&stored, None)?;
        Ok(Submitted::New(stored.job))
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
            self.drop_body("results", stored.sequence)?;
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
            schema::insert_body(self.connection, "results", stored.sequence, body)?;
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
                    self.counts.add(&stored.job, -1);
                    gone.push(stored.sequence);
                }
                // Who knows whether its time is over.
                Err(_) => damaged.push(row.get(0)?),
            }
            if bytes > SWEEP_BYTES {
                break;
            }
        }
        drop(rows);
        for sequence in gone {
            self.drop_body("inputs", sequence)?;
            self.drop_body("results", sequence)?;
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
            self.counts.add(before, -1);
        }
        self.counts.add(&stored.job, 1);
        self.note_end(stored, before)?;
        if !life::keeps_input(&stored.job) {
            self.drop_body("inputs", stored.sequence)?;
        }
        if stored.job.status == JobStatus::Queued {
            self.news.push(stored.job.upstream.clone());
        }
        Ok(())
    }

    fn prolong(&self, stored: &mut StoredJob) {
        stored.claimed_until = self.steady_ms.saturating_add(CLAIM_LIFE.as_millis() as i64);
    }

    fn drop_body(&self, table: &str, sequence: i64) -> rusqlite::Result<()> {
        let sql = format!("DELETE FROM {table} WHERE sequence = ?");
        self.connection.prepare_cached(&sql)?.execute([sequence]).map(|_| ())
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
    /// told what it counted for.
    fn set_aside(&mut self, sequence: i64) -> rusqlite::Result<()> {
        tracing::error!(
            sequence,
            "a stored job is damaged and is not handed out: restore work.sqlite3 from a backup"
        );
        let counted = "SELECT upstream, status FROM jobs WHERE sequence = ?";
        let counted = self.connection.prepare_cached(counted)?.query_row([sequence], |row| {
            Ok((UpstreamName::new(row.get_ref(0)?.as_str()?).ok(), row.get::<_, i64>(1)?))
        });
        if let (Some(upstream), status) = counted?
            && let Some(status) = JobStatus::ALL.iter().find(|s| schema::number_of(**s) == status)
        {
            self.counts.add_to(&upstream, *status, -1);
        }
        self.connection
            .prepare_cached("UPDATE jobs SET status = ?, removed_at = ? WHERE sequence = ?")?
            .execute((SET_ASIDE, i64::MAX, sequence))
            .map(|_| ())
    }
}
