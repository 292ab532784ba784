//! A latch that a test opens.

use std::sync::Arc;

use tokio::sync::watch;

/// Holds answers back until the test opens it. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Opens it for good: whoever waits goes on, and nobody waits there any more.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// How many wait there now.
    pub fn waiting(&self) -> usize {
        self.0.receiver_count()
    }

    /// Waits until it is open. Without a limit of its own.
    pub async fn opened(&self) {
        let mut receiver = self.0.subscribe();
        // The sender lives in `self`, so the channel cannot close meanwhile.
        let _ = receiver.wait_for(|open| *open).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
