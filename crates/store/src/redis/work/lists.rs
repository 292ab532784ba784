//! What goes through all jobs: lists, counts, and tidying up after those whose end has come.

use nevertwice_domain::job::JobId;
use nevertwice_domain::tenant::{TenantId, UpstreamName};
use redis::{Value, pipe};

use super::super::Shared;
use super::super::operations::{PAGE, STEP, corrupt, text};
use super::rows::{FIELDS, Row};
use crate::StoreError;
use crate::work::{JobDepth, JobPage, JobQuery};

/// How many jobs one page looks at: where few of many are asked for, a page may have less than its limit and yet go on.
const LOOKED_AT: usize = 1000;
/// How many jobs go in one round of tidying up.
const SWEPT: usize = 200;

impl Shared {
    pub(super) async fn list_jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        let limit = query.limit.clamp(1, 1000);
        let index = query.tenant.as_ref().map_or_else(|| self.keys.jobs(), |t| self.keys.tenant_jobs(t));
        let mut page = JobPage::default();
        let (mut after, mut looked_at) = (query.after, 0);
        loop {
            let ids = self.ids_before(&index, after, PAGE.min(LOOKED_AT - looked_at)).await?;
            let Some(last) = ids.last().copied() else { return Ok(page) };
            for row in self.rows(&ids).await? {
                let job = row.job;
                let wanted = query.tenant.as_ref().is_none_or(|tenant| *tenant == job.tenant)
                    && query.upstream.as_ref().is_none_or(|upstream| *upstream == job.upstream)
                    && query.status.is_none_or(|status| status == job.status);
                if !wanted {
                    continue;
                }
                if page.items.len() == limit {
                    page.next = page.items.last().map(|job| job.id);
                    return Ok(page);
                }
                page.items.push(job);
            }
            looked_at += ids.len();
            if looked_at >= LOOKED_AT {
                page.next = Some(last);
                return Ok(page);
            }
            after = Some(last);
        }
    }

    /// At most so many ids of an index, the latest first.
    async fn ids_before(
        &self,
        index: &str,
        after: Option<JobId>,
        most: usize,
    ) -> Result<Vec<JobId>, StoreError> {
        let mut get = pipe();
        get.cmd("ZRANGE").arg(index).arg(after.map_or_else(|| "+".to_owned(), |id| format!("({id}")));
        get.arg("-").arg("BYLEX").arg("REV").arg("LIMIT").arg(0).arg(most);
        let (members,): (Vec<Vec<u8>>,) = self.link.ask(&get, STEP).await?;
        let id = |member: &Vec<u8>| text(member)?.parse().ok();
        members.iter().map(|member| id(member).ok_or_else(|| corrupt("a list of jobs"))).collect()
    }

    /// The jobs that are live; one that this version cannot read is passed over.
    async fn rows(&self, ids: &[JobId]) -> Result<Vec<Row>, StoreError> {
        let mut get = pipe();
        for id in ids {
            get.cmd("HMGET").arg(self.keys.job(id)).arg(&FIELDS);
        }
        let fields: Vec<Vec<Option<Vec<u8>>>> = self.link.ask(&get, STEP).await?;
        let mut rows = Vec::with_capacity(ids.len());
        for (id, fields) in ids.iter().zip(&fields) {
            match Row::read(id, fields) {
                Ok(row) => rows.extend(row.filter(|row| row.is_live(self.now()))),
                Err(error) => {
                    if self.link.first_in_a_while("job") {
                        tracing::error!(%id, %error, "a job cannot be read");
                    }
                }
            }
        }
        Ok(rows)
    }

    pub(super) async fn depth(&self) -> Result<Vec<JobDepth>, StoreError> {
        // what has come to its end does not count
        self.sweep_jobs().await?;
        let mut get = pipe();
        get.cmd("SMEMBERS").arg(self.keys.job_upstreams());
        let (mut names,): (Vec<String>,) = self.link.ask(&get, STEP).await?;
        names.sort_unstable();
        let upstreams: Vec<_> = names.into_iter().filter_map(|name| UpstreamName::new(&name).ok()).collect();
        let mut depths = Vec::new();
        for upstreams in upstreams.chunks(PAGE) {
            let mut call = self.scripts.job_depth.prepare_invoke();
            for upstream in upstreams {
                call.key(self.keys.stream(upstream));
            }
            let counts: Vec<u64> = self.link.call(&call, STEP).await?;
            let (counts, _) = counts.as_chunks();
            for (upstream, &[queued, running]) in upstreams.iter().zip(counts) {
                if queued + running > 0 {
                    depths.push(JobDepth { upstream: upstream.clone(), queued, running });
                }
            }
        }
        Ok(depths)
    }

    pub(super) async fn stored_bytes(&self) -> Result<u64, StoreError> {
        // what has come to its end does not count
        self.uncount_jobs().await?;
        let mut get = pipe();
        get.cmd("HGET").arg(self.keys.job_sums()).arg("");
        let (bytes,): (Option<u64>,) = self.link.ask(&get, STEP).await?;
        Ok(bytes.unwrap_or_default())
    }

    async fn uncount_jobs(&self) -> Result<(), StoreError> {
        let mut call = self.scripts.job_uncount.key(self.keys.job_records());
        call.key(self.keys.job_sums()).arg(self.now().0).arg(SWEPT);
        let _: u64 = self.link.call(&call, STEP).await?;
        Ok(())
    }

    /// Removes jobs whose end has come, some of them. Returns whether there may be more.
    pub(in super::super) async fn sweep_jobs(&self) -> Result<bool, StoreError> {
        let more = self.drop_jobs().await?;
        // after that: what is removed counts until it is
        self.uncount_jobs().await?;
        Ok(more)
    }

    async fn drop_jobs(&self) -> Result<bool, StoreError> {
        let mut get = pipe();
        get.cmd("ZRANGEBYSCORE").arg(self.keys.ends()).arg("-inf").arg(self.now().0);
        get.arg("LIMIT").arg(0).arg(SWEPT);
        let (members,): (Vec<Vec<u8>>,) = self.link.ask(&get, STEP).await?;
        if members.is_empty() {
            return Ok(false);
        }
        let mut gone = pipe();
        let mut read = pipe();
        let mut ended = Vec::with_capacity(members.len());
        for member in &members {
            match text(member).and_then(end_of) {
                Some((id, ..)) => {
                    read.cmd("HGET").arg(self.keys.job(&id)).arg("o");
                    ended.push(member);
                }
                // it is nobody's
                None => _ = gone.cmd("ZREM").arg(self.keys.ends()).arg(&member[..]),
            }
        }
        if ended.len() < members.len() {
            let _: Value = self.link.ask(&gone, STEP).await?;
        }
        if ended.is_empty() {
            return Ok(members.len() == SWEPT);
        }
        let results: Vec<Option<String>> = self.link.ask(&read, STEP).await?;
        for (member, result) in ended.iter().zip(results) {
            self.drop_job(text(member).unwrap_or_default(), &result.unwrap_or_default()).await?;
        }
        Ok(members.len() == SWEPT)
    }

    /// Removes a job whose end has come: the member of the list of ends, and the name of its result.
    pub(super) async fn drop_job(&self, member: &str, result: &str) -> Result<(), StoreError> {
        let Some((id, tenant, upstream)) = end_of(member) else { return Ok(()) };
        let keys = &self.keys;
        let mut call = self.scripts.job_drop.key(keys.job(&id));
        call.key(keys.stream(&upstream))
            .key(keys.later(&upstream))
            .key(keys.job_input(&id))
            .key(keys.job_result(result))
            .key(keys.ends())
            .key(keys.jobs())
            .key(keys.tenant_jobs(&tenant))
            .key(keys.untold())
            .key(keys.tenant_untold(&tenant))
            .arg(id.to_string())
            .arg(member)
            .arg(self.now().0)
            .arg(tenant.as_str());
        let _: u64 = self.link.call(&call, STEP).await?;
        Ok(())
    }
}

/// The parts of [`Row::end_member`].
fn end_of(member: &str) -> Option<(JobId, TenantId, UpstreamName)> {
    let mut parts = member.split(' ');
    let (id, tenant, upstream) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    Some((id.parse().ok()?, TenantId::new(tenant).ok()?, UpstreamName::new(upstream).ok()?))
}
