//! Opening the file: every operation and every job is verified and counted, one after the other, so that it costs no memory.
//! Bodies are verified when they are read; here it is asked only how long they are.

use std::path::Path;

use nevertwice_domain::job::{Job, JobStatus};
use rusqlite::{Connection, OpenFlags};

use super::counts::{Counts, Shares};
use super::schema::{
    self, FORMAT, JOB_COLUMNS, OPERATION_COLUMNS, StoredJob, StoredOperation, StoredUntold, UNTOLD_COLUMNS,
};
use crate::StoreError;
use crate::sqlite::file::{self, Found, Lock, Place, Refused};
use crate::work::life;

/// A file that was found good.
pub(super) struct Opened {
    pub(super) lock: Lock,
    pub(super) writer: Connection,
    pub(super) readers: [Connection; 2],
    pub(super) counts: Counts,
    pub(super) shares: Shares,
}

/// Opens the file in `directory`.
pub(super) fn open(directory: &Path) -> Result<Opened, StoreError> {
    let Found { place, lock, connection } = file::find(directory, &FORMAT)?;
    verify(&place, connection, lock).map_err(|refused| place.say(refused))
}

fn verify(place: &Place, mut writer: Connection, lock: Lock) -> Result<Opened, Refused> {
    place.check_tables(&writer)?;
    let tables: &[_] = match schema::has_untold(&writer)? {
        true => &["jobs", "operations", "untold"],
        false => &["jobs", "operations"],
    };
    for table in tables {
        place.check_pages(&writer, &format!("integrity_check({table})"))?;
    }
    let (mut counts, mut shares) = (Counts::default(), Shares::default());
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
            let Job { tenant, upstream, status, result, .. } = &stored.job;
            let input = schema::body_length(&writer, "inputs", stored.sequence)?;
            let output = schema::body_length(&writer, "results", stored.sequence)?;
            let whole = (input.is_some() || !life::keeps_input(&stored.job))
                && (output.is_some() || result.is_none());
            without += u64::from(!whole);
            let bytes = input.unwrap_or_default().saturating_add(output.unwrap_or_default());
            counts.add(upstream, *status, 1);
            counts.bytes = counts.bytes.saturating_add_signed(bytes);
            shares.add_bytes(tenant, bytes);
            if *status == JobStatus::Queued {
                shares.add_queued(tenant, upstream, 1);
            }
            shares.keep();
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
    Ok(Opened { lock, writer, readers, counts, shares })
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
