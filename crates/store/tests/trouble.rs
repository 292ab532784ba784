//! What the embedded store says in the log when something is wrong: each thing once.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nevertwice_domain::clock::{Clock, ManualClock, Millis};
use nevertwice_domain::entry::{Candidate, Selector};
use nevertwice_store::sqlite::{SqliteOptions, SqliteStore};
use nevertwice_store::suite::samples;
use nevertwice_store::{Fence, Recorded, RefusalStore, StoreError, StoreErrorKind};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

type Failed = Box<dyn std::error::Error>;
type Done = Result<(), Failed>;

const FREE: Fence = Fence(u64::MAX);
const FILE: &str = "refusals.sqlite3";

/// Keeps the lines of all threads, of a store's own ones too.
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The lines from now on; one test at a time.
struct Watch {
    lines: Arc<Mutex<Vec<String>>>,
    _alone: MutexGuard<'static, ()>,
}

impl Watch {
    fn begin() -> Result<Self, Failed> {
        static LINES: OnceLock<Arc<Mutex<Vec<String>>>> = OnceLock::new();
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if LINES.get().is_none() {
            let lines = LINES.get_or_init(Arc::default);
            tracing::subscriber::set_global_default(Log(Arc::clone(lines)))?;
        }
        let lines = Arc::clone(LINES.get_or_init(Arc::default));
        lines.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(Self { lines, _alone: alone })
    }

    fn count(&self, text: &str) -> usize {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(text)).count()
    }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Millis(1_700_000_000_000)))
}

fn open(directory: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(directory, clock(), SqliteOptions { near_bytes: 0, ..SqliteOptions::default() })
}

fn big(n: u64) -> Candidate {
    let mut candidate = samples::candidate(n);
    candidate.entry.body = vec![n.to_le_bytes()[0]; 60_000].into();
    candidate
}

fn run(test: impl AsyncFnOnce() -> Done) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(test())
}

#[test]
fn a_damaged_row_is_logged_once() -> Done {
    let watch = Watch::begin()?;
    run(async || {
        let directory = tempfile::tempdir()?;
        let store = open(directory.path())?;
        store.record(samples::candidate(1), FREE).await?;
        store.record(samples::candidate(2), FREE).await?;
        let intruder = rusqlite::Connection::open(directory.path().join(FILE))?;
        intruder.execute("UPDATE entries SET body = x'00'", [])?;
        for _ in 0..3 {
            assert!(store.recall(&samples::fingerprint(1)).await?.entry.is_none());
            assert!(store.show(&samples::fingerprint(1)).await?.is_none());
        }
        assert_eq!(watch.count("is damaged and was dropped"), 1);
        assert!(store.recall(&samples::fingerprint(2)).await?.entry.is_none());
        assert_eq!(watch.count("is damaged and was dropped"), 2);
        assert_eq!(watch.count("ERROR"), 2);
        assert_eq!(watch.count(&format!("fingerprint={}", samples::fingerprint(2))), 1);
        Ok(())
    })
}

/// The chains of pages that hold two bodies are torn: SQLite can neither read the rows nor remove them.
#[test]
fn a_row_that_cannot_be_read_harms_no_other() -> Done {
    let _watch = Watch::begin()?;
    run(async || {
        const ROWS: u64 = 5;
        let directory = tempfile::tempdir()?;
        let store = open(directory.path())?;
        for n in 1..=ROWS {
            store.record(big(n), FREE).await?;
        }
        store.close().await?;
        let store = open(directory.path())?;
        let path = directory.path().join(FILE);
        let bytes = fs::read(&path)?;
        let page = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
        let filled_with = |byte: u8| {
            let full = |at: &usize| bytes[at + 4..at + page].iter().all(|b| *b == byte);
            (0..bytes.len()).step_by(page).filter(full).collect::<Vec<_>>()
        };
        let file = OpenOptions::new().write(true).open(&path)?;
        for at in filled_with(1).into_iter().chain(filled_with(2)) {
            file.write_all_at(&[0xff; 4], at as u64)?;
        }
        // A commit by another makes SQLite forget what it keeps of the file in memory, where all is well.
        rusqlite::Connection::open(&path)?.pragma_update(None, "user_version", 2)?;
        assert!(store.recall(&samples::fingerprint(1)).await?.entry.is_none());
        assert!(store.recall(&samples::fingerprint(2)).await?.entry.is_none());
        assert_eq!(store.entries().await?, ROWS - 2);
        for n in [1, 2] {
            // Its place in the file may be lost for good; nobody else's is.
            let (own, other) = tokio::join!(
                store.record(samples::candidate(n), FREE),
                store.record(samples::candidate(1000 + n), FREE),
            );
            assert!(matches!(other?, Recorded::Stored(_)));
            match own {
                Ok(own) => assert!(matches!(own, Recorded::Stored(_)), "{own:?}"),
                Err(error) => assert_eq!(error.kind, StoreErrorKind::Corrupt),
            }
        }
        for n in 3..=ROWS {
            let entry = store.recall(&samples::fingerprint(n)).await?.entry.ok_or("is there")?;
            assert_eq!(entry.body, big(n).entry.body);
        }
        Ok(())
    })
}

#[test]
fn a_store_that_cannot_be_written_says_so_once_and_when_it_can_again() -> Done {
    let watch = Watch::begin()?;
    run(async || {
        let directory = tempfile::tempdir()?;
        let store = open(directory.path())?;
        let intruder = rusqlite::Connection::open(directory.path().join(FILE))?;
        intruder.execute_batch(
            "CREATE TRIGGER stop BEFORE INSERT ON tallies BEGIN SELECT RAISE(FAIL, 'not today'); END",
        )?;
        for n in 0..5 {
            assert!(store.record(samples::candidate(n), FREE).await.is_err());
            // A commit of nothing is none that succeeded.
            assert_eq!(store.forget(&Selector::key(samples::fingerprint(9))).await?, 0);
        }
        assert_eq!((watch.count("cannot be written"), watch.count("written again")), (1, 0));
        intruder.execute_batch("DROP TRIGGER stop")?;
        assert!(matches!(store.record(samples::candidate(1), FREE).await?, Recorded::Stored(_)));
        assert_eq!((watch.count("cannot be written"), watch.count("written again")), (1, 1));
        Ok(())
    })
}

#[test]
fn counts_that_cannot_be_written_are_reported_at_the_end() -> Done {
    let watch = Watch::begin()?;
    run(async || {
        let directory = tempfile::tempdir()?;
        let store = open(directory.path())?;
        store.record(samples::candidate(1), FREE).await?;
        let intruder = rusqlite::Connection::open(directory.path().join(FILE))?;
        intruder.execute_batch(
            "CREATE TRIGGER stop BEFORE INSERT ON tallies BEGIN SELECT RAISE(FAIL, 'not today'); END",
        )?;
        let key = samples::fingerprint(1);
        let clock = clock();
        let began = std::time::Instant::now();
        // Until the writer has tried by itself, and then some.
        while watch.count("cannot be written") == 0 {
            store.count_replay(&key, &samples::tenant("a"), clock.now());
            assert!(began.elapsed().as_secs() < 30, "it was never tried");
            tokio::task::yield_now().await;
        }
        assert!(store.record(samples::candidate(2), FREE).await.is_err());
        assert_eq!(watch.count("cannot be written"), 1);
        let error = store.close().await.err().ok_or("the counts are lost without a word")?;
        assert!(error.message.contains("not today"), "{error}");
        Ok(())
    })
}
