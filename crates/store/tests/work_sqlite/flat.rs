//! What waits costs disk, and no memory.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nevertwice_domain::clock::Clock;
use nevertwice_store::work::suite::samples;
use nevertwice_store::work::{JobStore, Submitted};
use tokio::task::JoinSet;

use super::{Done, Failed, bounds, claim, clock, open};

/// Set only for the child.
const DIRECTORY: &str = "NEVERTWICE_TEST_FLAT_DIRECTORY";
/// Their inputs alone are 160 MB.
const JOBS: u64 = 20_000;
const INPUT: usize = 8192;
/// What the process may take in addition, in KiB.
const AT_MOST_KIB: u64 = 48 * 1024;

/// The most that this process has had in memory, in KiB.
fn peak() -> Result<u64, Failed> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Not a test by itself: its memory is measured, so it has a process for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_queues_many_jobs() -> Done {
    let Ok(directory) = std::env::var(DIRECTORY) else { return Ok(()) };
    let directory = Path::new(&directory);
    let clock = clock();
    let store = Arc::new(open(directory, &clock)?);
    let before = peak()?;
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let (store, now, bounds) = (Arc::clone(&store), clock.now(), bounds(&*clock));
        tasks.spawn(async move {
            for n in (task..JOBS).step_by(64) {
                let input = vec![n.to_le_bytes()[0]; INPUT].into();
                let submitted = store.submit(samples::job(n, now), input, None, &bounds).await?;
                assert!(matches!(submitted, Submitted::New(_)));
            }
            Ok::<_, Failed>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let depth = store.depth().await?;
    assert_eq!((depth.len(), depth[0].queued), (1, JOBS));
    drop(store);
    let store = open(directory, &clock)?;
    for _ in 0..100 {
        let claim = claim(&store).await?.ok_or("it waits")?;
        assert_eq!(store.input(&claim.job.id).await?.map(|input| input.len()), Some(INPUT));
    }
    let grown = peak()?.saturating_sub(before);
    assert!(grown < AT_MOST_KIB, "{JOBS} jobs that wait took {grown} KiB of memory");
    Ok(())
}

#[test]
fn jobs_that_wait_take_no_memory() -> Done {
    let directory = tempfile::tempdir()?;
    let ended = Command::new(std::env::current_exe()?)
        .args(["--exact", "flat::child_queues_many_jobs", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .output()?;
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Ok(())
}
