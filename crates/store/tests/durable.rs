//! What the embedded store keeps, and what it does when the machine gives it trouble.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nevertwice_domain::clock::{Clock, ManualClock, Millis};
use nevertwice_domain::entry::{Candidate, REDUCED_SCHEMA, Selector, Tally};
use nevertwice_store::sqlite::{SqliteOptions, SqliteStore};
use nevertwice_store::suite::samples;
use nevertwice_store::{Fence, ListOrder, ListQuery, Recorded, RefusalStore, StoreError, StoreErrorKind};

type Failed = Box<dyn std::error::Error>;
type Done = Result<(), Failed>;

/// No forget comes in between.
const FREE: Fence = Fence(u64::MAX);

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Millis(1_700_000_000_000)))
}

fn open(directory: &Path, clock: &Arc<ManualClock>) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(directory, Arc::<ManualClock>::clone(clock), SqliteOptions::default())
}

fn refused(directory: &Path) -> Result<StoreError, Failed> {
    match open(directory, &clock()) {
        Ok(_) => Err("it was opened".into()),
        Err(error) => Ok(error),
    }
}

fn big(n: u64) -> Candidate {
    let mut candidate = samples::candidate(n);
    candidate.entry.body = vec![n.to_le_bytes()[0]; 60_000].into();
    candidate
}

#[test]
fn sqlite_has_no_bug_that_damages_its_log() {
    assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
}

#[tokio::test]
async fn everything_is_there_after_a_restart() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = open(directory.path(), &clock)?;
    for n in 0..20 {
        clock.advance_ms(1);
        store.record(samples::candidate(n), FREE).await?;
    }
    let suspected_since = clock.now();
    let mut elsewhere = samples::candidate(20);
    elsewhere.entry.upstream = samples::upstream("tika");
    elsewhere.entry.body = vec![0xff; 65_536].into();
    store.record(elsewhere, FREE).await?;
    assert_eq!(store.suspect(&samples::upstream("tika"), suspected_since).await?, 1);
    for name in ["b", "c", "b"] {
        store.count_replay(&samples::fingerprint(3), &samples::tenant(name), clock.now());
        clock.advance_ms(5);
    }
    let struck = || Candidate { life: samples::confirmed(3), ..samples::candidate(30) };
    let first_struck = clock.now();
    store.record(struck(), FREE).await?;
    store.accept(&samples::fingerprint(19), &samples::upstream("ocr")).await?;
    let query = ListQuery { order: ListOrder::Recent, limit: 100, ..ListQuery::default() };
    let before = format!("{:?}", store.list(&query).await?);
    let shown = format!("{:?}", store.show(&samples::fingerprint(20)).await?);
    store.close().await?;
    assert!(!directory.path().join("refusals.sqlite3-wal").exists(), "a clean close leaves one file");

    let store = open(directory.path(), &clock)?;
    assert_eq!(format!("{:?}", store.list(&query).await?), before);
    assert_eq!(format!("{:?}", store.show(&samples::fingerprint(20)).await?), shown);
    assert!(store.recall(&samples::fingerprint(20)).await?.entry.is_none(), "it stays suspect");
    assert!(store.recall(&samples::fingerprint(19)).await?.entry.is_none(), "it stays accepted");
    assert!(store.has_accepted(&samples::upstream("ocr")));
    assert!(!store.has_accepted(&samples::upstream("tika")));
    let tally = store.show(&samples::fingerprint(3)).await?.ok_or("is there")?.tally;
    let names = ["b", "c"].map(samples::tenant).to_vec();
    assert_eq!((tally.replays, tally.tenants), (3, names));
    assert!(matches!(store.record(struck(), FREE).await?, Recorded::Unconfirmed(2)));
    match store.record(struck(), FREE).await? {
        Recorded::Stored(entry) => assert_eq!(entry.first_refused_at, first_struck),
        other => return Err(format!("{other:?}").into()),
    }
    // The order of recording goes on where it stood.
    store.record(Candidate { max_entries: 2, ..samples::candidate(40) }, FREE).await?;
    let kept: Vec<_> = store.list(&query).await?.items.iter().map(|s| s.entry.fingerprint).collect();
    assert_eq!(kept, [40, 30].map(samples::fingerprint));
    Ok(())
}

#[tokio::test]
async fn a_body_is_read_from_the_file_once() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = open(directory.path(), &clock)?;
    let key = samples::fingerprint(1);
    store.record(big(1), FREE).await?;
    assert!(store.near(&key).is_some(), "what was recorded is near");
    store.close().await?;
    let store = open(directory.path(), &clock)?;
    assert!(store.near(&key).is_none());
    let recalled = store.recall(&key).await?.entry.ok_or("is there")?;
    assert_eq!(recalled.body, big(1).entry.body);
    assert_eq!(store.near(&key), Some(recalled));
    Ok(())
}

