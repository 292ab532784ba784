//! Files that the embedded store of jobs must not trust: it says so and leaves them as they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use fastrand::Rng;
use nevertwice_domain::clock::Clock;
use nevertwice_domain::job::{Job, JobStatus};
use nevertwice_store::StoreErrorKind;
use nevertwice_store::work::suite::samples;
use nevertwice_store::work::{JobEnd, JobStore, OperationStore};

use super::{Done, FILE, Failed, LOG, all, bounds, claim, clock, open, refused};

const JOBS: u64 = 24;

/// The bytes of each file of a store.
type Image = BTreeMap<&'static str, Vec<u8>>;

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

fn write(image: &Image) -> Result<tempfile::TempDir, Failed> {
    let directory = tempfile::tempdir()?;
    for (name, bytes) in image {
        fs::write(directory.path().join(name), bytes)?;
    }
    Ok(directory)
}

fn body(n: u64) -> Bytes {
    vec![7; (n * n * 20) as usize].into()
}

/// A store with something in every table, as it is while it is open (the last is in the log alone) and closed; and its jobs.
async fn images() -> Result<([Image; 2], Vec<Job>), Failed> {
    let directory = tempfile::tempdir()?;
    let clock = clock();
    let store = open(directory.path(), &clock)?;
    for n in 0..JOBS {
        let job = Job { key: Some(samples::key(&n.to_string())), ..samples::job(n, clock.now()) };
        store.submit(job, body(n), None, &bounds(&*clock)).await?;
        store.put(&samples::operation(n, clock.now())).await?;
    }
    for n in 0..JOBS / 3 {
        let claim = claim(&store).await?.ok_or("it waits")?;
        let at = clock.now();
        let end = JobEnd::Final {
            status: JobStatus::Succeeded,
            error: None,
            result: Some((samples::facts(200, &body(n)), body(n))),
            at,
            expires_at: at.plus_ms(samples::LIFE_MS),
        };
        assert!(store.settle_job(&claim, end).await?);
    }
    let jobs = all(&store).await?;
    let open = image(directory.path())?;
    drop(store);
    Ok(([open, image(directory.path())?], jobs))
}

/// Opens a damaged image: it is refused with a word about the file, or all jobs are there, and no body is another one.
async fn opens_whole_or_not(image: &Image, jobs: &[Job]) -> Result<bool, Failed> {
    let directory = write(image)?;
    let store = match open(directory.path(), &clock()) {
        Ok(store) => store,
        Err(error) => {
            let named = error.message.contains(FILE) && error.message.len() > 60;
            assert!(named, "the message says which file and what to do: {error}");
            assert!(matches!(error.kind, StoreErrorKind::Corrupt | StoreErrorKind::Newer), "{error:?}");
            let left = self::image(directory.path())?;
            assert_eq!(&left[FILE], &image[FILE], "a refused file is left as it is");
            return Ok(false);
        }
    };
    assert_eq!(all(&store).await?, jobs);
    let mut whole = true;
    for (n, job) in jobs.iter().rev().enumerate() {
        let (input, result) = (store.input(&job.id).await, store.result(&job.id).await);
        let right = body(n as u64);
        let expected = match job.status {
            JobStatus::Succeeded => (None, Some(right)),
            _ => (Some(right), None),
        };
        for (found, expected) in [(input, expected.0), (result, expected.1)] {
            match found {
                Ok(found) => assert_eq!(found, expected),
                Err(error) => {
                    assert_eq!(error.kind, StoreErrorKind::Corrupt, "{error}");
                    whole = false;
                }
            }
        }
    }
    Ok(whole)
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
    let ([open, closed], jobs) = images().await?;
    assert!(open[LOG].len() > 10_000 && !closed.contains_key(LOG));
    assert!(opens_whole_or_not(&open, &jobs).await? && opens_whole_or_not(&closed, &jobs).await?);
    let mut rng = Rng::with_seed(seed);
    let mut found = 0;
    for _ in 0..rounds {
        let mut image = closed.clone();
        let bytes = image.get_mut(FILE).ok_or("it is there")?;
        if rng.u8(..6) == 0 {
            bytes.truncate(rng.usize(..bytes.len()));
        } else {
            damage(&mut rng, bytes);
        }
        found += u64::from(!opens_whole_or_not(&image, &jobs).await?);
    }
    assert!(found > rounds / 4, "{found} of {rounds} were found");
    Ok(())
}

