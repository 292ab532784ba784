//! A file of ours: how it is found or made, locked, and looked at before anything in it is trusted.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::failure;
use super::wal::{self, WalState};
use crate::{StoreError, StoreErrorKind};

/// The first version without the bug that corrupts a log which two connections reset at once.
const OLDEST_SQLITE: i32 = 3_051_003;

/// How long another program that looks into the file may hold it up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What the log may keep of the disk between two uses, in bytes.
const LOG_KEEPS: i64 = 16 * 1024 * 1024;

/// A kind of file.
pub(crate) struct Format {
    /// Its name.
    pub(crate) file: &'static str,
    /// The name of the file beside it that is locked while it is open.
    pub(crate) lock: &'static str,
    /// What marks a SQLite file as one of these.
    pub(crate) application_id: u32,
    /// The versions of the tables, and of what may stand in them, that are read. A file begins with the first, and has a later one from when
    /// something stands in it that a program of the version before would take for damage ([`raise_version`]).
    pub(crate) versions: RangeInclusive<u32>,
    /// Each table and index, as SQLite keeps its text.
    pub(crate) objects: &'static [(&'static str, &'static str)],
    /// Those that a file of the last version has beside them.
    pub(crate) added: &'static [(&'static str, &'static str)],
    /// Writes what stands in an empty one.
    pub(crate) first_rows: fn(&Connection) -> rusqlite::Result<()>,
    /// Whether pages that are free can be given back to the disk.
    pub(crate) shrinks: bool,
    /// What is lost with it, for people.
    pub(crate) holds: &'static str,
    /// What one can do once it is out of the way, for people.
    pub(crate) anew: &'static str,
}

/// A file that may be ours: its header and its log are, and nobody else has it.
pub(crate) struct Found {
    pub(crate) place: Place,
    pub(crate) lock: Lock,
    pub(crate) connection: Connection,
}

/// Finds the file in `directory`, or makes it.
pub(crate) fn find(directory: &Path, format: &'static Format) -> Result<Found, StoreError> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        let version = rusqlite::version();
        return Err(StoreErrorKind::Io.error(format!(
            "this program was built with SQLite {version}, which can damage its own files: build it with 3.51.3 or later"
        )));
    }
    make_directory(directory)?;
    let lock = take_lock(directory, format)?;
    let place = Place { path: directory.join(format.file), format };
    match fs::metadata(&place.path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(place.not_ours("is not a file")),
        Err(e) if e.kind() == ErrorKind::NotFound => place.create()?,
        Err(e) => return Err(place.no_access(&e)),
    }
    place.check_header()?;
    place.check_log()?;
    let connection = place.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    Ok(Found { place, lock, connection })
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

/// What keeps other processes out, until it is dropped.
pub(crate) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it is not enough: a child that is just being started has the file open too, until it becomes its own program.
        let _ = self.0.unlock();
    }
}

fn take_lock(directory: &Path, format: &Format) -> Result<Lock, StoreError> {
    let path = directory.join(format.lock);
    let failed = |e: std::io::Error| StoreErrorKind::Io.error(format!("cannot lock {}: {e}", path.display()));
    let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let lock = lock.map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(Lock(lock)),
        Err(TryLockError::WouldBlock) => Err(StoreErrorKind::InUse.error(format!(
            "another process uses the store directory {}: stop it, or give this one a directory of its own",
            directory.display()
        ))),
        Err(TryLockError::Error(e)) => Err(failed(e)),
    }
}

/// The file, and what there is to say about it.
pub(crate) struct Place {
    path: PathBuf,
    format: &'static Format,
}

/// Why a file is not opened: a failure of SQLite, or one that says more already.
pub(crate) enum Refused {
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

    /// It is none of ours, as `what` says.
    pub(crate) fn not_ours(&self, what: &str) -> StoreError {
        StoreErrorKind::Corrupt.error(format!(
            "{} {what}: nevertwice does not touch it; move it away to {}, \
             or use another store directory",
            self.path.display(),
            self.format.anew
        ))
    }

    /// It is ours and damaged, as `what` says.
    pub(crate) fn damaged(&self, what: &str) -> StoreError {
        StoreErrorKind::Corrupt.error(format!(
            "{} is damaged ({what}): restore it from a backup, \
             or move all files named {}* away to {}",
            self.path.display(),
            self.format.file,
            self.format.anew
        ))
    }

    /// It could not be opened.
    pub(crate) fn failed(&self, error: &rusqlite::Error) -> StoreError {
        match failure::kind(error) {
            StoreErrorKind::Corrupt => self.damaged(&error.to_string()),
            kind => kind.error(format!("cannot open {}: {error}", self.path.display())),
        }
    }

    fn newer(&self, version: u32) -> StoreError {
        StoreErrorKind::Newer.error(format!(
            "{} has format {version}, and this version of nevertwice knows formats up to {}: \
             run the newer version, or move the file away to {}",
            self.path.display(),
            self.format.versions.end(),
            self.format.anew
        ))
    }

    /// Another connection to it.
    pub(crate) fn connect(&self, access: OpenFlags) -> Result<Connection, StoreError> {
        connect(&self.path, access).map_err(|e| self.failed(&e))
    }

