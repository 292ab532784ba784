//! Files of profiles: no text makes the reader panic, and none that loads makes a status on the rail, or a 5xx, a verdict.
//!
//! The input is the file and, behind the first zero, an answer that it judges.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/config/tests/it/holds.rs"]
mod holds;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let (text, body) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if let Ok(text) = std::str::from_utf8(text) {
        holds::profile_read(text, body);
    }
});
