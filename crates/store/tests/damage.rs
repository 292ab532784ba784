//! Files that the embedded store must not trust: it says so and leaves them as they are. It never panics, and never starts
//! with less than there was without a word.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use nevertwice_domain::clock::{ManualClock, Millis};
use nevertwice_domain::entry::Candidate;
use nevertwice_store::sqlite::{SqliteOptions, SqliteStore};
use nevertwice_store::suite::samples;
use nevertwice_store::{Fence, RefusalStore, StoreError, StoreErrorKind};

type Failed = Box<dyn std::error::Error>;
type Done = Result<(), Failed>;

const FILE: &str = "refusals.sqlite3";
const LOG: &str = "refusals.sqlite3-wal";
const ENTRIES: u64 = 40;

/// The bytes of each file of a store.
type Image = BTreeMap<&'static str, Vec<u8>>;

fn open(directory: &Path) -> Result<SqliteStore, StoreError> {
    let clock = Arc::new(ManualClock::at(Millis(1_700_000_000_000)));
    SqliteStore::open(directory, clock, SqliteOptions::default())
}

fn refused(directory: &Path) -> Result<StoreError, Failed> {
    match open(directory) {
        Ok(_) => Err("it was opened".into()),
        Err(error) => Ok(error),
    }
}

fn candidate(n: u64) -> Candidate {
    let mut candidate = samples::candidate(n);
    candidate.entry.body = vec![7; (n * n * 3) as usize].into();
    candidate
}

fn image(directory: &Path) -> Result<Image, Failed> {
    let mut image = Image::new();
    for name in [FILE, LOG] {
        let path = directory.join(name);
        if path.exists() {
            image.insert(name, fs::read(path)?);
        }
    }
    Ok(image)
}

/// A store with something in every table, as it is while it is open (the last records are in the log alone) and closed.
async fn images() -> Result<[Image; 2], Failed> {
    let directory = tempfile::tempdir()?;
    let store = open(directory.path())?;
    let free = Fence(u64::MAX);
    store.accept(&samples::fingerprint(1000), &samples::upstream("ocr")).await?;
    let struck = Candidate { life: samples::confirmed(3), ..samples::candidate(2000) };
    store.record(struck, free).await?;
    for n in 0..ENTRIES {
        store.record(candidate(n), free).await?;
    }
    let open = image(directory.path())?;
    store.close().await?;
    Ok([open, image(directory.path())?])
}

fn write(image: &Image) -> Result<tempfile::TempDir, Failed> {
    let directory = tempfile::tempdir()?;
    for (name, bytes) in image {
        fs::write(directory.path().join(name), bytes)?;
    }
    Ok(directory)
}

/// Opens a damaged image: it is refused with a word about the file, or at least `entries` are there, unharmed.
async fn opens_whole_or_not(image: &Image, entries: u64) -> Result<bool, Failed> {
    let directory = write(image)?;
    let store = match open(directory.path()) {
        Ok(store) => store,
        Err(error) => {
            let named = error.message.contains(FILE) && error.message.len() > 60;
            assert!(named, "the message says which file and what to do: {error}");
            assert!(matches!(error.kind, StoreErrorKind::Corrupt | StoreErrorKind::Newer), "{error:?}");
            assert_eq!(
                &self::image(directory.path())?[FILE],
                &image[FILE],
                "a refused file is left as it is"
            );
            return Ok(false);
        }
    };
    let there = store.entries().await?;
    assert!(there >= entries, "only {there} entries are there");
    for n in 0..there {
        let entry = store.recall(&samples::fingerprint(n)).await?.entry.ok_or("an entry is missing")?;
        assert_eq!(entry.body, candidate(n).entry.body);
    }
    Ok(true)
}

fn damage(rng: &mut Rng, bytes: &mut [u8]) {
    let at = rng.usize(..bytes.len());
    match rng.u8(..4) {
        0 => bytes[at] ^= 1 << rng.u8(..8),
        1 => bytes[at] = rng.u8(..),
        2 => bytes[at..].iter_mut().take(rng.usize(1..600)).for_each(|b| *b = 0),
        _ => bytes[at..].iter_mut().take(rng.usize(1..60)).for_each(|b| *b = rng.u8(..)),
    }
}

