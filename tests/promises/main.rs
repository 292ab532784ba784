//! The promises, each kept by tests that drive the real binary in front of an upstream that counts.

mod admission;
mod bench;
mod caller;
mod equal_keys;
mod fingerprint;
mod framing;
mod guard;
mod not_verdicts;
mod off_is_identical;
mod openai;
mod paths;
mod poisoning;
mod replay;
mod single_flight;
mod streams;
mod tls;
mod upstreams;
