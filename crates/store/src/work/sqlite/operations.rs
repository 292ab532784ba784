//! What the writer does to operations, within a transaction.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::Selector;
use nevertwice_domain::operation::{Operation, OperationId};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Params, params_from_iter};

use super::schema::{self, OPERATION_COLUMNS, StoredOperation};
use super::steps::Steps;
use crate::work::life;

/// How many rows one sweep removes at most.
const SWEEP_ROWS: i64 = 2000;

/// How many rows are held in memory at once.
const BATCH: usize = 500;

impl Steps<'_> {
    pub(super) fn put_operation(&mut self, operation: &Operation) -> rusqlite::Result<()> {
        self.remove_operation(&operation.id)?;
        let sequence = self.next_sequence("operations")?;
        StoredOperation { sequence, operation: operation.clone() }.insert(self.connection)?;
        let minted = life::is_minted(operation);
        let count = self.counts.of_kind(minted);
        *count += 1;
        while *count > life::most_of(minted) {
            let oldest = "DELETE FROM operations WHERE sequence = \
                          (SELECT min(sequence) FROM operations WHERE minted = ?)";
            let gone = self.connection.prepare_cached(oldest)?.execute([minted])?;
            *count = count.saturating_sub(gone.max(1) as u64);
        }
        Ok(())
    }

    pub(super) fn settle_operation(&mut self, id: &OperationId) -> rusqlite::Result<bool> {
        let mut found = self.operations("id = ?", [id.to_string()], 1)?;
        let Some(stored) = found.pop_if(|stored| stored.operation.expires_at > self.now) else {
            return Ok(false);
        };
        self.settle(stored)
    }

    fn settle(&self, mut stored: StoredOperation) -> rusqlite::Result<bool> {
        let first = life::settle(&mut stored.operation);
        if first {
            stored.insert(self.connection)?;
        }
        Ok(first)
    }

    pub(super) fn remove_operation(&mut self, id: &OperationId) -> rusqlite::Result<()> {
        self.delete("DELETE FROM operations WHERE id = ? RETURNING minted", [id.to_string()])
    }

    /// Deletes what counts no more; the statement returns of which kind each was.
    fn delete(&mut self, sql: &str, values: impl Params) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(sql)?;
        for minted in statement.query_map(values, |row| row.get(0))? {
            let count = self.counts.of_kind(minted?);
            *count = count.saturating_sub(1);
        }
        Ok(())
    }

    pub(super) fn due(
        &mut self,
        now: Millis,
        again_at: Millis,
        limit: usize,
    ) -> rusqlite::Result<Vec<Operation>> {
        let which = "next_look_at <= ? AND expires_at > ? ORDER BY next_look_at, id";
        let due = self.operations(which, (now.0, self.now.0), limit)?;
        let look = |mut stored: StoredOperation| {
            life::look(&mut stored.operation, again_at);
            stored.insert(self.connection)?;
            Ok(stored.operation)
        };
        due.into_iter().map(look).collect()
    }

    pub(super) fn forget_pending(&mut self, which: &Selector) -> rusqlite::Result<()> {
        let (column, value) = match which {
            Selector { fingerprint: Some(fingerprint), .. } => {
                ("fingerprint = ? AND", Some(Value::Blob(fingerprint.as_bytes().to_vec())))
            }
            Selector { document: Some(document), .. } => {
                ("document = ? AND", Some(Value::Blob(document.as_bytes().to_vec())))
            }
            _ => ("next_look_at IS NOT NULL AND", None),
        };
        let sql = format!("{column} sequence > ? ORDER BY sequence");
        let mut after = i64::MIN;
        loop {
            let values = params_from_iter(value.clone().into_iter().chain([Value::Integer(after)]));
            let batch = self.operations(&sql, values, BATCH)?;
            let Some(last) = batch.last() else { return Ok(()) };
            after = last.sequence;
            for stored in batch {
                if life::may_match(&stored.operation, which) {
                    self.settle(stored)?;
                }
            }
        }
    }

    /// Removes some of the operations whose time is over.
    pub(super) fn sweep_operations(&mut self) -> rusqlite::Result<()> {
        let sql = "DELETE FROM operations WHERE sequence IN \
                   (SELECT sequence FROM operations WHERE expires_at <= ? LIMIT ?) RETURNING minted";
        self.delete(sql, (self.now.0, SWEEP_ROWS))
    }

    fn operations(
        &self,
        which: &str,
        values: impl Params,
        limit: usize,
    ) -> rusqlite::Result<Vec<StoredOperation>> {
        let sql = format!("SELECT {OPERATION_COLUMNS} FROM operations WHERE {which} LIMIT {limit}");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(values, StoredOperation::decode)?;
        rows.map(|row| row.and_then(|stored| stored.map_err(|_| schema::malformed()))).collect()
    }
}

/// Reads one.
pub(super) fn read(
    connection: &rusqlite::Connection,
    id: &OperationId,
    now: Millis,
) -> rusqlite::Result<Option<Operation>> {
    let sql = format!("SELECT {OPERATION_COLUMNS} FROM operations WHERE id = ? AND expires_at > ?");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row((id.to_string(), now.0), StoredOperation::decode).optional()?;
    found.map(|stored| stored.map(|s| s.operation).map_err(|_| schema::malformed())).transpose()
}
