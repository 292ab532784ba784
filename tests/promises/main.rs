//! The promises, each kept by tests that drive the real binary in front of an upstream that counts.

mod admission;
mod audit;
mod bench;
mod caller;
mod config;
mod documents;
mod equal_keys;
mod fingerprint;
mod framing;
mod guard;
mod memory_settings;
mod not_verdicts;
mod off_is_identical;
mod openai;
mod paths;
mod poisoning;
mod replay;
mod shutdown;
mod single_flight;
mod slow_clients;
mod streams;
mod tls;
mod uploads;
mod upstreams;
