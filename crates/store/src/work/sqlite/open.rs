//! Opening the file: every operation and every job is verified, one after the other, so that it costs no memory. Bodies are
//! verified when they are read.

use std::fs::File;
use std::path::Path;

use nevertwice_domain::job::JobStatus;
use rusqlite::{Connection, OpenFlags};

use super::schema::{
    self, FORMAT, JOB_COLUMNS, OPERATION_COLUMNS, StoredJob, StoredOperation, StoredUntold, UNTOLD_COLUMNS,
};
use super::steps::Counts;
use crate::StoreError;
use crate::sqlite::file::{self, Found, Place, Refused};
use crate::work::life;

/// A file that was found good.
pub(super) struct Opened {
    pub(super) lock: File,
    pub(super) writer: Connection,
    pub(super) readers: [Connection; 2],
    pub(super) counts: Counts,
}

/// Opens the file in `directory`.
pub(super) fn open(directory: &Path) -> Result<Opened, StoreError> {
    let Found { place, lock, connection } = file::find(directory, &FORMAT)?;
    verify(&place, connection, lock).map_err(|refused| place.say(refused))
}

fn verify(place: &Place, mut writer: Connection, lock: File) -> Result<Opened, Refused> {
    place.check_tables(&writer)?;
    let tables: &[_] = match schema::has_untold(&writer)? {
        true => &["jobs", "operations", "untold"],
        false => &["jobs", "operations"],
    };
    for table in tables {
        place.check_pages(&writer, &format!("integrity_check({table})"))?;
    }
    let mut counts = Counts::default();
    let mut running = Vec::new();
    let (mut seen, mut malformed, mut without) = (0_u64, 0_u64, 0_u64);
    {
        let mut statement = writer.prepare(&format!("SELECT {JOB_COLUMNS} FROM jobs"))?;
        for stored in statement.query_map([], StoredJob::decode)? {
            seen += 1;
            let Ok(stored) = stored? else {
                malformed += 1;
                continue;
            };
            let whole = (!life::keeps_input(&stored.job) || has_body(&writer, "inputs", &stored)?)
                && (stored.job.result.is_none() || has_body(&writer, "results", &stored)?);
            without += u64::from(!whole);
            counts.add(&stored.job, 1);
            if stored.job.status == JobStatus::Running {
                running.push(stored);
            }
        }
        let mut statement = writer.prepare(&format!("SELECT {OPERATION_COLUMNS} FROM operations"))?;
        for stored in statement.query_map([], StoredOperation::decode)? {
            seen += 1;
            match stored? {
                Ok(stored) => *counts.of_kind(life::is_minted(&stored.operation)) += 1,
                Err(_) => malformed += 1,
            }
        }
        if tables.contains(&"untold") {
            let mut statement = writer.prepare(&format!("SELECT {UNTOLD_COLUMNS} FROM untold"))?;
            for stored in statement.query_map([], StoredUntold::decode)? {
                seen += 1;
                malformed += u64::from(stored?.is_err());
            }
        }
    }
    if malformed > 0 {
        let what = format!("{malformed} of {seen} rows do not verify");
        return Err(Refused::Said(place.damaged(&what)));
    }
    if without > 0 {
        return Err(Refused::Said(place.damaged(&format!("bodies of {without} jobs are missing"))));
    }
    place.take_over(&writer)?;
    lapse(&mut writer, running)?;
    let reader = || place.connect(OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(Refused::Said);
    let readers = [reader()?, reader()?];
    Ok(Opened { lock, writer, readers, counts })
}

fn has_body(connection: &Connection, table: &str, of: &StoredJob) -> rusqlite::Result<bool> {
    connection.prepare_cached(&format!("SELECT 1 FROM {table} WHERE sequence = ?"))?.exists([of.sequence])
}

/// Ends all claims: whoever held them is dead, or the lock could not have been taken.
fn lapse(writer: &mut Connection, running: Vec<StoredJob>) -> rusqlite::Result<()> {
    let transaction = writer.transaction()?;
    for mut stored in running {
        stored.claimed_until = i64::MIN;
        stored.insert(&transaction)?;
    }
    transaction.commit()
}
