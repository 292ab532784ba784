//! A process that takes jobs in and works on them is killed at random points. Whatever it had acknowledged is there
//! afterwards; the store always opens; no job is half there; what was being worked on is handed out again at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use nevertwice_domain::clock::{Clock, Millis, SystemClock};
use nevertwice_domain::job::{Job, JobId, JobStatus};
use nevertwice_domain::operation::OperationId;
use nevertwice_store::work::sqlite::SqliteWork;
use nevertwice_store::work::suite::samples;
use nevertwice_store::work::{JobEnd, JobStore, OperationStore, Submitted};
use tokio::task::JoinSet;

use super::{Failed, all, bounds, claim, job};

/// Where the child finds the directory; set only for the child.
const DIRECTORY: &str = "NEVERTWICE_TEST_KILL_WORK_DIRECTORY";
/// From which number on the child submits.
const FIRST: &str = "NEVERTWICE_TEST_KILL_WORK_FIRST";
/// What precedes what the child acknowledges on its standard output.
const ACKNOWLEDGED: &str = "acknowledged ";
/// More than any child gets done.
const NUMBERS_PER_CHILD: u64 = 1_000_000;
/// So many kills share a directory, and so a file that was recovered again and again.
const KILLS_PER_DIRECTORY: u64 = 20;
/// How many tasks submit.
const SUBMITTERS: u64 = 4;

/// What a child said of a job.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    submitted: bool,
    sent: u32,
    done: bool,
}

#[derive(Default)]
struct Heard {
    jobs: BTreeMap<u64, Said>,
    operations: BTreeSet<u64>,
}

fn id(n: u64) -> JobId {
    sample(n).id
}

fn sample(n: u64) -> Job {
    samples::job(n, Millis(1_700_000_000_000))
}

/// The body that goes with a number: of any size up to 64 KiB, it follows from the number.
fn body(n: u64) -> Bytes {
    let mut rng = Rng::with_seed(n);
    let length = if rng.u8(..8) == 0 { rng.usize(..=65_536) } else { rng.usize(..1000) };
    std::iter::repeat_with(|| rng.u8(..)).take(length).collect::<Vec<_>>().into()
}

fn number(job: &Job) -> Result<u64, Failed> {
    let (_, number) = job.request.path.split_once("n=").ok_or("no number")?;
    Ok(number.parse()?)
}

fn open(directory: &Path) -> Result<SqliteWork, Failed> {
    Ok(SqliteWork::open(directory, Arc::new(SystemClock))?)
}

fn say(what: &str, n: u64) -> Result<(), Failed> {
    // When the parent is gone, so is the reason to go on.
    Ok(writeln!(std::io::stdout().lock(), "{ACKNOWLEDGED}{what} {n}")?)
}

async fn submit(store: Arc<SqliteWork>, numbers: impl Iterator<Item = u64>) -> Result<(), Failed> {
    for n in numbers {
        match store.submit(sample(n), body(n), None, &bounds(&SystemClock)).await? {
            Submitted::New(_) => say("submitted", n)?,
            other => return Err(format!("{n} was not taken in: {other:?}").into()),
        }
        let operation = samples::operation(n, SystemClock.now());
        store.put(&operation).await?;
        say("put", n)?;
    }
    Ok(())
}

async fn work(store: Arc<SqliteWork>) -> Result<(), Failed> {
    loop {
        let Some(claim) = store.claim(&samples::upstream("ocr"), Duration::from_secs(60)).await? else {
            return Err("nothing came".into());
        };
        let n = number(&claim.job)?;
        let end = |status, error, result| JobEnd::Final {
            status,
            error,
            result,
            at: SystemClock.now(),
            expires_at: bounds(&SystemClock).expires_at,
        };
        if claim.job.sent {
            store.settle_job(&claim, end(JobStatus::Failed, Some(samples::transient()), None)).await?;
            say("done", n)?;
            continue;
        }
        store.sending(&claim).await?;
        say("sent", n)?;
        if n % 7 == 0 && claim.job.attempts == 0 {
            let again = JobEnd::Again { error: Some(samples::transient()), not_before: SystemClock.now() };
            store.settle_job(&claim, again).await?;
            continue;
        }
        let result = Some((samples::facts(200, &body(n)), body(n)));
        store.settle_job(&claim, end(JobStatus::Succeeded, None, result)).await?;
        say("done", n)?;
    }
}

