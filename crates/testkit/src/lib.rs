//! The tools with which promises are tested at the wire: a scripted upstream that counts, a client that keeps
//! the raw bytes, and the real binary as a child process.
//!
//! Nothing here uses the product's own code, and the HTTP/1.1 parts use no HTTP library: what is tested must not
//! be what judges. The stub and the client have to misbehave on purpose and to show bytes as they were.
#![expect(clippy::panic, reason = "test support: a broken test should stop loudly")]

pub mod azure_di;
pub mod chaos;
pub mod client;
pub mod documents;
pub mod gateway;
pub mod redis;
pub mod rig;
pub mod tls;
pub mod upstream;
mod wire;

pub use azure_di::{AzureDi, Fate, fault};
pub use chaos::{Chaos, Fault};
pub use client::{Answer, Arrived, Client, Failure, Part, Post, Request, get, multipart};
pub use documents::{DOC, DOC2, LargeDocuments, r400, random_document, sha256_hex};
pub use gateway::{Gateway, Setup};
pub use redis::{Monitor, Redis, SlotMove, TlsFiles};
pub use upstream::{Gate, Reply, Seen, Step, Upstream};
pub use wire::Headers;
