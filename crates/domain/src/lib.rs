//! The words and rules of the gateway, pure: no async, no I/O, no clock but the one handed in.
//!
//! Everything here can be tested in microseconds. What a refusal is, which statuses may ever be remembered, how a request
//! becomes a fingerprint, when an entry counts: it is decided in this crate and nowhere else.

pub mod audit;
pub mod canonical;
pub mod clock;
pub mod entry;
pub mod fingerprint;
pub mod guard;
pub mod job;
pub mod loop_breaker;
pub mod operation;
pub mod outcome;
pub mod profile;
pub mod status;
mod stored;
pub mod strike;
pub mod tenant;
pub mod trace;
pub mod unclassified;
