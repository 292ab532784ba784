//! The promises, each kept by tests that drive the real binary in front of an upstream that counts.

mod bench;
mod caller;
mod guard;
mod paths;
mod replay;
mod single_flight;
mod streams;
mod upstreams;
mod fingerprint;
