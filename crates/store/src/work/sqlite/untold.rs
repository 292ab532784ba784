//! Ends that are to be told: what the writer does to them, within a transaction, and whose there are.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::job::Job;
use nevertwice_domain::tenant::TenantId;
use rusqlite::{Connection, OptionalExtension};

use super::schema::{self, JOB_COLUMNS, StoredJob, StoredUntold, UNTOLD_COLUMNS};
use super::steps::Steps;
use crate::work::{Untold, life};

impl Steps<'_> {
    /// What the change of a job means for its end: it has come to it, or has none any more.
    pub(super) fn note_end(&self, stored: &StoredJob, before: Option<&Job>) -> rusqlite::Result<()> {
        let was_final = before.is_some_and(|before| before.status.is_final());
        if was_final && !stored.job.status.is_final() {
            return self.drop_untold(stored.sequence);
        }
        let Some(next_at) = life::tell_at(&stored.job).filter(|_| !was_final) else { return Ok(()) };
        schema::add_untold(self.connection)?;
        let untold = StoredUntold {
            sequence: stored.sequence,
            id: stored.job.id.to_string(),
            tenant: stored.job.tenant.as_str().to_owned(),
            next_at,
            calls: 0,
        };
        untold.insert(self.connection)
    }

    /// Nothing of this job is to be told.
    pub(super) fn drop_untold(&self, sequence: i64) -> rusqlite::Result<()> {
        if schema::has_untold(self.connection)? {
            let delete = "DELETE FROM untold WHERE sequence = ?";
            self.connection.prepare_cached(delete)?.execute([sequence])?;
        }
        Ok(())
    }

    pub(super) fn tell_due(
        &mut self,
        tenant: &TenantId,
        again_at: Millis,
        limit: usize,
    ) -> rusqlite::Result<Vec<Untold>> {
        let mut due = Vec::new();
        if !schema::has_untold(self.connection)? {
            return Ok(due);
        }
        let next = format!(
            "SELECT {UNTOLD_COLUMNS} FROM untold WHERE tenant = ? AND next_at <= ? ORDER BY next_at, id LIMIT ?"
        );
        let mut next = self.connection.prepare_cached(&next)?;
        while due.len() < limit {
            let rest = i64::try_from(limit - due.len()).unwrap_or(i64::MAX);
            let rows = next.query_map((tenant.as_str(), self.now.0, rest), |row| {
                Ok((row.get(0)?, StoredUntold::decode(row)?))
            })?;
            let rows = rows.collect::<rusqlite::Result<Vec<(i64, _)>>>()?;
            if rows.is_empty() {
                break;
            }
            for (sequence, row) in rows {
                // one of a job that is gone, or that cannot be read, is in nobody's way
                let told = match (row, self.ended(sequence)?) {
                    (Ok(row), Some(job)) => Some((row, job)),
                    _ => None,
                };
                let Some((row, job)) = told else {
                    self.drop_untold(sequence)?;
                    continue;
                };
                let calls = row.calls.saturating_add(1);
                StoredUntold { next_at: again_at, calls, ..row }.insert(self.connection)?;
                let token = life::telling(&job, calls);
                due.push(Untold { job, calls, token });
            }
        }
        Ok(due)
    }

    pub(super) fn told(&mut self, untold: &Untold, again_at: Option<Millis>) -> rusqlite::Result<bool> {
        let Some(stored) = self.live(&untold.job.id)? else { return Ok(false) };
        if !schema::has_untold(self.connection)? {
            return Ok(false);
        }
        let row = format!("SELECT {UNTOLD_COLUMNS} FROM untold WHERE sequence = ?");
        let mut row = self.connection.prepare_cached(&row)?;
        let row = row.query_row([stored.sequence], StoredUntold::decode).optional()?;
        let row =
            row.and_then(Result::ok).filter(|row| life::telling(&stored.job, row.calls) == untold.token);
        match (row, again_at) {
            (None, _) => return Ok(false),
            (Some(row), None) => self.drop_untold(row.sequence)?,
            (Some(row), Some(next_at)) => StoredUntold { next_at, ..row }.insert(self.connection)?,
        }
        Ok(true)
    }

    /// The job with this sequence, if it is there, and at its end.
    fn ended(&self, sequence: i64) -> rusqlite::Result<Option<Job>> {
        let sql = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE sequence = ?");
        let found =
            self.connection.prepare_cached(&sql)?.query_row([sequence], StoredJob::decode).optional()?;
        let found = found.and_then(Result::ok).filter(|stored| stored.removed_at > self.now);
        Ok(found.map(|stored| stored.job).filter(|job| job.status.is_final()))
    }
}

/// Whose ends are to be told, the longest due first. A step for each tenant, however many ends it has.
pub(super) fn tenants(connection: &Connection, now: Millis) -> rusqlite::Result<Vec<TenantId>> {
    if !schema::has_untold(connection)? {
        return Ok(Vec::new());
    }
    let sql = "WITH RECURSIVE tenants (name) AS (SELECT min(tenant) FROM untold UNION ALL \
               SELECT (SELECT min(tenant) FROM untold WHERE tenant > name) FROM tenants WHERE name IS NOT NULL), \
               first (name, at) AS \
               (SELECT name, (SELECT min(next_at) FROM untold WHERE tenant = name) FROM tenants WHERE name IS NOT NULL) \
               SELECT name FROM first WHERE at <= ? ORDER BY at, name";
    let mut statement = connection.prepare_cached(sql)?;
    let names = statement.query_map([now.0], |row| row.get::<_, String>(0))?;
    names.filter_map(|name| name.map(|name| TenantId::new(&name).ok()).transpose()).collect()
}
