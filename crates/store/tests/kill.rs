//! A process that records verdicts is killed at random points. Whatever it had acknowledged is there afterwards, byte for
//! byte; the store always opens; no row is half there.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use nevertwice_domain::clock::SystemClock;
use nevertwice_domain::entry::Candidate;
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_store::sqlite::{SqliteOptions, SqliteStore};
use nevertwice_store::suite::samples;
use nevertwice_store::{Fence, ListQuery, Recorded, RefusalStore};
use tokio::task::JoinSet;

/// Where the child finds the directory; set only for the child.
const DIRECTORY: &str = "NEVERTWICE_TEST_KILL_DIRECTORY";
/// From which number on the child records.
const FIRST: &str = "NEVERTWICE_TEST_KILL_FIRST";
/// What precedes an acknowledged number on the child's standard output.
const ACKNOWLEDGED: &str = "acknowledged ";
/// More than any child gets done.
const NUMBERS_PER_CHILD: u64 = 1_000_000;
/// So many kills share a directory, and so a file that was recovered again and again.
const KILLS_PER_DIRECTORY: u64 = 20;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The `n`th candidate: its body, of any size up to the usual bound, follows from its number.
fn candidate(n: u64) -> Candidate {
    let mut rng = Rng::with_seed(n);
    let length = if rng.u8(..8) == 0 { rng.usize(..=65_536) } else { rng.usize(..1000) };
    let mut candidate = samples::candidate(n);
    candidate.entry.body = std::iter::repeat_with(|| rng.u8(..)).take(length).collect::<Vec<_>>().into();
    candidate.life = samples::flat(7 * 24 * 60 * 60 * 1000);
    candidate.max_entries = 1_000_000;
    candidate
}

fn open(directory: &Path) -> Result<SqliteStore, Failed> {
    Ok(SqliteStore::open(directory, Arc::new(SystemClock), SqliteOptions::default())?)
}

/// Not a test by itself: what the killed process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_records_until_it_is_killed() -> Result<(), Failed> {
    let (Ok(directory), Ok(first)) = (std::env::var(DIRECTORY), std::env::var(FIRST)) else { return Ok(()) };
    let first: u64 = first.parse()?;
    let store = Arc::new(open(Path::new(&directory))?);
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for n in (first + task..first + NUMBERS_PER_CHILD).step_by(6) {
                let recorded = store.record(candidate(n), Fence(u64::MAX)).await?;
                if !matches!(recorded, Recorded::Stored(_)) {
                    return Err(Failed::from(format!("{n} was not stored: {recorded:?}")));
                }
                store.count_replay(
                    &samples::fingerprint(n),
                    &samples::tenant("a"),
                    samples::entry(n).recorded_at,
                );
                // The parent is gone: so is the reason to go on.
                writeln!(std::io::stdout().lock(), "{ACKNOWLEDGED}{n}")?;
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Runs a child, kills it when `acknowledged` numbers were heard of and `then` has passed, and returns all that were.
fn run_and_kill(
    directory: &Path,
    first: u64,
    acknowledged: usize,
    then: Duration,
) -> Result<Vec<u64>, Failed> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", "child_records_until_it_is_killed", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("no standard output")?;
    let mut numbers = BufReader::new(output).lines().map_while(Result::ok).filter_map(|line| {
        // The test runner begins a line of its own before the first one.
        let (_, number) = line.rsplit_once(ACKNOWLEDGED)?;
        number.parse::<u64>().ok()
    });
    let mut heard: Vec<u64> = numbers.by_ref().take(acknowledged).collect();
    thread::sleep(then);
    child.kill()?;
    heard.extend(numbers);
    let status = child.wait()?;
    if status.code().is_some() {
        return Err(format!("the child ended by itself: {status}").into());
    }
    Ok(heard)
}

async fn check(
    directory: &Path,
    acknowledged: &BTreeMap<Fingerprint, u64>,
    numbers: u64,
) -> Result<(), Failed> {
    let store = open(directory)?;
    for (key, n) in acknowledged {
        let entry =
            store.recall(key).await?.entry.ok_or_else(|| format!("{n} was acknowledged and is lost"))?;
        let expected = candidate(*n).entry;
        let same = entry.body == expected.body
            && entry.fields == expected.fields
            && entry.document == expected.document;
        if !same {
            return Err(format!("{n} is not what was recorded").into());
        }
    }
    // What was written and not acknowledged is whole as well: opening has verified every row.
    let mut query = ListQuery { limit: 1000, ..ListQuery::default() };
    let mut listed = 0;
    loop {
        let page = store.list(&query).await?;
        listed += page.items.len();
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    let in_flight = 6 * numbers;
    if listed < acknowledged.len() || listed as u64 > acknowledged.len() as u64 + in_flight {
        return Err(format!("{listed} entries, but {} were acknowledged", acknowledged.len()).into());
    }
    store.close().await?;
    Ok(())
}

async fn kill_often(kills: u64, seed: u64) -> Result<(), Failed> {
    let mut rng = Rng::with_seed(seed);
    let mut directory = tempfile::tempdir()?;
    let mut acknowledged = BTreeMap::new();
    let mut total = 0;
    for kill in 0..kills {
        if kill % KILLS_PER_DIRECTORY == 0 {
            directory = tempfile::tempdir()?;
            acknowledged.clear();
        }
        // Also before the first record: while it opens, or makes, the file.
        let after = if rng.u8(..6) == 0 { 0 } else { rng.usize(1..80) };
        let then = Duration::from_micros(rng.u64(..if after == 0 { 30_000 } else { 6000 }));
        let heard = run_and_kill(directory.path(), kill * NUMBERS_PER_CHILD, after, then)
            .map_err(|e| format!("seed {seed}, kill {kill}: {e}"))?;
        total += heard.len();
        acknowledged.extend(heard.into_iter().map(|n| (samples::fingerprint(n), n)));
        // Most of the time the next child finds what the kill has left, and not what a clean close did.
        if rng.u8(..3) == 0 || kill % KILLS_PER_DIRECTORY == KILLS_PER_DIRECTORY - 1 || kill == kills - 1 {
            let in_this_directory = kill % KILLS_PER_DIRECTORY + 1;
            check(directory.path(), &acknowledged, in_this_directory)
                .await
                .map_err(|e| format!("seed {seed}, kill {kill}: {e}"))?;
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
