//! How callers see an upstream, where that is more than its own wire passed on.

pub(crate) mod azure_di;
pub(crate) mod jobs;
