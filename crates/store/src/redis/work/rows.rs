//! A job as it stands in Redis, and the one way to change it.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobId, JobStatus};
use redis::pipe;

use super::super::Shared;
use super::super::event::Event;
use super::super::operations::{corrupt, text};
use super::{DECISIONS, stored};
use crate::work::life;
use crate::{StoreError, StoreErrorKind};

/// The fields of a row, in the order in which they are read.
pub(super) const FIELDS: [&str; 7] = ["v", "r", "t", "e", "b", "g", "o"];

/// A job, and what the store has to know of it beside.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) job: Job,
    /// Another one with each change.
    pub(super) revision: String,
    /// Of the claim; empty when nobody has it.
    pub(super) token: String,
    /// Its entry in the stream; empty when it is at its end.
    pub(super) entry: String,
    pub(super) removed_at: Millis,
    /// When it is removed, if it was given up while it ran.
    pub(super) given_up_until: Option<Millis>,
    /// The name of its result's body; empty when there is none.
    pub(super) result: String,
}

impl Row {
    /// From its fields; `None` when there is no job.
    pub(super) fn read(id: &JobId, fields: &[Option<Vec<u8>>]) -> Result<Option<Self>, StoreError> {
        let [Some(value), rest @ ..] = fields else { return Ok(None) };
        let job: Job = stored::decode(value)?;
        if job.id != *id {
            return Err(corrupt("another job"));
        }
        let field = |at: usize| rest.get(at).and_then(Option::as_deref).and_then(text).unwrap_or_default();
        let time = |at: usize| field(at).parse().ok().map(Millis);
        Ok(Some(Self {
            job,
            revision: field(0).to_owned(),
            token: field(1).to_owned(),
            entry: field(2).to_owned(),
            removed_at: time(3).ok_or_else(|| corrupt("a job"))?,
            given_up_until: time(4),
            result: field(5).to_owned(),
        }))
    }

    pub(super) fn is_live(&self, now: Millis) -> bool {
        self.removed_at > now
    }

    /// What the list of ends has of it.
    pub(super) fn end_member(job: &Job) -> String {
        format!("{} {} {}", job.id, job.tenant, job.upstream)
    }
}

/// What becomes of a job's place in its stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// It keeps it.
    Stay,
    /// It keeps it, and the claim begins anew.
    Hold,
    /// It is at its end.
    Over,
    /// It waits until then.
    Wait(Millis),
    /// It comes anew.
    New,
}

/// What becomes of the body of a job's result.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Same,
    /// There is none any more.
    None,
    /// The one with this name and this length, which was brought.
    Brought(String, usize),
}

/// A change: the row as it is to be, but for what is decided here.
pub(super) struct Change {
    pub(super) row: Row,
    /// Of the claim from now on.
    pub(super) token: String,
    pub(super) place: Place,
    pub(super) outcome: Outcome,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Done,
    /// The job has changed since it was read.
    Changed,
    /// The body that was brought is gone.
    Lost,
}

pub(super) fn undecided() -> StoreError {
    StoreErrorKind::Busy.error(format!("a job changed {DECISIONS} times while it was to be written"))
}

impl Shared {
    /// The job, whether or not its end has come.
    pub(super) async fn row(&self, id: &JobId) -> Result<Option<Row>, StoreError> {
        let mut get = pipe();
        get.cmd("HMGET").arg(self.keys.job(id)).arg(&FIELDS);
        let (fields,): (Vec<Option<Vec<u8>>>,) = self.link.ask(&get, self.budget(0)).await?;
        Row::read(id, &fields)
    }

    pub(super) async fn live_row(&self, id: &JobId) -> Result<Option<Row>, StoreError> {
        Ok(self.row(id).await?.filter(|row| row.is_live(self.now())))
    }

    /// Writes a change, if the job is still as it was read.
    pub(super) async fn write(&self, change: &Change) -> Result<Written, StoreError> {
        let Change { row, token, place, outcome } = change;
        let job = &row.job;
        let removed_at = job.expires_at.unwrap_or(row.removed_at);
        let (place, until) = match place {
            Place::Stay => ("stay", 0),
            Place::Hold => ("hold", 0),
            Place::Over => ("over", 0),
            Place::Wait(until) => ("wait", until.0),
            Place::New => ("new", 0),
        };
        let told = match (place, life::tell_at(job)) {
            ("over", Some(at)) => at.0.to_string(),
            ("new", _) => "never".to_owned(),
            _ => String::new(),
        };
        let (result, length) = match outcome {
            Outcome::Same => ("", String::new()),
            Outcome::None => (row.result.as_str(), "drop".to_owned()),
            Outcome::Brought(name, length) => (name.as_str(), length.to_string()),
        };
        let keys = &self.keys;
        let id = job.id.to_string();
        let value = stored::encode(job)?;
        let mut call = self.scripts.job_commit.key(keys.job(&job.id));
        call.key(keys.stream(&job.upstream))
            .key(keys.later(&job.upstream))
            .key(keys.job_input(&job.id))
            .key(keys.job_result(result))
            .key(keys.ends())
            .key(keys.jobs())
            .key(keys.tenant_jobs(&job.tenant))
            .key(keys.job_records())
            .key(keys.job_sums())
            .key(keys.untold())
            .key(keys.tenant_untold(&job.tenant))
            .arg(&row.revision)
            .arg(self.leases.token())
            .arg(&value)
            .arg(token)
            .arg(u8::from(job.cancel))
            .arg(row.given_up_until.map_or_else(String::new, |at| at.0.to_string()))
            .arg(place)
            .arg(until)
            .arg(id)
            .arg(job.created_at.0)
            .arg(removed_at.0)
            .arg(Row::end_member(job))
            .arg(self.life_until(removed_at))
            .arg(u8::from(!life::keeps_input(job)))
            .arg(length)
            .arg(result)
            .arg(keys.events())
            .arg(Event::Waiting(job.upstream.clone()).encode())
            .arg(u8::from(job.status == JobStatus::Queued))
            .arg(told)
            .arg(job.tenant.as_str());
        if let Some(key) = &job.key {
            call.key(keys.idempotency(key));
        }
        let answer: Vec<u8> = self.link.call(&call, self.budget(value.len())).await?;
        match answer.as_slice() {
            b"done" => Ok(Written::Done),
            b"changed" => Ok(Written::Changed),
            b"lost" => Ok(Written::Lost),
            _ => Err(corrupt("a change of a job")),
        }
    }
}
