//! The promises, each kept by tests that drive the real binary in front of an upstream that counts.

mod bench;
mod caller;
mod replay;
mod single_flight;
mod upstreams;
