//! What the machine does to the embedded store of jobs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nevertwice_domain::clock::{Clock, ManualClock};
use nevertwice_domain::job::{Job, JobStatus};
use nevertwice_domain::operation::Whereabouts;
use nevertwice_store::work::sqlite::SqliteWork;
use nevertwice_store::work::suite::samples;
use nevertwice_store::work::{
    Full, Held, JobBounds, JobEnd, JobStore, MAX_OPERATIONS, OperationStore, Submitted,
};
use nevertwice_store::{StoreError, StoreErrorKind};
use tokio::task::JoinSet;

use super::{Done, FILE, Failed, LOG, all, bounds, claim, clock, job, open, refused};

async fn submit(store: &SqliteWork, clock: &ManualClock, n: u64, input: Bytes) -> Result<Job, Failed> {
    clock.advance_ms(1);
    match store.submit(samples::job(n, clock.now()), input, None, &bounds(clock)).await? {
        Submitted::New(job) => Ok(job),
        other => Err(format!("{other:?}").into()),
    }
}

fn kind(error: Failed) -> Result<StoreErrorKind, Failed> {
    Ok(error.downcast::<StoreError>()?.kind)
}

#[tokio::test]
async fn everything_is_there_after_a_restart() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = open(directory.path(), &clock)?;
    for n in 0..6 {
        submit(&store, &clock, n, samples::input(n)).await?;
    }
    let [sent, held, done, again] =
        [claim(&store).await?, claim(&store).await?, claim(&store).await?, claim(&store).await?];
    let (sent, held) = (sent.ok_or("due")?, held.ok_or("due")?);
    assert!(store.sending(&sent).await?);
    let result = Some((samples::facts(200, b"ok"), Bytes::from_static(b"ok")));
    let (at, expires_at) = (clock.now(), clock.now().plus_ms(samples::LIFE_MS));
    let end = JobEnd::Final { status: JobStatus::Succeeded, error: None, result, at, expires_at };
    assert!(store.settle_job(&done.ok_or("due")?, end).await?);
    let not_before = clock.now().plus_ms(1000);
    let end = JobEnd::Again { error: Some(samples::transient()), not_before };
    assert!(store.settle_job(&again.ok_or("due")?, end).await?);
    let operation = samples::operation(1, clock.now());
    store.put(&operation).await?;
    let before = all(&store).await?;
    drop(store);
    assert!(!directory.path().join(LOG).exists(), "a clean close leaves one file");

    let store = open(directory.path(), &clock)?;
    assert_eq!(all(&store).await?, before);
    assert_eq!(store.operation(&operation.id).await?, Some(operation));
    let depth = store.depth().await?;
    assert_eq!((depth.len(), depth[0].queued, depth[0].running), (1, 3, 2));
    // The clock stands still: their workers are dead all the same.
    let first = claim(&store).await?.ok_or("at once")?;
    assert_eq!((first.job.id, first.job.sent, first.job.attempts), (sent.job.id, true, 1));
    let second = claim(&store).await?.ok_or("at once")?;
    assert_eq!((second.job.id, second.job.sent, second.job.attempts), (held.job.id, false, 0));
    assert_eq!(store.renew(&sent).await?, Held::No);
    let third = claim(&store).await?.ok_or("it waits")?;
    assert_eq!(third.job.status, JobStatus::Running);
    assert_eq!(store.input(&third.job.id).await?, Some(samples::input(4)));
    Ok(())
}

#[tokio::test]
async fn what_is_kept_is_counted_anew_at_each_start() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let mut store = open(directory.path(), &clock)?;
    for (n, tenant) in [(1, "a"), (2, "a"), (3, "b"), (4, "b")] {
        let job = Job { tenant: samples::tenant(tenant), ..samples::job(n, clock.now()) };
        store.submit(job, Bytes::from(vec![7; 100]), None, &bounds(&*clock)).await?;
    }
    let (at, expires_at) = (clock.now(), clock.now().plus_ms(samples::LIFE_MS));
    for status in [JobStatus::Succeeded, JobStatus::Failed] {
        let claim = claim(&store).await?.ok_or("it waits")?;
        let result = Some((samples::facts(200, &[8; 30]), Bytes::from(vec![8; 30])));
        let error = (status == JobStatus::Failed).then(samples::transient);
        assert!(store.settle_job(&claim, JobEnd::Final { status, error, result, at, expires_at }).await?);
    }
    for _ in 0..2 {
        // nothing of it is in the file: one of a version that did not count is opened as any other
        assert_eq!(store.stored_bytes().await?, 360);
        let room =
            JobBounds { max_bytes: 400, tenant_max_bytes: 220, tenant_max_queued: 2, ..bounds(&*clock) };
        for (tenant, upstream, length, full) in [
            ("b", "ocr", 0, Full::TenantQueue),
            ("a", "ocr", 41, Full::Bytes),
            ("b", "tika", 21, Full::TenantBytes),
        ] {
            let mut job = samples::job(9, clock.now());
            (job.tenant, job.upstream) = (samples::tenant(tenant), samples::upstream(upstream));
            let submitted = store.submit(job, Bytes::from(vec![9; length]), None, &room).await?;
            assert_eq!(submitted, Submitted::Full(full));
        }
        drop(store);
        store = open(directory.path(), &clock)?;
    }
    Ok(())
}

