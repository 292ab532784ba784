//! The commands, one file each.

pub mod check;
pub mod coverage;
pub mod demo;
pub mod jobs;
pub mod refusals;
pub mod serve;
pub mod verdict;
pub mod version;