async fn damaged_in_many_ways(rounds: u64, seed: u64) -> Done {
    let [open, closed] = images().await?;
    assert!(open[LOG].len() > 10_000 && !closed.contains_key(LOG));
    assert!(opens_whole_or_not(&open, ENTRIES).await? && opens_whole_or_not(&closed, ENTRIES).await?);
    let mut rng = Rng::with_seed(seed);
    let mut refusals = 0;
    for round in 0..rounds {
        let (mut image, name) = match round % 3 {
            0 => (open.clone(), LOG),
            _ => (closed.clone(), FILE),
        };
        let bytes = image.entry(name).or_default();
        if round % 3 == 2 && rng.bool() {
            bytes.truncate(rng.usize(..bytes.len()));
        } else {
            damage(&mut rng, bytes);
        }
        // Damage to the last commit of the log, or to what separates it from the one before, cannot be told from a commit
        // that a power cut interrupted.
        let entries = if name == LOG { ENTRIES - 2 } else { ENTRIES };
        let opened = opens_whole_or_not(&image, entries).await;
        refusals += u64::from(!opened.map_err(|e| format!("seed {seed}, round {round}: {e}"))?);
    }
    assert!(refusals * 2 > rounds, "most damage is found: {refusals} of {rounds}");
    Ok(())
}

#[tokio::test]
async fn damage_is_found_or_harmless() -> Done {
    damaged_in_many_ways(300, 1).await
}

#[tokio::test]
async fn slow_damage_is_found_or_harmless_in_thousands_of_places() -> Done {
    damaged_in_many_ways(2000, 2).await
}

#[tokio::test]
async fn foreign_files_are_left_alone() -> Done {
    let foreign = {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("foreign");
        let connection = rusqlite::Connection::open(&path)?;
        connection.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")?;
        drop(connection);
        fs::read(path)?
    };
    let files: [(&[u8], &str); 4] = [
        (b"", "is empty"),
        (b"hello", "is not a database"),
        (&[b'x'; 10_000], "is not a database"),
        (&foreign, "another program"),
    ];
    for (bytes, says) in files {
        let directory = write(&Image::from([(FILE, bytes.to_vec())]))?;
        let error = refused(directory.path())?;
        assert_eq!(error.kind, StoreErrorKind::Corrupt);
        assert!(error.message.contains(says) && error.message.contains("move it away"), "{error}");
        assert_eq!(fs::read(directory.path().join(FILE))?, bytes);
        let names: Vec<_> = fs::read_dir(directory.path())?.collect::<Result<_, _>>()?;
        assert_eq!(names.len(), 2, "nothing but the lock was added: {names:?}");
    }
    Ok(())
}

#[tokio::test]
async fn changed_files_are_refused_with_the_reason() -> Done {
    let [_, closed] = images().await?;
    let changes = [
        ("PRAGMA user_version = 3", StoreErrorKind::Newer, "format 3"),
        ("PRAGMA user_version = 0", StoreErrorKind::Corrupt, "format 0"),
        ("PRAGMA application_id = 7", StoreErrorKind::Corrupt, "application id 7"),
        ("CREATE TABLE theirs (x)", StoreErrorKind::Corrupt, "theirs"),
        ("DROP TABLE strikes", StoreErrorKind::Corrupt, "tables"),
        ("UPDATE entries SET status = 422 WHERE sequence < 4", StoreErrorKind::Corrupt, "3 of 83 rows"),
        ("UPDATE entries SET status = 401 WHERE sequence = 1", StoreErrorKind::Corrupt, "1 of 83 rows"),
        ("UPDATE entries SET status = 200 WHERE sequence = 1", StoreErrorKind::Corrupt, "1 of 83 rows"),
        ("UPDATE tallies SET replays = 9 WHERE sequence = 1", StoreErrorKind::Corrupt, "rows"),
        ("UPDATE strikes SET count = 9", StoreErrorKind::Corrupt, "1 of 83 rows"),
        ("UPDATE accepted SET upstream = 'tika'", StoreErrorKind::Corrupt, "1 of 83 rows"),
        ("DELETE FROM tallies WHERE sequence = 1", StoreErrorKind::Corrupt, "1 of 82 rows"),
        ("DELETE FROM entries WHERE sequence = 1", StoreErrorKind::Corrupt, "rows"),
        ("DELETE FROM entries; DELETE FROM tallies", StoreErrorKind::Corrupt, "rows are missing"),
        ("DELETE FROM strikes", StoreErrorKind::Corrupt, "rows are missing"),
        ("DELETE FROM totals", StoreErrorKind::Corrupt, "rows are missing"),
    ];
    for (sql, kind, says) in changes {
        let directory = write(&closed)?;
        rusqlite::Connection::open(directory.path().join(FILE))?.execute_batch(sql)?;
        let error = refused(directory.path())?;
        assert_eq!(error.kind, kind, "{sql}: {error}");
        assert!(error.message.contains(says), "{sql}: {error}");
        assert!(error.message.contains("away"), "the message has the cure: {error}");
    }
    Ok(())
}

