//! What SQLite's failures mean to the users of a store.

use rusqlite::{ErrorCode, ffi};

use crate::{StoreError, StoreErrorKind};

/// The kind of a failure of SQLite.
pub(crate) fn kind(error: &rusqlite::Error) -> StoreErrorKind {
    let extended = error.sqlite_error().map_or(0, |e| e.extended_code);
    if extended == ffi::SQLITE_IOERR_SHORT_READ || extended == ffi::SQLITE_IOERR_CORRUPTFS {
        // The file ends before it says it does.
        return StoreErrorKind::Corrupt;
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::OutOfMemory) => StoreErrorKind::Full,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreErrorKind::Corrupt,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreErrorKind::Busy,
        Some(_) => StoreErrorKind::Io,
        // a value of another type or size than the schema has
        None => StoreErrorKind::Corrupt,
    }
}

/// Whether what was asked for is damaged, which says nothing about the rest of the file.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    kind(error) == StoreErrorKind::Corrupt && error.sqlite_error_code() != Some(ErrorCode::NotADatabase)
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        of("the refusal store", &error)
    }
}

/// What failed, and how.
pub(crate) fn of(what: &str, error: &rusqlite::Error) -> StoreError {
    kind(error).error(format!("{what} failed: {error}"))
}
