//! The embedded store of operations and jobs.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nevertwice_domain::clock::{Clock, ManualClock, Millis};
use nevertwice_domain::job::{Job, JobId};
use nevertwice_store::StoreError;
use nevertwice_store::work::sqlite::SqliteWork;
use nevertwice_store::work::suite::{self, samples};
use nevertwice_store::work::{Claim, JobBounds, JobQuery, JobStore};

mod damage;
mod flat;
mod kill;
mod model;
mod trouble;
mod untold;

type Failed = Box<dyn std::error::Error + Send + Sync>;
type Done = Result<(), Failed>;

const FILE: &str = "work.sqlite3";
const LOG: &str = "work.sqlite3-wal";

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Millis(1_700_000_000_000)))
}

fn open(directory: &Path, clock: &Arc<ManualClock>) -> Result<SqliteWork, StoreError> {
    SqliteWork::open(directory, Arc::<ManualClock>::clone(clock))
}

fn refused(directory: &Path) -> Result<StoreError, Failed> {
    match open(directory, &clock()) {
        Ok(_) => Err("it was opened".into()),
        Err(error) => Ok(error),
    }
}

fn bounds(clock: &impl Clock) -> JobBounds {
    samples::bounds(clock.now().plus_ms(samples::LIFE_MS))
}

async fn claim(store: &SqliteWork) -> Result<Option<Claim>, StoreError> {
    store.claim(&samples::upstream("ocr"), Duration::ZERO).await
}

/// All jobs, the latest first.
async fn all(store: &SqliteWork) -> Result<Vec<Job>, StoreError> {
    let mut query = JobQuery { limit: 1000, ..JobQuery::default() };
    let mut jobs = Vec::new();
    loop {
        let page = store.list(&query).await?;
        jobs.extend(page.items);
        query.after = page.next;
        if query.after.is_none() {
            return Ok(jobs);
        }
    }
}

async fn job(store: &SqliteWork, id: &JobId) -> Result<Job, Failed> {
    Ok(store.job(id).await?.ok_or_else(|| format!("job {id} is lost"))?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_on_sqlite_conforms() {
    let directories = Mutex::new(Vec::new());
    let make = async |clock: Arc<ManualClock>| {
        let directory = tempfile::tempdir().unwrap_or_else(|e| unreachable!("{e}"));
        let store = SqliteWork::open(directory.path(), clock).unwrap_or_else(|e| unreachable!("{e}"));
        directories.lock().unwrap_or_else(PoisonError::into_inner).push(directory);
        Arc::new(store)
    };
    suite::conformance(&make).await;
    suite::forgets(&make).await;
}
