//! Making [`StoreError`]s.

use crate::{StoreError, StoreErrorKind};

impl StoreErrorKind {
    /// An error of this kind.
    pub(crate) fn error(self, message: impl Into<String>) -> StoreError {
        StoreError { kind: self, message: message.into() }
    }
}

impl StoreError {
    /// The answer to every call after `close`.
    pub(crate) fn closed() -> Self {
        StoreErrorKind::Closed.error("the refusal store was closed")
    }

    /// The same failure again, for everyone else who waited for what failed.
    pub(crate) fn again(&self) -> Self {
        self.kind.error(self.message.clone())
    }
}