#[tokio::test]
async fn one_process_at_a_time() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = open(directory.path(), &clock)?;
    let error = refused(directory.path())?;
    assert_eq!(error.kind, StoreErrorKind::InUse);
    assert!(error.message.contains(&*directory.path().to_string_lossy()), "{error}");
    submit(&store, &clock, 1, Bytes::new()).await?;
    drop(store);
    assert_eq!(all(&open(directory.path(), &clock)?).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn nobody_else_may_read_the_files() -> Done {
    let parent = tempfile::tempdir()?;
    let directory = parent.path().join("a/b");
    let clock = clock();
    let store = open(&directory, &clock)?;
    submit(&store, &clock, 1, Bytes::new()).await?;
    for name in [FILE, LOG, "work.sqlite3-shm", "work.lock"] {
        let mode = fs::metadata(directory.join(name))?.permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    Ok(())
}

/// Waits for what comes by itself.
async fn until(come: impl AsyncFn() -> Result<bool, Failed>) -> Done {
    let began = Instant::now();
    while !come().await? {
        assert!(began.elapsed() < Duration::from_secs(60), "it never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A file system of 4 MiB; `None` where one may not mount.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Result<Option<Self>, Failed> {
        let directory = tempfile::tempdir()?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
            .arg(directory.path())
            .output()
            .is_ok_and(|output| output.status.success());
        Ok(mounted.then_some(Self(directory)))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Nothing more can be done about one that stays.
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

fn big(n: u64) -> Bytes {
    vec![n.to_le_bytes()[0]; 60_000].into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing_that_was_taken_in() -> Done {
    let Some(disk) = SmallDisk::mount()? else { return Ok(()) };
    let clock = clock();
    let ballast = disk.0.path().join("ballast");
    fs::write(&ballast, vec![0; 1_000_000])?;
    let directory = disk.0.path().join("store");
    let store = Arc::new(open(&directory, &clock)?);
    let mut taken = Vec::new();
    let full = loop {
        let n = taken.len() as u64;
        match submit(&store, &clock, n, big(n)).await {
            Ok(job) => taken.push(job),
            Err(error) => break error,
        }
        assert!(n < 1000, "it never gets full");
    };
    assert_eq!(kind(full)?, StoreErrorKind::Full);
    assert!(taken.len() > 3, "{}", taken.len());
    // A big one that comes together with small ones fails alone, if it fails.
    let bytes = vec![1; 2_500_000];
    let (huge, renewed) =
        tokio::join!(submit(&store, &clock, 900, bytes.into()), async { store.job(&taken[0].id).await });
    assert_eq!(kind(huge.err().ok_or("it has no place")?)?, StoreErrorKind::Full);
    assert_eq!(renewed?, Some(taken[0].clone()));
    assert_eq!(all(&store).await?.len(), taken.len(), "what was not taken in is not there");
    assert_eq!(store.depth().await?[0].queued, taken.len() as u64);
    assert_eq!(store.stored_bytes().await?, 60_000 * taken.len() as u64);
    fs::remove_file(&ballast)?;
    taken.push(submit(&store, &clock, 901, samples::input(901)).await?);
    drop(store);
    let store = open(&directory, &clock)?;
    for (n, expected) in taken.iter().enumerate() {
        assert_eq!(job(&store, &expected.id).await?, *expected);
        let input = if n + 1 == taken.len() { samples::input(901) } else { big(n as u64) };
        assert_eq!(store.input(&expected.id).await?, Some(input));
    }
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_written_is_not_taken_in() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = open(directory.path(), &clock)?;
    submit(&store, &clock, 1, samples::input(1)).await?;
    let held = claim(&store).await?.ok_or("it waits")?;
    let intruder = rusqlite::Connection::open(directory.path().join(FILE))?;
    intruder.execute_batch(
        "CREATE TRIGGER stop BEFORE INSERT ON jobs BEGIN SELECT RAISE(FAIL, 'not today'); END",
    )?;
    assert!(submit(&store, &clock, 2, samples::input(2)).await.is_err());
    assert!(store.sending(&held).await.is_err(), "no call may be made");
    assert_eq!(all(&store).await?.len(), 1);
    assert!(!job(&store, &held.job.id).await?.sent);
    // nor counted, for anybody
    let length = samples::input(1).len() as u64;
    assert_eq!(store.stored_bytes().await?, length);
    intruder.execute_batch("DROP TRIGGER stop")?;
    assert!(store.sending(&held).await?);
    let room = JobBounds { tenant_max_bytes: 2 * length, tenant_max_queued: 1, ..bounds(&*clock) };
    let submitted = store.submit(samples::job(2, clock.now()), samples::input(2), None, &room).await?;
    assert!(matches!(submitted, Submitted::New(_)), "{submitted:?}");
    Ok(())
}

#[tokio::test]
async fn a_job_that_is_damaged_while_open_stops_no_other() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = open(directory.path(), &clock)?;
    let mut jobs = Vec::new();
    for n in 0..4 {
        jobs.push(submit(&store, &clock, n, samples::input(n)).await?);
    }
    let intruder = rusqlite::Connection::open(directory.path().join(FILE))?;
    intruder.execute_batch(
        "UPDATE jobs SET job = replace(job, '/sync?n=0', '/sync?n=7') WHERE sequence = 1; \
         UPDATE jobs SET removed_at = 1 WHERE sequence = 2; \
         UPDATE inputs SET body = x'00' WHERE sequence = 3",
    )?;
    drop(intruder);
    let third = claim(&store).await?.ok_or("the third waits")?;
    assert_eq!(third.job.id, jobs[2].id);
    let error = store.input(&third.job.id).await.err().ok_or("it is not what was handed over")?;
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
    assert_eq!(claim(&store).await?.ok_or("the fourth waits")?.job.id, jobs[3].id);
    assert!(claim(&store).await?.is_none());
    assert_eq!(store.job(&jobs[0].id).await.err().map(|e| e.kind), Some(StoreErrorKind::Corrupt));
    // Until the sweep has looked at the one whose time seems to be over.
    until(async || Ok(store.job(&jobs[1].id).await.is_err())).await?;
    let depth = store.depth().await?;
    assert_eq!((depth[0].queued, depth[0].running), (0, 2), "what is damaged counts no more");
    submit(&store, &clock, 9, samples::input(9)).await?;
    assert_eq!(all(&store).await?.len(), 3);
    drop(store);
    let error = refused(directory.path())?;
    assert!(error.kind == StoreErrorKind::Corrupt && error.message.contains("2 of 5 rows"), "{error}");
    Ok(())
}

#[tokio::test]
async fn what_is_over_leaves_the_file() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = open(directory.path(), &clock)?;
    for n in 0..400 {
        submit(&store, &clock, n, big(n)).await?;
        store.put(&samples::operation(n, clock.now())).await?;
    }
    clock.advance_ms(samples::LIFE_MS.cast_signed());
    let file = directory.path().join(FILE);
    let looker = rusqlite::Connection::open(&file)?;
    let count = |what: &str| {
        looker.query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get::<_, i64>(0))
    };
    for table in ["jobs", "inputs", "operations"] {
        until(async || Ok(count(table)? == 0)).await?;
    }
    drop(looker);
    assert_eq!(store.depth().await?, []);
    // The pages are given back little by little, while nothing else is to be done.
    until(async || Ok(fs::metadata(&file)?.len() < 20_000_000)).await?;
    submit(&store, &clock, 1000, samples::input(1)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_are_bounded_and_the_oldest_go() -> Done {
    const MORE: u64 = 10;
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = Arc::new(open(directory.path(), &clock)?);
    let mut minted = samples::operation(2 * MAX_OPERATIONS, clock.now());
    minted.at = Whereabouts::Known {
        fingerprint: samples::fingerprint(1),
        body: Bytes::from_static(b"{}"),
        content_type: None,
        recorded_at: clock.now(),
        valid_until: clock.now(),
    };
    store.put(&minted).await?;
    for n in 0..=MORE {
        store.put(&samples::operation(n, clock.now())).await?;
    }
    let mut tasks = JoinSet::new();
    for task in 0..500 {
        let (store, now) = (Arc::clone(&store), clock.now());
        tasks.spawn(async move {
            for n in (MORE + 1 + task..MAX_OPERATIONS).step_by(500) {
                store.put(&samples::operation(n, now)).await?;
            }
            Ok::<_, StoreError>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    assert!(store.operation(&samples::operation_id(0)).await?.is_some());
    for n in 0..MORE {
        store.put(&samples::operation(MAX_OPERATIONS + n, clock.now())).await?;
        assert!(store.operation(&samples::operation_id(n)).await?.is_none(), "the oldest made room");
        assert!(store.operation(&samples::operation_id(MAX_OPERATIONS + n)).await?.is_some());
    }
    assert!(store.operation(&samples::operation_id(MORE)).await?.is_some());
    assert!(store.operation(&minted.id).await?.is_some(), "those have room of their own");
    drop(store);
    // what is counted at the start is what was counted before
    let store = open(directory.path(), &clock)?;
    store.put(&samples::operation(2 * MAX_OPERATIONS + 1, clock.now())).await?;
    assert!(store.operation(&samples::operation_id(MORE)).await?.is_none());
    assert!(store.operation(&minted.id).await?.is_some());
    Ok(())
}
