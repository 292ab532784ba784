//! What would be said over and over is said now and then.

use std::time::{Duration, Instant};

use crate::lock::Lock;

/// How often the same is said at most.
const EVERY: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Default)]
pub(crate) struct Seldom(Lock<Option<Instant>>);

impl Seldom {
    /// Whether it is to be said now.
    pub(crate) fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut said = self.0.hold();
        let due = said.is_none_or(|at| now.duration_since(at) >= EVERY);
        if due {
            *said = Some(now);
        }
        due
    }
}
