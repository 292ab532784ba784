//! Large bodies take turns, so that many uploads at once do not stand between a small request and its worker.
//!
//! What a worker does for a small request takes microseconds; digesting a chunk of an upload and handing it to the disk takes
//! hundreds. With a few uploads in work at a time a small request waits for a few of them, however many there are.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Bodies up to this length never wait.
const LARGE: u64 = 256 << 10;
/// Uploads in work at a time for each worker: one that is digested while another waits for the disk.
const PER_WORKER: usize = 2;
/// A disk that hangs must not hold up the uploads that need none: after so long one goes on without a turn.
const PATIENCE: Duration = Duration::from_secs(1);

/// The turns there are.
pub(crate) struct Turns {
    permits: Semaphore,
    patience: Duration,
}

/// A turn, until dropped; nothing for one that needs none.
pub(crate) struct Turn<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

impl Turns {
    /// Turns for a runtime of so many workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self { permits: Semaphore::new(workers.max(1) * PER_WORKER), patience: PATIENCE }
    }

    /// Waits for a turn at the next chunk of a body of which `length` bytes are here, first come, first served.
    pub(crate) async fn take(&self, length: u64) -> Turn<'_> {
        if length <= LARGE {
            return Turn { _permit: None };
        }
        let permit = tokio::time::timeout(self.patience, self.permits.acquire()).await;
        // after the turn and not before it: only those that have one stand in the worker's queue, at its back
        tokio::task::yield_now().await;
        Turn { _permit: permit.ok().and_then(Result::ok) }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn large_bodies_wait_for_each_other_small_ones_for_nobody() {
        let turns = Turns::new(1);
        let first = turns.take(LARGE + 1).await;
        let _second = turns.take(u64::MAX).await;
        for length in [0, 1, LARGE] {
            assert!(turns.take(length).now_or_never().is_some_and(|turn| turn._permit.is_none()));
        }
        let mut third = std::pin::pin!(turns.take(LARGE + 1));
        for _ in 0..3 {
            assert!(third.as_mut().now_or_never().is_none());
        }
        drop(first);
        assert!(third.await._permit.is_some());
    }

    #[tokio::test]
    async fn nobody_waits_for_ever() {
        let turns = Turns { patience: Duration::from_millis(1), ..Turns::new(0) };
        let _taken = (turns.take(LARGE + 1).await, turns.take(LARGE + 1).await);
        assert!(turns.take(LARGE + 1).await._permit.is_none());
    }
}
