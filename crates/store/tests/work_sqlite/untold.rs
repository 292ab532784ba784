//! Ends that are to be told outlive the process, and a file holds them from the first on.

use std::path::Path;

use nevertwice_domain::clock::Clock;
use nevertwice_domain::job::{Job, JobStatus};
use nevertwice_store::work::suite::samples;
use nevertwice_store::work::{JobEnd, JobStore};

use super::{Done, FILE, Failed, bounds, claim, clock, open};

fn version(directory: &Path) -> Result<u32, Failed> {
    let connection = rusqlite::Connection::open(directory.join(FILE))?;
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

#[tokio::test]
async fn an_end_is_told_after_a_restart() -> Done {
    let (directory, clock) = (tempfile::tempdir()?, clock());
    let store = open(directory.path(), &clock)?;
    let end = |status| {
        let at = clock.now();
        JobEnd::Final { status, error: None, result: None, at, expires_at: at.plus_ms(samples::LIFE_MS) }
    };
    for n in 0..3 {
        store.submit(samples::job(n, clock.now()), samples::input(n), None, &bounds(&*clock)).await?;
        let claim = claim(&store).await?.ok_or("it waits")?;
        assert!(store.settle_job(&claim, end(JobStatus::Succeeded)).await?);
    }
    let again_at = clock.now().plus_ms(1000);
    let due = store.to_tell(&samples::tenant("a"), again_at, 2).await?;
    assert!(store.told(&due[0], None).await?);
    drop(store);
    let store = open(directory.path(), &clock)?;
    assert_eq!(store.tenants_to_tell().await?, [samples::tenant("a")]);
    let fresh = store.to_tell(&samples::tenant("a"), again_at, 10).await?;
    assert_eq!((fresh.len(), fresh[0].calls), (1, 1));
    clock.advance_ms(1000);
    let mut again: Vec<_> = store.to_tell(&samples::tenant("a"), clock.now().plus_ms(1), 10).await?;
    again.sort_by_key(|untold| untold.job.id);
    let seen: Vec<_> = again.iter().map(|untold| (untold.job.id, untold.calls)).collect();
    assert_eq!(seen, [(due[1].job.id, 2), (fresh[0].job.id, 2)]);
    Ok(())
}

#[tokio::test]
async fn a_file_becomes_newer_with_the_first_end_that_is_to_be_told() -> Done {
    let (directory, clock) = (tempfile::tempdir()?, clock());
    let submit = async |n, webhook: Option<String>| -> Done {
        let store = open(directory.path(), &clock)?;
        let job = Job { webhook, ..samples::job(n, clock.now()) };
        store.submit(job.clone(), samples::input(n), None, &bounds(&*clock)).await?;
        store.cancel(&job.id, clock.now().plus_ms(samples::LIFE_MS)).await?;
        assert!(store.tenants_to_tell().await?.len() as u64 == n);
        let due = store.to_tell(&samples::tenant("a"), clock.now().plus_ms(1), 10).await?;
        assert_eq!(due.len() as u64, n);
        Ok(())
    };
    submit(0, None).await?;
    assert_eq!(version(directory.path())?, 1, "the version before can have it back");
    submit(1, Some("https://caller.test/".into())).await?;
    assert_eq!(version(directory.path())?, 2);
    let store = open(directory.path(), &clock)?;
    assert_eq!(super::all(&store).await?.len(), 2);
    Ok(())
}