#[tokio::test]
async fn damage_is_found_or_harmless() -> Done {
    damaged_in_many_ways(150, 1).await
}

#[tokio::test]
async fn slow_damage_is_found_or_harmless_in_many_places() -> Done {
    damaged_in_many_ways(2000, 2).await
}

#[tokio::test]
async fn foreign_files_are_left_alone() -> Done {
    let refusals = {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("foreign");
        let connection = rusqlite::Connection::open(&path)?;
        connection.execute_batch("PRAGMA application_id = 0x6e767477; CREATE TABLE theirs (x)")?;
        drop(connection);
        fs::read(path)?
    };
    let files: [(&[u8], &str); 4] = [
        (b"", "is empty"),
        (b"hello", "is not a database"),
        (&[b'x'; 10_000], "is not a database"),
        (&refusals, "another program"),
    ];
    for (bytes, says) in files {
        let directory = write(&Image::from([(FILE, bytes.to_vec())]))?;
        let error = refused(directory.path())?;
        assert_eq!(error.kind, StoreErrorKind::Corrupt);
        assert!(error.message.contains(says) && error.message.contains("move it away"), "{error}");
        assert!(error.message.contains("no jobs") && !error.message.contains("memory"), "{error}");
        assert_eq!(fs::read(directory.path().join(FILE))?, bytes);
    }
    Ok(())
}

#[tokio::test]
async fn changed_files_are_refused_with_the_reason() -> Done {
    let ([_, closed], _) = images().await?;
    let changes = [
        ("PRAGMA user_version = 3", StoreErrorKind::Newer, "format 3"),
        ("PRAGMA user_version = 1", StoreErrorKind::Corrupt, "not ours (untold"),
        ("PRAGMA user_version = 0", StoreErrorKind::Corrupt, "format 0"),
        ("PRAGMA application_id = 7", StoreErrorKind::Corrupt, "application id 7"),
        ("CREATE TABLE theirs (x)", StoreErrorKind::Corrupt, "theirs"),
        ("DROP TABLE results", StoreErrorKind::Corrupt, "tables"),
        ("UPDATE jobs SET removed_at = 0 WHERE sequence < 4", StoreErrorKind::Corrupt, "3 of 56 rows"),
        ("UPDATE jobs SET schema = 2 WHERE sequence = 1", StoreErrorKind::Corrupt, "1 of 56 rows"),
        ("UPDATE operations SET next_look_at = 1", StoreErrorKind::Corrupt, "24 of 56 rows"),
        ("UPDATE untold SET calls = 3 WHERE sequence < 3", StoreErrorKind::Corrupt, "2 of 56 rows"),
        ("DROP TABLE untold", StoreErrorKind::Corrupt, "tables"),
        ("DELETE FROM inputs WHERE sequence > 20", StoreErrorKind::Corrupt, "4 jobs are missing"),
        ("DELETE FROM results", StoreErrorKind::Corrupt, "8 jobs are missing"),
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

#[tokio::test]
async fn a_log_without_its_file_is_no_empty_store() -> Done {
    let ([open, _], _) = images().await?;
    let directory = write(&Image::from([(LOG, open[LOG].clone())]))?;
    let error = refused(directory.path())?;
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
    assert!(error.message.contains(LOG), "{error}");
    assert!(!directory.path().join(FILE).exists());
    Ok(())
}

#[tokio::test]
async fn a_damaged_log_is_refused() -> Done {
    let ([mut open, _], _) = images().await?;
    let log = open.get_mut(LOG).ok_or("it is there")?;
    let middle = log.len() / 2;
    log[middle] ^= 0x40;
    let directory = write(&open)?;
    let error = refused(directory.path())?;
    assert!(
        error.kind == StoreErrorKind::Corrupt && error.message.contains("operations and jobs"),
        "{error}"
    );
    Ok(())
}
