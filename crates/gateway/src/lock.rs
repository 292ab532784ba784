//! A mutex for short critical sections that do no I/O and cannot fail half-way: a panic elsewhere does not poison it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex without poisoning. Never held across an `.await`.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn hold(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