    /// Makes an empty store under another name, and gives it its name when it is complete: a crash in between leaves
    /// nothing that could be taken for a store.
    fn create(&self) -> Result<(), StoreError> {
        for suffix in ["-wal", "-journal"] {
            let left = self.beside(suffix);
            if fs::metadata(&left).is_ok_and(|found| found.len() > 0) {
                return Err(StoreErrorKind::Corrupt.error(format!(
                    "{} is there without {}: bring that file back, or move this one away to {}",
                    left.display(),
                    self.format.file,
                    self.format.anew
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
        self.fill(unfinished)
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
            (id, version) if id == self.format.application_id => self.check_version(version),
            (id, _) => Err(self.not_ours(&format!("is a database of another program (application id {id})"))),
        }
    }

    fn check_log(&self) -> Result<(), StoreError> {
        let path = self.beside("-wal");
        match wal::check(&path) {
            Ok(WalState::Sound) => Ok(()),
            Ok(WalState::Damaged) => Err(StoreErrorKind::Corrupt.error(format!(
                "{} is damaged, and {} would be lost without a word: restore it from a backup, \
                 or move it away to go on with what is in {}",
                path.display(),
                self.format.holds,
                self.format.file
            ))),
            Err(e) => Err(StoreErrorKind::Io.error(format!("cannot read {}: {e}", path.display()))),
        }
    }

    fn check_version(&self, version: u32) -> Result<(), StoreError> {
        if self.format.versions.contains(&version) {
            Ok(())
        } else if version > *self.format.versions.end() {
            Err(self.newer(version))
        } else {
            Err(self.damaged(&format!("format {version} was never written")))
        }
    }

    /// Whether version and tables are ours. Whatever is refused from now on stays as it is, its log included, until
    /// [`Place::take_over`].
    pub(crate) fn check_tables(&self, connection: &Connection) -> Result<(), Refused> {
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let version = version(connection)?;
        self.check_version(version).map_err(Refused::Said)?;
        let mut statement = connection.prepare(
            "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL OR name NOT LIKE 'sqlite_autoindex_%'",
        )?;
        let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let found = found.collect::<rusqlite::Result<HashMap<String, Option<String>>>>()?;
        let added = if version == *self.format.versions.end() { self.format.added } else { &[] };
        let mut objects = self.format.objects.iter().chain(added);
        if let Some(other) = found.keys().find(|name| objects.clone().all(|(ours, _)| ours != name)) {
            return Err(Refused::Said(self.not_ours(&format!("has a table that is not ours ({other})"))));
        }
        let right = objects.all(|(name, sql)| found.get(*name).is_some_and(|s| s.as_deref() == Some(*sql)));
        if right { Ok(()) } else { Err(Refused::Said(self.damaged("its tables are not as they were made"))) }
    }

    /// Asks SQLite whether its structures are whole: `check` is a pragma that answers `ok`.
    pub(crate) fn check_pages(&self, connection: &Connection, check: &str) -> Result<(), Refused> {
        let checked: String = connection.query_row(&format!("PRAGMA {check}"), [], |row| row.get(0))?;
        if checked == "ok" { Ok(()) } else { Err(Refused::Said(self.damaged(&checked))) }
    }

    /// All of it was found good: it is written from now on.
    pub(crate) fn take_over(&self, connection: &Connection) -> Result<(), Refused> {
        let mode: String = connection.query_row("PRAGMA journal_mode = wal", [], |row| row.get(0))?;
        if mode != "wal" {
            let message =
                format!("cannot open {}: its file system has no write-ahead log", self.path.display());
            return Err(Refused::Said(StoreErrorKind::Io.error(message)));
        }
        connection.pragma_update(None, "synchronous", "full")?;
        connection.query_row(&format!("PRAGMA journal_size_limit = {LOG_KEEPS}"), [], |_| Ok(()))?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        Ok(())
    }

    /// Makes the tables in an empty file.
    fn fill(&self, path: &Path) -> rusqlite::Result<()> {
        let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.pragma_update(None, "synchronous", "full")?;
        if self.format.shrinks {
            connection.pragma_update(None, "auto_vacuum", "incremental")?;
        }
        let transaction = connection.transaction()?;
        transaction.pragma_update(None, "application_id", self.format.application_id)?;
        transaction.pragma_update(None, "user_version", self.format.versions.start())?;
        for (_, sql) in self.format.objects {
            transaction.execute(sql, [])?;
        }
        (self.format.first_rows)(&transaction)?;
        transaction.commit()?;
        connection.query_row("PRAGMA journal_mode = wal", [], |_| Ok(()))?;
        connection.close().map_err(|(_, error)| error)
    }

    /// What a refusal says.
    pub(crate) fn say(&self, refused: Refused) -> StoreError {
        match refused {
            Refused::Said(error) => error,
            Refused::Sqlite(error) => self.failed(&error),
        }
    }
}

/// The version of the file.
pub(crate) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))
}

/// From now on the file has at least this version, in the transaction that is under way: older programs say that it is newer, and do
/// not take it for damaged.
pub(crate) fn raise_version(connection: &Connection, to: u32) -> rusqlite::Result<()> {
    if version(connection)? < to {
        connection.pragma_update(None, "user_version", to)?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::FORMAT;

    #[test]
    fn a_lock_ends_with_its_holder_whoever_has_the_file_open() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let lock = take_lock(directory.path(), &FORMAT)?;
        // as a child has it that was forked a moment ago
        let inherited = lock.0.try_clone()?;
        assert!(take_lock(directory.path(), &FORMAT).is_err());
        drop(lock);
        take_lock(directory.path(), &FORMAT)?;
        drop(inherited);
        Ok(())
    }
}
