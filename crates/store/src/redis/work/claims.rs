//! Workers take jobs, keep them, and are done with them.

use std::sync::Arc;
use std::time::Duration;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::{Job, JobId, JobStatus};
use nevertwice_domain::tenant::UpstreamName;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::Shared;
use super::super::operations::{corrupt, number, text};
use super::DECISIONS;
use super::rows::{Change, Outcome, Place, Row, Written, undecided};
use crate::work::{CLAIM_LIFE, Claim, Held, JobEnd, life};
use crate::{StoreError, StoreErrorKind};

/// How long a waiter goes without a look, should a message have been lost or a claim have lapsed.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The longest that anybody waits.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How many entries that stand for no job are passed over in one look.
const PASSED_OVER: u32 = 100;

/// What a look at the stream gave.
enum Found {
    Job(Box<Taken>),
    /// Nothing; it is known when the next one that waits is due.
    Nothing(Option<Millis>),
}

/// A job that was taken for somebody who may have gone away meanwhile: then it goes back.
struct Taken {
    shared: Arc<Shared>,
    claim: Option<Claim>,
}

impl Taken {
    fn keep(mut self) -> Option<Claim> {
        self.claim.take()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // one that cannot be given back is handed out again when the claim has lapsed
        if let Some(claim) = self.claim.take()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            let shared = Arc::clone(&self.shared);
            self.shared.tasks.spawn(async move {
                if let Err(error) = shared.give_back(&claim).await {
                    tracing::debug!(%error, "a job that nobody took could not be given back");
                }
            });
        }
    }
}

impl Shared {
    pub(super) async fn claim(
        self: &Arc<Self>,
        upstream: &UpstreamName,
        wait: Duration,
    ) -> Result<Option<Claim>, StoreError> {
        let end = Instant::now() + wait.min(LONGEST_WAIT);
        let door = self.work.door(upstream);
        loop {
            let news = door.notified();
            tokio::pin!(news);
            // what comes between the look and the wait counts too
            news.as_mut().enable();
            let next = match self.look_for_job(upstream).await? {
                Found::Job(taken) => return Ok(taken.keep()),
                Found::Nothing(next) => next,
            };
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            let until_next = next.map(|at| Duration::from_millis(at.since_ms(self.now()).max(1)));
            let pause = rest.min(LOOK_AGAIN).min(until_next.unwrap_or(LOOK_AGAIN));
            // whether it was news or time, a look tells
            let _ = tokio::time::timeout(pause, news).await;
            self.check_open()?;
        }
    }

    /// Looks once, in a task of its own: who goes away in the middle leaves nothing half done.
    async fn look_for_job(self: &Arc<Self>, upstream: &UpstreamName) -> Result<Found, StoreError> {
        let (tell, told) = oneshot::channel();
        let (shared, upstream) = (Arc::clone(self), upstream.clone());
        self.tasks.spawn(async move {
            let found = shared.take(&upstream).await;
            // nobody listens any more: what was taken goes back as it is dropped
            let _ = tell.send(found);
        });
        told.await.unwrap_or_else(|_| Err(StoreErrorKind::Io.error("the look for a job was given up")))
    }

