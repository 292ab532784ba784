//! The decoder of keys: no bytes make it panic, and what it reads is written back as the same bytes, so no two encodings
//! stand for one key.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nevertwice_domain::fingerprint::{KeyInput, decode, encode};

fuzz_target!(|data: &[u8]| {
    // The domain string is hard to guess and says nothing, so every input is also tried behind it.
    let domain = b"nevertwice key 1\0";
    for bytes in [data.to_vec(), [domain.as_slice(), data].concat()] {
        let Ok(key) = decode(&bytes) else { continue };
        let fields: Vec<(&str, Vec<u8>)> =
            key.fields.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let input = KeyInput {
            scope: &key.scope,
            upstream: &key.upstream,
            identity: &key.identity,
            generation: &key.generation,
            method: &key.method,
            path: &key.path,
            query: key.query.as_deref(),
            fields: &fields,
            body: key.body,
        };
        assert_eq!(encode(&input), bytes);
    }
});
