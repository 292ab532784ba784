//! Opening the store: take the lock, find the file or make it, and trust nothing in it that was not verified.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::tenant::UpstreamName;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::index::Row;
use super::schema::{
    self, APPLICATION_ID, ENTRY_COLUMNS, Malformed, OBJECTS, OLDEST_VERSION, STRIKE_COLUMNS, StoredEntry,
    StoredStrike, StoredTally, TALLY_COLUMNS, Totals, USER_VERSION,
};
use super::wal::{self, WalState};
use super::{SqliteOptions, failure};
use crate::{StoreError, StoreErrorKind};

const FILE_NAME: &str = "refusals.sqlite3";

/// The first version without the bug that corrupts a log which two connections reset at once.
const OLDEST_SQLITE: i32 = 3_051_003;

/// How long another program that looks into the file may hold it up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What the log may keep of the disk between two uses, in bytes.
const LOG_KEEPS: i64 = 16 * 1024 * 1024;

/// A store that was found good.
pub(super) struct Opened {
    pub(super) lock: File,
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    pub(super) rows: Vec<Row>,
    pub(super) strikes: Vec<Fingerprint>,
    pub(super) accepted: Vec<UpstreamName>,
    pub(super) totals: Totals,
}

/// Opens the store in `directory`.
pub(super) fn open(directory: &Path, options: &SqliteOptions) -> Result<Opened, StoreError> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        let version = rusqlite::version();
        return Err(StoreErrorKind::Io.error(format!(
            "this program was built with SQLite {version}, which can damage its own files: build it with 3.51.3 or later"
        )));
    }
    make_directory(directory)?;
    let lock = take_lock(directory)?;
    let place = Place { path: directory.join(FILE_NAME) };
    match fs::metadata(&place.path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(place.not_ours("is not a file")),
        Err(e) if e.kind() == ErrorKind::NotFound => place.create()?,
        Err(e) => return Err(place.no_access(&e)),
    }
    place.check_header()?;
    place.check_log()?;
    let writer = place.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    place.verify(writer, lock, options).map_err(|refused| match refused {
        Refused::Said(error) => error,
        Refused::Sqlite(error) => place.failed(&error),
    })
}

fn make_directory(directory: &Path) -> Result<(), StoreError> {
    let failed = |e: std::io::Error| {
        StoreErrorKind::Io.error(format!("cannot use the store directory {}: {e}", directory.display()))
    };
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(failed(ErrorKind::NotADirectory.into())),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)
        }
        Err(e) => Err(failed(e)),
    }
}

fn take_lock(directory: &Path) -> Result<File, StoreError> {
    let path = directory.join("lock");
    let failed = |e: std::io::Error| StoreErrorKind::Io.error(format!("cannot lock {}: {e}", path.display()));
    let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let lock = lock.map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StoreErrorKind::InUse.error(format!(
            "another process uses the store directory {}: stop it, or give this one a directory of its own",
            directory.display()
        ))),
        Err(TryLockError::Error(e)) => Err(failed(e)),
    }
}

/// The file, and what there is to say about it.
struct Place {
    path: PathBuf,
}

