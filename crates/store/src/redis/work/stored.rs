//! The form in which operations and jobs stand in Redis: a byte for the version, and JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{StoreError, StoreErrorKind};

/// The version that this program writes, and the only one that it reads.
const VERSION: u8 = b'1';

pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let mut out = vec![VERSION];
    match serde_json::to_writer(&mut out, value) {
        Ok(()) => Ok(out),
        Err(error) => Err(StoreErrorKind::Corrupt.error(format!("not to be written down: {error}"))),
    }
}

pub(super) fn decode<T: DeserializeOwned>(stored: &[u8]) -> Result<T, StoreError> {
    match stored.split_first() {
        Some((&VERSION, json)) => serde_json::from_slice(json).map_err(|error| {
            // the error may quote what it could not read
            let place = format!("line {}, column {}", error.line(), error.column());
            StoreErrorKind::Corrupt.error(format!("an operation or a job in Redis is damaged at {place}"))
        }),
        Some((version, _)) if version.is_ascii_alphanumeric() => Err(StoreErrorKind::Newer.error(format!(
            "an operation or a job in Redis has version {}, this program reads {}",
            char::from(*version),
            char::from(VERSION)
        ))),
        _ => Err(StoreErrorKind::Corrupt.error("an operation or a job in Redis is damaged")),
    }
}
