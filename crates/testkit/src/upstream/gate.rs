//! A latch that a test opens.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// How long a test waits for others to come to a gate.
const PATIENCE: Duration = Duration::from_secs(20);

/// Holds answers back until the test opens it. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<State>);

#[derive(Debug)]
struct State {
    open: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

/// One that waits; counted until it is gone, however it goes.
struct Waiting<'a>(&'a State);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|count| *count -= 1);
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self(Arc::new(State { open: watch::Sender::new(false), waiting: watch::Sender::new(0) }))
    }

    /// Opens it for good: whoever waits goes on, and nobody waits there any more.
    pub fn open(&self) {
        self.0.open.send_replace(true);
    }

    /// How many wait there now.
    pub fn waiting(&self) -> usize {
        *self.0.waiting.borrow()
    }

    /// Waits until at least `n` wait there; panics if they do not come within 20 s.
    pub async fn wait_waiting(&self, n: usize) {
        let mut receiver = self.0.waiting.subscribe();
        if timeout(PATIENCE, receiver.wait_for(|count| *count >= n)).await.is_err() {
            panic!("gate: {} wait there after {PATIENCE:?}, not {n}", self.waiting());
        }
    }

    /// Waits until it is open. Without a limit of its own.
    pub async fn opened(&self) {
        let mut receiver = self.0.open.subscribe();
        self.0.waiting.send_modify(|count| *count += 1);
        let _waiting = Waiting(&self.0);
        // The sender lives in `self`, so the channel cannot close meanwhile.
        let _ = receiver.wait_for(|open| *open).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