/// Why a file is not opened: a failure of SQLite, or one that says more already.
enum Refused {
    Said(StoreError),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Refused {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Place {
    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        name.into()
    }

    fn no_access(&self, error: &std::io::Error) -> StoreError {
        StoreErrorKind::Io.error(format!("cannot open {}: {error}", self.path.display()))
    }

    fn not_ours(&self, what: &str) -> StoreError {
        StoreErrorKind::Corrupt.error(format!(
            "{} {what}: nevertwice does not touch it; move it away to start with an empty memory, \
             or use another store directory",
            self.path.display()
        ))
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreErrorKind::Corrupt.error(format!(
            "{} is damaged ({what}): restore it from a backup, \
             or move all files named {FILE_NAME}* away to start with an empty memory",
            self.path.display()
        ))
    }

    fn failed(&self, error: &rusqlite::Error) -> StoreError {
        match failure::kind(error) {
            StoreErrorKind::Corrupt => self.damaged(&error.to_string()),
            kind => kind.error(format!("cannot open {}: {error}", self.path.display())),
        }
    }

    fn newer(&self, version: u32) -> StoreError {
        StoreErrorKind::Newer.error(format!(
            "{} has format {version}, and this version of nevertwice knows formats up to {USER_VERSION}: \
             run the newer version, or move the file away to start with an empty memory",
            self.path.display()
        ))
    }

    fn connect(&self, access: OpenFlags) -> Result<Connection, StoreError> {
        connect(&self.path, access).map_err(|e| self.failed(&e))
    }

    /// Makes an empty store under another name, and gives it its name when it is complete: a crash in between leaves
    /// nothing that could be taken for a store.
    fn create(&self) -> Result<(), StoreError> {
        for suffix in ["-wal", "-journal"] {
            let left = self.beside(suffix);
            if fs::metadata(&left).is_ok_and(|found| found.len() > 0) {
                return Err(StoreErrorKind::Corrupt.error(format!(
                    "{} is there without {FILE_NAME}: bring that file back, or move this one away to start with an empty memory",
                    left.display()
                )));
            }
        }
        let unfinished = self.beside(".new");
        let made = self.create_as(&unfinished);
        if made.is_err() {
            // What matters is the first failure; a file that stays is replaced by the next attempt.
            let _ = fs::remove_file(&unfinished);
        }
        made
    }

    fn create_as(&self, unfinished: &Path) -> Result<(), StoreError> {
        let io = |e: std::io::Error| {
            StoreErrorKind::Io.error(format!("cannot create {}: {e}", self.path.display()))
        };
        for suffix in ["", "-journal", "-wal", "-shm"] {
            let mut left = unfinished.to_path_buf().into_os_string();
            left.push(suffix);
            match fs::remove_file(left) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(io(e)),
                _ => {}
            }
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(unfinished);
        let file = file.map_err(io)?;
        fill(unfinished)
            .map_err(|e| failure::kind(&e).error(format!("cannot create {}: {e}", self.path.display())))?;
        file.sync_all().map_err(io)?;
        fs::rename(unfinished, &self.path).map_err(io)?;
        let directory = self.path.parent().unwrap_or(Path::new("."));
        File::open(directory).and_then(|d| d.sync_all()).map_err(io)
    }

    /// Looks at the first bytes before SQLite does, which would repair another program's file as its own.
    fn check_header(&self) -> Result<(), StoreError> {
        let mut header = Vec::with_capacity(100);
        let read = File::open(&self.path).and_then(|f| f.take(100).read_to_end(&mut header));
        read.map_err(|e| self.no_access(&e))?;
        if header.is_empty() {
            return Err(self.not_ours("is empty"));
        }
        if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
            return Err(self.not_ours("is not a database"));
        }
        let word = |at: usize| header[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        match (word(68), word(60)) {
            (APPLICATION_ID, OLDEST_VERSION..=USER_VERSION) => Ok(()),
            (APPLICATION_ID, version) if version > USER_VERSION => Err(self.newer(version)),
            (APPLICATION_ID, version) => Err(self.damaged(&format!("format {version} was never written"))),
            (id, _) => Err(self.not_ours(&format!("is a database of another program (application id {id})"))),
        }
    }

    fn check_log(&self) -> Result<(), StoreError> {
        let path = self.beside("-wal");
        match wal::check(&path) {
            Ok(WalState::Sound) => Ok(()),
            Ok(WalState::Damaged) => Err(StoreErrorKind::Corrupt.error(format!(
                "{} is damaged, and verdicts would be lost without a word: restore it from a backup, \
                 or move it away to go on with what is in {FILE_NAME}",
                path.display()
            ))),
            Err(e) => Err(StoreErrorKind::Io.error(format!("cannot read {}: {e}", path.display()))),
        }
    }

    /// Verifies everything and reads what memory needs to know.
    fn verify(&self, writer: Connection, lock: File, options: &SqliteOptions) -> Result<Opened, Refused> {
        // A file that is refused is left as it is, its log included.
        writer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let version = writer.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if !(OLDEST_VERSION..=USER_VERSION).contains(&version) {
            return Err(Refused::Said(self.newer(version)));
        }
        let checked: String = writer.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if checked != "ok" {
            return Err(Refused::Said(self.damaged(&checked)));
        }
        self.verify_schema(&writer)?;
        let contents = read_all(&writer)?;
        if contents.malformed > 0 {
            let what = format!("{} of {} rows do not verify", contents.malformed, contents.seen);
            return Err(Refused::Said(self.damaged(&what)));
        }
        if !contents.is_complete() {
            return Err(Refused::Said(self.damaged("rows are missing")));
        }

        let mode: String = writer.query_row("PRAGMA journal_mode = wal", [], |row| row.get(0))?;
        if mode != "wal" {
            let message =
                format!("cannot open {}: its file system has no write-ahead log", self.path.display());
            return Err(Refused::Said(StoreErrorKind::Io.error(message)));
        }
        writer.pragma_update(None, "synchronous", "full")?;
        if version < USER_VERSION {
            // all of it was found good: from now on older programs say that it is newer, and do not take it for damaged
            writer.pragma_update(None, "user_version", USER_VERSION)?;
        }
        writer.query_row(&format!("PRAGMA journal_size_limit = {LOG_KEEPS}"), [], |_| Ok(()))?;
        if let Some(bytes) = options.max_file_bytes {
            let page: i64 = writer.pragma_query_value(None, "page_size", |row| row.get(0))?;
            let pages = (i64::try_from(bytes).unwrap_or(i64::MAX) / page.max(1)).clamp(1, u32::MAX.into());
            writer.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        }
        writer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        let reader = connect(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let Contents { rows, strikes, accepted, totals, .. } = contents;
        Ok(Opened { lock, writer, reader, rows, strikes, accepted, totals: totals.unwrap_or_default() })
    }

    fn verify_schema(&self, connection: &Connection) -> Result<(), Refused> {
        let mut statement = connection.prepare(
            "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL OR name NOT LIKE 'sqlite_autoindex_%'",
        )?;
        let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let found = found.collect::<rusqlite::Result<HashMap<String, Option<String>>>>()?;
        if let Some(other) = found.keys().find(|name| OBJECTS.iter().all(|(ours, _)| ours != name)) {
            return Err(Refused::Said(self.not_ours(&format!("has a table that is not ours ({other})"))));
        }
        let right =
            OBJECTS.iter().all(|(name, sql)| found.get(*name).is_some_and(|s| s.as_deref() == Some(*sql)));
        if right { Ok(()) } else { Err(Refused::Said(self.damaged("its tables are not as they were made"))) }
    }
}

fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    Ok(connection)
}

/// Makes the tables in an empty file.
fn fill(path: &Path) -> rusqlite::Result<()> {
    let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.pragma_update(None, "synchronous", "full")?;
    let transaction = connection.transaction()?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", USER_VERSION)?;
    for (_, sql) in OBJECTS {
        transaction.execute(sql, [])?;
    }
    Totals::default().insert(&transaction)?;
    transaction.commit()?;
    connection.query_row("PRAGMA journal_mode = wal", [], |_| Ok(()))?;
    connection.close().map_err(|(_, error)| error)
}

/// What a file holds.
#[derive(Default)]
struct Contents {
    rows: Vec<Row>,
    strikes: Vec<Fingerprint>,
    accepted: Vec<UpstreamName>,
    totals: Option<Totals>,
    seen: u64,
    malformed: u64,
}

impl Contents {
    /// Takes a row if it verifies.
    fn take<T>(&mut self, row: Result<T, Malformed>) -> Option<T> {
        self.seen += 1;
        self.malformed += u64::from(row.is_err());
        row.ok()
    }

