//! Lists and counts.

use std::collections::BTreeSet;

use nevertwice_domain::job::{Job, JobId, JobStatus};

use super::{Bench, JobQuery, Work, samples};
use crate::work::JobDepth;

fn everything() -> JobQuery {
    JobQuery { limit: 1000, ..JobQuery::default() }
}

impl<S: Work> Bench<S> {
    /// The ids of all jobs that match, page by page.
    async fn pages(&self, query: &JobQuery) -> Vec<JobId> {
        let mut query = query.clone();
        let mut ids = Vec::new();
        loop {
            let page = self.list(&query).await;
            assert!(page.items.len() <= query.limit, "a page is at most as long as was asked for");
            for job in &page.items {
                assert_eq!(*job, self.job(&job.id).await, "it is listed as it is");
                ids.push(job.id);
            }
            assert!(ids.len() < 10_000, "paging comes to an end");
            match page.next {
                Some(next) => query.after = Some(next),
                None => return ids,
            }
        }
    }

    async fn submit_for(&self, n: u64, tenant: &str, upstream: &str) -> Job {
        let change = |job: &mut Job| {
            (job.tenant, job.upstream) = (samples::tenant(tenant), samples::upstream(upstream));
        };
        self.submit_with(n, change).await
    }
}

pub(super) async fn the_latest_come_first<S: Work>(bench: &Bench<S>) {
    assert_eq!(bench.list(&everything()).await, super::JobPage::default());
    let mut ids = Vec::new();
    for n in 0..10 {
        ids.push(bench.submit(n).await.id);
    }
    bench.claim().await;
    bench.cancel(&ids[5]).await;
    ids.reverse();
    assert_eq!(bench.pages(&everything()).await, ids);
}

pub(super) async fn filters_select<S: Work>(bench: &Bench<S>) {
    let mut ids = Vec::new();
    for (n, (tenant, upstream)) in
        [("a", "ocr"), ("b", "ocr"), ("a", "tika"), ("b", "tika"), ("a", "ocr")].into_iter().enumerate()
    {
        ids.push(bench.submit_for(n as u64, tenant, upstream).await.id);
    }
    bench.claim().await;
    bench.cancel(&ids[3]).await;
    let tenant = |name| Some(samples::tenant(name));
    let upstream = |name| Some(samples::upstream(name));
    let all = everything;
    let cases = [
        (all(), vec![4, 3, 2, 1, 0]),
        (JobQuery { tenant: tenant("a"), ..all() }, vec![4, 2, 0]),
        (JobQuery { tenant: tenant("nobody"), ..all() }, vec![]),
        (JobQuery { upstream: upstream("ocr"), ..all() }, vec![4, 1, 0]),
        (JobQuery { status: Some(JobStatus::Queued), ..all() }, vec![4, 2, 1]),
        (JobQuery { status: Some(JobStatus::Running), ..all() }, vec![0]),
        (JobQuery { status: Some(JobStatus::Cancelled), ..all() }, vec![3]),
        (JobQuery { status: Some(JobStatus::Failed), ..all() }, vec![]),
        (JobQuery { tenant: tenant("b"), upstream: upstream("tika"), ..all() }, vec![3]),
        (JobQuery { tenant: tenant("a"), status: Some(JobStatus::Queued), ..all() }, vec![4, 2]),
        (JobQuery { upstream: upstream("ocr"), status: Some(JobStatus::Queued), ..all() }, vec![4, 1]),
    ];
    for (query, expected) in cases {
        let expected: Vec<_> = expected.into_iter().map(|n: usize| ids[n]).collect();
        for limit in [1, 2, 1000] {
            let query = JobQuery { limit, ..query.clone() };
            assert_eq!(bench.pages(&query).await, expected, "{query:?}");
        }
    }
}

pub(super) async fn pages_are_complete<S: Work>(bench: &Bench<S>) {
    let mut ids = Vec::new();
    for n in 0..60 {
        ids.push(bench.submit_for(n, if n % 3 == 0 { "b" } else { "a" }, "ocr").await.id);
    }
    ids.reverse();
    for limit in [1, 7, 20, 59, 60, 61] {
        assert_eq!(bench.pages(&JobQuery { limit, ..everything() }).await, ids);
        let of_b = JobQuery { tenant: Some(samples::tenant("b")), limit, ..everything() };
        let items = bench.pages(&of_b).await;
        assert_eq!((items.len(), items.iter().collect::<BTreeSet<_>>().len()), (20, 20), "by {limit}");
    }
    let page = bench.list(&JobQuery { limit: 60, ..everything() }).await;
    assert_eq!((page.items.len(), page.next), (60, None), "nothing comes after the last");
    let page = bench.list(&JobQuery { limit: 59, ..everything() }).await;
    assert_eq!(page.next, Some(ids[58]));
}

pub(super) async fn cursors_survive_change<S: Work>(bench: &Bench<S>) {
    let mut ids = Vec::new();
    for n in 0..10 {
        ids.push(bench.submit(n).await.id);
    }
    let of_waiting = JobQuery { status: Some(JobStatus::Queued), limit: 4, ..everything() };
    let first = bench.list(&of_waiting).await;
    assert_eq!(first.next, Some(ids[6]));
    // The last one seen waits no more, nor does one that would come, and a new one comes.
    bench.cancel(&ids[6]).await;
    bench.cancel(&ids[4]).await;
    bench.submit(11).await;
    let rest = bench.pages(&JobQuery { after: first.next, ..of_waiting }).await;
    assert_eq!(rest, [5, 3, 2, 1, 0].map(|n: usize| ids[n]));
}

pub(super) async fn pages_are_bounded<S: Work>(bench: &Bench<S>) {
    for n in 0..1002 {
        bench
            .submit_with(n, |job| job.upstream = samples::upstream(if n % 2 == 0 { "ocr" } else { "tika" }))
            .await;
    }
    let page = bench.list(&JobQuery { limit: usize::MAX, ..everything() }).await;
    assert_eq!((page.items.len(), page.next.is_some()), (1000, true), "no page is longer");
    let page = bench.list(&JobQuery { limit: 0, ..everything() }).await;
    assert_eq!(page.items.len(), 1, "nor shorter");
}

pub(super) async fn depth_counts_what_is_not_final<S: Work>(bench: &Bench<S>) {
    for n in 0..9 {
        bench.submit_for(n, "a", if n < 5 { "ocr" } else { "tika" }).await;
    }
    let claim = bench.claim().await;
    bench.claim().await;
    assert!(bench.end(&claim, bench.succeeded(b"ok")).await);
    let mut depth = bench.store.depth().await.expect("depth");
    depth.retain(|depth| depth.queued + depth.running > 0);
    depth.sort_by(|a, b| a.upstream.as_str().cmp(b.upstream.as_str()));
    let expected = [("ocr", 3, 1), ("tika", 4, 0)].map(|(upstream, queued, running)| JobDepth {
        upstream: samples::upstream(upstream),
        queued,
        running,
    });
    assert_eq!(depth, expected);
}