/// The version of the tables, as whoever opens the file finds it.
fn format_of(directory: &Path) -> Result<u32, Failed> {
    let connection = rusqlite::Connection::open(directory.join(FILE))?;
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

#[tokio::test]
async fn a_file_of_the_version_before_is_taken_over() -> Done {
    let [open_image, closed] = images().await?;
    for image in [closed, open_image] {
        let directory = write(&image)?;
        rusqlite::Connection::open(directory.path().join(FILE))?.execute_batch("PRAGMA user_version = 1")?;
        let store = open(directory.path())?;
        assert_eq!(store.entries().await?, ENTRIES);
        assert!(store.has_accepted(&samples::upstream("ocr")));
        // as long as nothing is in it that the version before cannot read, that one can have it back
        store.record(samples::candidate(501), Fence(u64::MAX)).await?;
        assert_eq!(format_of(directory.path())?, 1);
        let mut failed = samples::candidate(500);
        failed.entry.status = samples::status(200);
        store.record(failed, Fence(u64::MAX)).await?;
        // from now on the version before refuses it with the reason, also after a crash
        assert_eq!(format_of(directory.path())?, 2);
        drop(store);
        let store = open(directory.path())?;
        let found = store.recall(&samples::fingerprint(500)).await?.entry.ok_or("it is there")?;
        assert_eq!((found.status.get(), store.entries().await?), (200, ENTRIES + 2));
        store.close().await?;
        assert_eq!(format_of(directory.path())?, 2);
    }
    Ok(())
}

#[tokio::test]
async fn what_is_damaged_is_not_taken_over() -> Done {
    let [_, closed] = images().await?;
    let directory = write(&closed)?;
    let sql = "PRAGMA user_version = 1; UPDATE entries SET status = 422 WHERE sequence = 1";
    rusqlite::Connection::open(directory.path().join(FILE))?.execute_batch(sql)?;
    assert_eq!(refused(directory.path())?.kind, StoreErrorKind::Corrupt);
    assert_eq!(format_of(directory.path())?, 1);
    Ok(())
}

#[tokio::test]
async fn places_that_cannot_be_used_are_refused() -> Done {
    let directory = tempfile::tempdir()?;
    fs::create_dir(directory.path().join(FILE))?;
    let error = refused(directory.path())?;
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
    assert!(error.message.contains("is not a file"), "{error}");

    let not_a_directory = directory.path().join("file");
    fs::write(&not_a_directory, "x")?;
    for path in [not_a_directory.clone(), not_a_directory.join("below")] {
        let error = refused(&path)?;
        assert_eq!(error.kind, StoreErrorKind::Io);
        assert!(error.message.contains(&*path.to_string_lossy()), "{error}");
    }

    let read_only = directory.path().join("read-only");
    fs::create_dir(&read_only)?;
    fs::set_permissions(&read_only, fs::Permissions::from_mode(0o555))?;
    // The superuser may write anyway.
    if fs::write(read_only.join("probe"), "").is_err() {
        let error = refused(&read_only)?;
        assert_eq!(error.kind, StoreErrorKind::Io);
        assert!(error.message.contains(&*read_only.to_string_lossy()), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_log_without_its_file_is_no_empty_store() -> Done {
    let [open, _] = images().await?;
    let directory = write(&Image::from([(LOG, open[LOG].clone())]))?;
    let error = refused(directory.path())?;
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
    assert!(error.message.contains(LOG), "{error}");
    assert!(!directory.path().join(FILE).exists());
    assert_eq!(fs::read(directory.path().join(LOG))?, open[LOG]);
    Ok(())
}

#[tokio::test]
async fn an_unfinished_creation_is_begun_again() -> Done {
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("refusals.sqlite3.new"), "half of it")?;
    fs::write(directory.path().join("refusals.sqlite3.new-journal"), "half of it")?;
    let store = open(directory.path())?;
    assert_eq!(store.entries().await?, 0);
    store.record(candidate(1), Fence(0)).await?;
    drop(store);
    assert_eq!(open(directory.path())?.entries().await?, 1);
    assert!(!directory.path().join("refusals.sqlite3.new").exists());
    Ok(())
}