    async fn take(self: &Arc<Self>, upstream: &UpstreamName) -> Result<Found, StoreError> {
        let life = u64::try_from(CLAIM_LIFE.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..PASSED_OVER {
            let mut call = self.scripts.job_next.key(self.keys.stream(upstream));
            call.key(self.keys.later(upstream)).arg(self.now().0).arg(life);
            let answer: Vec<Vec<u8>> = self.link.call(&call, self.budget(0)).await?;
            match &answer[..] {
                [none, next] if none == b"none" => {
                    return Ok(Found::Nothing(
                        number(next).and_then(|at| i64::try_from(at).ok()).map(Millis),
                    ));
                }
                [again] if again == b"again" => {}
                [job, entry, id] if job == b"job" => {
                    let entry = text(entry).ok_or_else(|| corrupt("an entry of a stream"))?;
                    let Some(id) = text(id).and_then(|id| id.parse().ok()) else {
                        return Err(corrupt("a job in a stream"));
                    };
                    if let Some(claim) = self.hand_out(upstream, &id, entry).await? {
                        let taken = Taken { shared: Arc::clone(self), claim: Some(claim) };
                        return Ok(Found::Job(Box::new(taken)));
                    }
                }
                _ => return Err(corrupt("a stream of jobs")),
            }
        }
        Ok(Found::Nothing(None))
    }

    /// Makes a claim on a job that the stream has handed out; `None` when there is none to be made.
    async fn hand_out(
        &self,
        upstream: &UpstreamName,
        id: &JobId,
        entry: &str,
    ) -> Result<Option<Claim>, StoreError> {
        let mut before = None;
        for _ in 0..DECISIONS {
            let row = match self.row(id).await {
                Ok(row) => row,
                // it comes again when the claim of nobody has lapsed: others may be able to read it, and it must not hold others up
                Err(error) if matches!(error.kind, StoreErrorKind::Corrupt | StoreErrorKind::Newer) => {
                    if self.link.first_in_a_while("job") {
                        tracing::error!(%id, %error, "a job cannot be read");
                    }
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            let Some(mut row) = row.filter(|row| row.entry == entry) else {
                self.skip(upstream, id, entry).await?;
                return Ok(None);
            };
            if !row.is_live(self.now()) {
                self.drop_job(&Row::end_member(&row.job), &row.result).await?;
                return Ok(None);
            }
            // somebody else was handed it meanwhile, or who let the claim lapse is back
            let seen = (row.token.clone(), Job { cancel: false, ..row.job.clone() });
            if *before.get_or_insert_with(|| seen.clone()) != seen {
                return Ok(None);
            }
            life::hand_out(&mut row.job, self.now());
            let token = self.leases.token();
            let change = Change { row, token, place: Place::Hold, outcome: Outcome::Same };
            if self.write(&change).await? == Written::Done {
                return Ok(Some(Claim { job: change.row.job, token: change.token }));
            }
        }
        Err(undecided())
    }

    async fn skip(&self, upstream: &UpstreamName, id: &JobId, entry: &str) -> Result<(), StoreError> {
        let mut call = self.scripts.job_skip.key(self.keys.job(id));
        call.key(self.keys.stream(upstream)).key(self.keys.later(upstream)).arg(entry);
        let _: u64 = self.link.call(&call, self.budget(0)).await?;
        Ok(())
    }

    /// The job of a claim, as long as that holds.
    async fn held(&self, claim: &Claim) -> Result<Option<Row>, StoreError> {
        let row = self.live_row(&claim.job.id).await?;
        Ok(row.filter(|row| row.job.status == JobStatus::Running && row.token == claim.token))
    }

    async fn give_back(&self, claim: &Claim) -> Result<(), StoreError> {
        for _ in 0..DECISIONS {
            let Some(mut row) = self.held(claim).await? else { return Ok(()) };
            // `sent` stays as the worker before left it
            row.job.status = JobStatus::Queued;
            let place = Place::Wait(row.job.created_at);
            let change = Change { row, token: String::new(), place, outcome: Outcome::Same };
            if self.write(&change).await? == Written::Done {
                return Ok(());
            }
        }
        Err(undecided())
    }

    pub(super) async fn renew(&self, claim: &Claim) -> Result<Held, StoreError> {
        let mut call = self.scripts.job_renew.key(self.keys.job(&claim.job.id));
        call.key(self.keys.stream(&claim.job.upstream)).arg(&claim.token).arg(self.now().0);
        let held: u64 = self.link.call(&call, self.budget(0)).await?;
        Ok(match held {
            0 => Held::No,
            2 => Held::Cancelled,
            _ => Held::Yes,
        })
    }

    pub(super) async fn sending(&self, claim: &Claim) -> Result<bool, StoreError> {
        for _ in 0..DECISIONS {
            let held = self.held(claim).await?.filter(|row| !row.job.cancel);
            let Some(mut row) = held else { return Ok(false) };
            life::send(&mut row.job);
            let token = row.token.clone();
            let change = Change { row, token, place: Place::Hold, outcome: Outcome::Same };
            if self.write(&change).await? == Written::Done {
                return Ok(true);
            }
        }
        Err(undecided())
    }

    pub(super) async fn settle_job(&self, claim: &Claim, end: JobEnd) -> Result<bool, StoreError> {
        life::check(&end)?;
        let body = match &end {
            JobEnd::Final { result: Some((_, body)), .. } => Some(body),
            _ => None,
        };
        let mut outcome = Outcome::Same;
        for _ in 0..DECISIONS {
            let Some(mut row) = self.held(claim).await? else {
                if let Outcome::Brought(name, _) = &outcome {
                    self.drop_body(&self.keys.job_result(name)).await;
                }
                return Ok(false);
            };
            if let (Some(body), Outcome::Same) = (body, &outcome) {
                let name = self.leases.token();
                self.put_body(&self.keys.job_result(&name), body).await?;
                outcome = Outcome::Brought(name, body.len());
            }
            let given_up_until = row.given_up_until;
            life::end(&mut row.job, &end, self.now(), given_up_until);
            let place = match row.job.not_before {
                _ if row.job.status.is_final() => Place::Over,
                not_before => Place::Wait(not_before.unwrap_or(row.job.created_at)),
            };
            let change = Change { row, token: String::new(), place, outcome: outcome.clone() };
            match self.write(&change).await? {
                Written::Done => return Ok(true),
                Written::Changed => {}
                Written::Lost => return Err(Self::lost()),
            }
        }
        Err(undecided())
    }
}