    fn is_complete(&self) -> bool {
        self.totals.as_ref().is_some_and(|totals| {
            let counts = (self.rows.len() as u64, self.strikes.len() as u64, self.accepted.len() as u64);
            counts == (totals.entries, totals.strikes, totals.accepted)
        })
    }
}

fn read_all(connection: &Connection) -> rusqlite::Result<Contents> {
    let mut contents = Contents::default();
    let mut tallies = HashMap::new();
    let mut statement = connection.prepare(&format!("SELECT {TALLY_COLUMNS} FROM tallies"))?;
    for tally in statement.query_map([], StoredTally::decode)? {
        if let Some(tally) = contents.take(tally?) {
            tallies.insert(tally.sequence, tally);
        }
    }
    let mut statement = connection.prepare(&format!("SELECT {ENTRY_COLUMNS} FROM entries"))?;
    let mut unknown = 0;
    for entry in statement.query_map([], StoredEntry::decode)? {
        let Some(StoredEntry { sequence, entry }) = contents.take(entry?) else {
            unknown += 1;
            continue;
        };
        match tallies.remove(&sequence) {
            Some(StoredTally { suspect, tally, .. }) => {
                contents.rows.push(Row::of(sequence, &entry, suspect, tally))
            }
            None => contents.malformed += 1,
        }
    }
    // A row that does not verify has left its tally behind.
    contents.malformed += (tallies.len() as u64).saturating_sub(unknown);
    let mut statement = connection.prepare(&format!("SELECT {STRIKE_COLUMNS} FROM strikes"))?;
    for strike in statement.query_map([], StoredStrike::decode)? {
        if let Some(strike) = contents.take(strike?) {
            contents.strikes.push(strike.fingerprint);
        }
    }
    let mut statement = connection.prepare("SELECT upstream, checksum FROM accepted")?;
    for upstream in statement.query_map([], schema::decode_accepted)? {
        let upstream = contents.take(upstream?);
        contents.accepted.extend(upstream);
    }
    let mut statement = connection.prepare("SELECT * FROM totals")?;
    for totals in statement.query_map([], Totals::decode)? {
        contents.totals = contents.take(totals?);
    }
    Ok(contents)
}
