//! The judgement: whatever is asked and answered there is no panic, no status on the rail is a verdict, what people are told is what
//! is done, and all that is told is bounded.
//!
//! The first bytes pick profile, status, types and coding; the rest is the request and, behind the first zero, the answer.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use nevertwice_config::profiles::Catalog;
use nevertwice_domain::profile::Profile;

#[path = "../../crates/config/tests/it/holds.rs"]
#[expect(dead_code, reason = "shared with the tests, which use all of it")]
mod holds;

const PROFILES: [&str; 12] = [
    "status",
    "openai",
    "anthropic",
    "azure-document-intelligence",
    "azure-form-recognizer-v2.1",
    "google-gemini",
    "aws-textract",
    "aws-bedrock-runtime",
    "fastapi",
    "docling-serve",
    "unstructured-api",
    "vllm",
];
const STATUSES: [u16; 8] = [200, 400, 413, 415, 422, 409, 401, 500];
const TYPES: [&str; 8] = [
    "application/json",
    "application/x-amz-json-1.1",
    "application/cbor",
    "text/html",
    "",
    "application/problem+json",
    "multipart/form-data; boundary=b",
    "application/x-www-form-urlencoded",
];
const CODINGS: [&str; 4] = ["identity", "gzip", "br", "deflate"];

static LOADED: LazyLock<Vec<Arc<Profile>>> = LazyLock::new(|| {
    let catalog = Catalog::default();
    PROFILES.iter().map(|name| catalog.get(name).expect("a profile of this program")).collect()
});

fn pick<T>(list: &[T], byte: u8) -> &T {
    &list[usize::from(byte) % list.len()]
}

fuzz_target!(|data: &[u8]| {
    let Some(([profile, status, answer_type, request_type, coding, more], rest)) = data.split_first_chunk()
    else {
        return;
    };
    let mut bodies = rest.splitn(2, |byte| *byte == 0);
    let (request, body) = (bodies.next().unwrap_or_default(), bodies.next().unwrap_or_default());
    // most answers have a status that matters, and all can be had
    let status =
        if *status < 128 { *pick(&STATUSES, *status) } else { u16::from(*status) * 4 + u16::from(*more) % 4 };
    let start = &body[..body.len().min(40)];
    let headers: [(&str, &[u8]); 4] = [
        ("content-type", pick(&TYPES, *answer_type).as_bytes()),
        ("content-encoding", pick(&CODINGS, *coding).as_bytes()),
        ("x-amzn-errortype", start),
        ("x-refusal-class", if more & 1 == 0 { b"content" } else { start }),
    ];
    let said = holds::Said {
        status,
        headers: if more & 2 == 0 { &headers[..2] } else { &headers },
        body,
        path: if more & 4 == 0 { "/read" } else { "/read?url=https%3A%2F%2Fa" },
        request_type: pick::<&str>(&TYPES, *request_type),
        request,
    };
    holds::judged(&LOADED[usize::from(*profile) % LOADED.len()], &said);
});