/// The files as a power cut would leave them now.
fn snapshot(directory: &Path) -> Result<tempfile::TempDir, Failed> {
    let copy = tempfile::tempdir()?;
    // The log first: what leaves it meanwhile is in the file, which is copied later.
    for name in ["refusals.sqlite3-wal", "refusals.sqlite3"] {
        let from = directory.join(name);
        if from.exists() {
            fs::copy(from, copy.path().join(name))?;
        }
    }
    Ok(copy)
}

#[tokio::test]
async fn counts_are_written_by_themselves() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = open(directory.path(), &clock)?;
    let key = samples::fingerprint(1);
    store.record(samples::candidate(1), FREE).await?;
    for _ in 0..3019 {
        store.count_replay(&key, &samples::tenant("a"), clock.now());
    }
    let began = Instant::now();
    loop {
        // A copy of a file in use may be caught in the middle of a write.
        if let Ok(copy) = open(snapshot(directory.path())?.path(), &clock)
            && copy.show(&key).await?.is_some_and(|shown| shown.tally.replays == 3019)
        {
            return Ok(());
        }
        assert!(began.elapsed() < Duration::from_secs(30), "the counts were not written");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_store_that_is_dropped_ends_and_keeps_its_counts() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    for round in 1..=5 {
        let store = open(directory.path(), &clock)?;
        store.record(samples::candidate(1), FREE).await?;
        assert_eq!(store.count_replay(&samples::fingerprint(1), &samples::tenant("a"), clock.now()), round);
        drop(store);
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
    store.record(samples::candidate(1), FREE).await?;
    store.close().await?;
    assert_eq!(
        open(directory.path(), &clock)?.entries().await?,
        1,
        "closed is enough, though it is not dropped yet"
    );
    Ok(())
}

#[tokio::test]
async fn nobody_else_may_read_the_files() -> Done {
    let parent = tempfile::tempdir()?;
    let directory = parent.path().join("a/b");
    let store = open(&directory, &clock())?;
    store.record(samples::candidate(1), FREE).await?;
    let mode = |path: PathBuf| fs::metadata(path).map(|m| m.permissions().mode() & 0o777);
    assert_eq!(mode(directory.clone())?, 0o700);
    for name in ["refusals.sqlite3", "refusals.sqlite3-wal", "refusals.sqlite3-shm", "lock"] {
        assert_eq!(mode(directory.join(name))?, 0o600, "{name}");
    }
    Ok(())
}

/// Records until the disk is full, and goes on when there is room.
async fn fill_and_recover(
    store: &SqliteStore,
    make_room: impl AsyncFn() -> Done,
) -> Result<Vec<u64>, Failed> {
    let mut held = Vec::new();
    let full = loop {
        let n = held.len() as u64;
        match store.record(big(n), FREE).await {
            Ok(Recorded::Stored(_)) => held.push(n),
            Ok(other) => return Err(format!("{other:?}").into()),
            Err(error) => break error,
        }
        assert!(n < 1000, "it never gets full");
    };
    assert_eq!(full.kind, StoreErrorKind::Full, "{full}");
    let refused = held.len() as u64;
    assert!(refused > 3, "{refused}");
    assert_eq!(store.entries().await?, refused);
    assert!(
        store.recall(&samples::fingerprint(refused)).await?.entry.is_none(),
        "what was not recorded is not there"
    );
    for n in &held {
        let recalled = store.recall(&samples::fingerprint(*n)).await?.entry.ok_or("is there")?;
        assert_eq!(recalled.body, big(*n).entry.body);
    }
    assert_eq!(store.record(big(refused), FREE).await.err().map(|e| e.kind), Some(StoreErrorKind::Full));
    make_room().await?;
    assert!(matches!(store.record(big(refused), FREE).await?, Recorded::Stored(_)), "it recovers");
    held.push(refused);
    Ok(held)
}

#[tokio::test]
async fn a_full_file_means_not_recorded() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let options = SqliteOptions { near_bytes: 0, max_file_bytes: Some(1_000_000) };
    let store = SqliteStore::open(directory.path(), Arc::<ManualClock>::clone(&clock), options)?;
    let held = fill_and_recover(&store, async || {
        assert_eq!(store.forget(&Selector::key(samples::fingerprint(0))).await?, 1);
        Ok(())
    })
    .await?;
    store.close().await?;
    assert!(fs::metadata(directory.path().join("refusals.sqlite3"))?.len() <= 1_000_000);
    assert_eq!(open(directory.path(), &clock)?.entries().await?, held.len() as u64 - 1);
    Ok(())
}