/// Not a test by itself: what the killed process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_works_until_it_is_killed() -> Result<(), Failed> {
    let (Ok(directory), Ok(first)) = (std::env::var(DIRECTORY), std::env::var(FIRST)) else { return Ok(()) };
    let first: u64 = first.parse()?;
    let store = Arc::new(open(Path::new(&directory))?);
    let mut tasks = JoinSet::new();
    for task in 0..SUBMITTERS {
        let numbers = (first + task..first + NUMBERS_PER_CHILD).step_by(SUBMITTERS as usize);
        tasks.spawn(submit(Arc::clone(&store), numbers));
    }
    for _ in 0..3 {
        tasks.spawn(work(Arc::clone(&store)));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Runs a child, kills it when `acknowledged` lines were heard and `then` has passed, and notes all that were.
fn run_and_kill(
    directory: &Path,
    first: u64,
    acknowledged: usize,
    then: Duration,
    heard: &mut Heard,
) -> Result<usize, Failed> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", "kill::child_works_until_it_is_killed", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("no standard output")?;
    let mut lines = BufReader::new(output).lines().map_while(Result::ok).filter_map(|line| {
        // The test runner begins a line of its own before the first one.
        let (_, said) = line.rsplit_once(ACKNOWLEDGED)?;
        let (what, number) = said.split_once(' ')?;
        Some((what.to_owned(), number.parse::<u64>().ok()?))
    });
    let mut said: Vec<_> = lines.by_ref().take(acknowledged).collect();
    thread::sleep(then);
    child.kill()?;
    said.extend(lines);
    let status = child.wait()?;
    if status.code().is_some() {
        return Err(format!("the child ended by itself: {status}").into());
    }
    for (what, n) in &said {
        let job = heard.jobs.entry(*n).or_default();
        match what.as_str() {
            "submitted" => job.submitted = true,
            "sent" => job.sent += 1,
            "done" => job.done = true,
            _ => drop(heard.operations.insert(*n)),
        }
    }
    Ok(said.len())
}

/// Every job is whole, whether it was acknowledged or not.
async fn check_whole(store: &SqliteWork, job: &Job) -> Result<(), Failed> {
    let n = number(job)?;
    let input = store.input(&job.id).await?;
    let result = store.result(&job.id).await?;
    let (has_input, has_result) = match job.status {
        JobStatus::Queued | JobStatus::Running | JobStatus::Failed => (true, false),
        JobStatus::Succeeded => (false, true),
        JobStatus::Cancelled => return Err("nobody cancelled it".into()),
    };
    if input != has_input.then(|| body(n)) || result != has_result.then(|| body(n)) {
        return Err(format!("{n} is {:?} and not what was handed over", job.status).into());
    }
    let request = (&job.request, &job.tenant, &job.upstream);
    let expected = sample(n);
    if request != (&expected.request, &expected.tenant, &expected.upstream) {
        return Err(format!("{n} is another job").into());
    }
    Ok(())
}

async fn check(directory: &Path, heard: &Heard) -> Result<(), Failed> {
    let store = open(directory)?;
    for (n, said) in &heard.jobs {
        if !said.submitted && said.sent == 0 && !said.done {
            continue;
        }
        let job = job(&store, &id(*n)).await?;
        let settled = matches!(job.status, JobStatus::Succeeded | JobStatus::Failed);
        if said.done && !settled {
            return Err(format!("{n} was done and is {:?}", job.status).into());
        }
        if job.attempts < said.sent {
            return Err(format!("{n} was sent {} times and says {}", said.sent, job.attempts).into());
        }
        // Sent, and neither the next attempt nor the end was written.
        if job.status == JobStatus::Running
            && job.sent != (job.attempts > u32::from(n % 7 == 0 && job.error.is_some()))
        {
            return Err(format!("{n} has {} attempts and sent is {}", job.attempts, job.sent).into());
        }
    }
    for n in &heard.operations {
        let id: OperationId = samples::operation_id(*n);
        store.operation(&id).await?.ok_or_else(|| format!("operation {n} is lost"))?;
    }
    let jobs = all(&store).await?;
    for job in &jobs {
        check_whole(&store, job).await?;
    }
    let mut running: BTreeMap<JobId, (bool, u32)> = jobs
        .iter()
        .filter(|job| job.status == JobStatus::Running)
        .map(|job| (job.id, (job.sent, job.attempts)))
        .collect();
    while !running.is_empty() {
        let claim = claim(&store).await?.ok_or("what ran is not handed out at once")?;
        let left = running.remove(&claim.job.id).ok_or("what ran comes first")?;
        if left != (claim.job.sent, claim.job.attempts) {
            return Err(format!("{left:?} became {:?}", claim.job).into());
        }
    }
    Ok(())
}

async fn kill_often(kills: u64, seed: u64) -> Result<(), Failed> {
    let mut rng = Rng::with_seed(seed);
    let mut directory = tempfile::tempdir()?;
    let mut heard = Heard::default();
    let mut total = 0;
    for kill in 0..kills {
        if kill % KILLS_PER_DIRECTORY == 0 {
            directory = tempfile::tempdir()?;
            heard = Heard::default();
        }
        // Also before the first submit: while it opens, or makes, the file.
        let after = if rng.u8(..6) == 0 { 0 } else { rng.usize(1..150) };
        let then = Duration::from_micros(rng.u64(..if after == 0 { 30_000 } else { 6000 }));
        total += run_and_kill(directory.path(), kill * NUMBERS_PER_CHILD, after, then, &mut heard)
            .map_err(|e| format!("seed {seed}, kill {kill}: {e}"))?;
        // Most of the time the next child finds what the kill has left, and not what a clean close did.
        if rng.u8(..3) == 0 || kill % KILLS_PER_DIRECTORY == KILLS_PER_DIRECTORY - 1 || kill == kills - 1 {
            check(directory.path(), &heard).await.map_err(|e| format!("seed {seed}, kill {kill}: {e}"))?;
        }
    }
    assert!(total as u64 > kills, "the children did get something done: {total}");
    Ok(())
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_in_20_kills() -> Result<(), Failed> {
    kill_often(20, 1).await
}

#[tokio::test]
async fn slow_nothing_acknowledged_is_lost_in_200_kills() -> Result<(), Failed> {
    kill_often(200, 2).await
}