/// A file system of 2 MiB; `None` where one may not mount.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Result<Option<Self>, Failed> {
        let directory = tempfile::tempdir()?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
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

#[tokio::test]
async fn a_full_disk_means_not_recorded() -> Done {
    let Some(disk) = SmallDisk::mount()? else { return Ok(()) };
    let clock = clock();
    let ballast = disk.0.path().join("ballast");
    fs::write(&ballast, vec![0; 400_000])?;
    let directory = disk.0.path().join("store");
    let store = open(&directory, &clock)?;
    let held = fill_and_recover(&store, async || Ok(fs::remove_file(&ballast)?)).await?;
    drop(store);
    assert_eq!(open(&directory, &clock)?.entries().await?, held.len() as u64);
    Ok(())
}

#[tokio::test]
async fn a_row_that_is_damaged_while_open_is_not_replayed_and_is_replaced() -> Done {
    let directory = tempfile::tempdir()?;
    let options = SqliteOptions { near_bytes: 0, ..SqliteOptions::default() };
    let store = SqliteStore::open(directory.path(), clock(), options)?;
    store.record(samples::candidate(1), FREE).await?;
    store.record(samples::candidate(2), FREE).await?;
    store.count_replay(&samples::fingerprint(1), &samples::tenant("a"), Millis(1));
    let intruder = rusqlite::Connection::open(directory.path().join("refusals.sqlite3"))?;
    intruder.execute("UPDATE entries SET body = x'00' WHERE sequence = 1", [])?;
    let recalled = store.recall(&samples::fingerprint(1)).await?;
    assert!(recalled.entry.is_none(), "it was replayed");
    assert_eq!(store.entries().await?, 1);
    assert!(store.show(&samples::fingerprint(1)).await?.is_none());
    assert!(store.recall(&samples::fingerprint(2)).await?.entry.is_some());
    assert!(matches!(store.record(samples::candidate(1), recalled.fence).await?, Recorded::Stored(_)));
    let entry = store.recall(&samples::fingerprint(1)).await?.entry.ok_or("is there")?;
    assert_eq!(entry.body, samples::entry(1).body);
    assert_eq!(store.show(&samples::fingerprint(1)).await?.ok_or("is there")?.tally, Tally::default());
    drop(intruder);
    store.close().await?;
    assert_eq!(open(directory.path(), &clock())?.entries().await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_damaged_row_that_was_only_looked_at_leaves_the_file() -> Done {
    let directory = tempfile::tempdir()?;
    let options = SqliteOptions { near_bytes: 0, ..SqliteOptions::default() };
    let store = SqliteStore::open(directory.path(), clock(), options)?;
    for n in 1..=3 {
        store.record(samples::candidate(n), FREE).await?;
    }
    let intruder = rusqlite::Connection::open(directory.path().join("refusals.sqlite3"))?;
    intruder.execute("UPDATE entries SET rule = 'other' WHERE sequence < 3", [])?;
    drop(intruder);
    assert!(store.recall(&samples::fingerprint(1)).await?.entry.is_none());
    assert!(store.show(&samples::fingerprint(2)).await?.is_none());
    store.close().await?;
    let store = open(directory.path(), &clock())?;
    assert_eq!(store.entries().await?, 1);
    assert!(store.recall(&samples::fingerprint(3)).await?.entry.is_some());
    Ok(())
}

#[tokio::test]
async fn an_entry_of_another_schema_stays_a_miss_after_a_restart() -> Done {
    let directory = tempfile::tempdir()?;
    let mut other = samples::candidate(1);
    other.entry.schema = REDUCED_SCHEMA + 1;
    let store = open(directory.path(), &clock())?;
    store.record(other, FREE).await?;
    store.close().await?;
    let store = open(directory.path(), &clock())?;
    let key = samples::fingerprint(1);
    assert!(store.recall(&key).await?.entry.is_none());
    assert!(store.show(&key).await?.is_some());
    assert!(store.near(&key).is_none(), "though it has been read");
    assert!(matches!(store.record(samples::candidate(1), FREE).await?, Recorded::Stored(_)));
    Ok(())
}

#[tokio::test]
async fn a_forget_of_a_key_that_is_not_there_writes_nothing() -> Done {
    let directory = tempfile::tempdir()?;
    let store = open(directory.path(), &clock())?;
    store.record(samples::candidate(1), FREE).await?;
    let log = || fs::read(directory.path().join("refusals.sqlite3-wal"));
    let before = log()?;
    for n in 2..50 {
        assert_eq!(store.forget(&Selector::key(samples::fingerprint(n))).await?, 0);
    }
    let other = Selector { status: Some(samples::status(422)), ..Selector::key(samples::fingerprint(1)) };
    assert_eq!(store.forget(&other).await?, 0);
    assert!(log()? == before);
    assert_eq!(store.forget(&Selector::key(samples::fingerprint(1))).await?, 1);
    assert!(log()? != before);
    Ok(())
}

#[tokio::test]
async fn a_forget_of_a_key_reads_no_other_row() -> Done {
    let directory = tempfile::tempdir()?;
    let store = open(directory.path(), &clock())?;
    store.record(samples::candidate(1), FREE).await?;
    store.record(samples::candidate(2), FREE).await?;
    let intruder = rusqlite::Connection::open(directory.path().join("refusals.sqlite3"))?;
    intruder.execute("UPDATE entries SET document = x'00' WHERE sequence = 2", [])?;
    assert_eq!(store.forget(&Selector::key(samples::fingerprint(1))).await?, 1);
    assert!(store.forget(&Selector::default()).await.is_err(), "one that reads them all stumbles");
    Ok(())
}

#[tokio::test]
async fn a_forget_that_failed_changes_nothing_and_fences_nobody() -> Done {
    let directory = tempfile::tempdir()?;
    let store = open(directory.path(), &clock())?;
    store.record(samples::candidate(1), FREE).await?;
    let fence = store.recall(&samples::fingerprint(2)).await?.fence;
    let intruder = rusqlite::Connection::open(directory.path().join("refusals.sqlite3"))?;
    intruder.execute_batch(
        "CREATE TRIGGER stop BEFORE DELETE ON entries BEGIN SELECT RAISE(FAIL, 'not today'); END",
    )?;
    let error = store.forget(&Selector::default()).await.err().ok_or("it was forgotten")?;
    assert!(error.message.contains("not today"), "{error}");
    intruder.execute_batch("DROP TRIGGER stop")?;
    assert!(store.recall(&samples::fingerprint(1)).await?.entry.is_some());
    assert!(matches!(store.record(samples::candidate(2), fence).await?, Recorded::Stored(_)));
    assert_eq!(store.forget(&Selector::default()).await?, 2);
    assert!(matches!(store.record(samples::candidate(2), fence).await?, Recorded::Fenced));
    Ok(())
}

#[tokio::test]
async fn counts_of_a_renewed_entry_are_kept() -> Done {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    for round in 1..=10 {
        let store = open(directory.path(), &clock)?;
        store.record(samples::candidate(1), FREE).await?;
        store.count_replay(&samples::fingerprint(1), &samples::tenant("a"), clock.now());
        assert_eq!(store.suspect(&samples::upstream("ocr"), clock.now()).await?, 1);
        store.record(samples::candidate(1), FREE).await?;
        let shown = store.show(&samples::fingerprint(1)).await?.ok_or("is there")?;
        assert_eq!(shown.tally.replays, round);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_hundred_thousand_entries_are_listed_and_reopened() -> Done {
    const ENTRIES: u64 = 100_000;
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = Arc::new(open(directory.path(), &clock)?);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..500 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for n in (task..ENTRIES).step_by(500) {
                store.record(Candidate { max_entries: ENTRIES, ..samples::candidate(n) }, FREE).await?;
            }
            Ok::<_, StoreError>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    store.count_replay(&samples::fingerprint(77), &samples::tenant("a"), clock.now());
    let count = async |store: &SqliteStore| {
        let mut query = ListQuery { limit: 1000, ..ListQuery::default() };
        let mut keys = std::collections::HashSet::new();
        loop {
            let page = store.list(&query).await?;
            keys.extend(page.items.iter().map(|summary| summary.entry.fingerprint));
            query.after = page.next;
            if query.after.is_none() {
                return Ok::<_, StoreError>(keys.len() as u64);
            }
        }
    };
    assert_eq!(count(&store).await?, ENTRIES);
    store.close().await?;
    let began = Instant::now();
    let store = open(directory.path(), &clock)?;
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(count(&store).await?, ENTRIES);
    let first = store.list(&ListQuery { limit: 1, ..ListQuery::default() }).await?;
    assert_eq!(first.items[0].entry.fingerprint, samples::fingerprint(77));
    let old = Selector { before: Some(Millis(i64::MAX)), ..Selector::default() };
    assert_eq!(store.forget(&old).await?, ENTRIES);
    Ok(())
}
