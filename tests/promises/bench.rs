//! What cases share: what every one ends with, and how they are sent and judged.
#![expect(clippy::panic, reason = "a broken test should stop loudly")]

use bytes::Bytes;
use nevertwice_testkit::{Answer, Gateway, Post, Request};
use serde_json::Value;

/// The check after each case: nothing is in use any more, the process is up and has not panicked, and the audit has
/// exactly one line per request. Returns the audit's lines.
pub async fn settle(gateway: &Gateway, expected_requests: usize) -> Vec<Value> {
    for gauge in ["gateway_pool_in_use", "gateway_pool_queued", "gateway_body_memory_bytes"] {
        gateway.wait_metric(gauge, &[], 0.0).await;
    }
    let lines = gateway.wait_audit(expected_requests).await;
    assert_eq!(lines.len(), expected_requests, "audit lines: {lines:#?}");
    let health = gateway.admin_request(Request::get("/healthz")).await;
    assert_eq!(health.status, 200, "{}", health.text());
    let log = gateway.log();
    if log.contains("panicked") {
        panic!("the gateway panicked:\n{log}");
    }
    lines
}

/// Posts a document as the tenant `dev_1`, on a connection of its own.
pub async fn post(gateway: &Gateway, path: &str, document: impl Into<Bytes>) -> Answer {
    let post = Post::to(gateway.addr, path).bearer("tok-1");
    post.header("Content-Type", "application/pdf").body(document).send().await
}

/// Asserts that this is the gateway's own answer, whole and with this code.
pub fn assert_own(answer: &Answer, status: u16, code: &str, case: &str) {
    assert_eq!(answer.status, status, "{case}: {}", answer.text());
    assert!(answer.complete && !answer.is_hit(), "{case}: {answer:?}");
    assert_eq!(answer.header("x-gateway-error").as_deref(), Some(code), "{case}: {}", answer.text());
    assert_eq!(answer.header("content-type").as_deref(), Some("application/problem+json"), "{case}");
    assert_eq!((&answer.json()["code"], &answer.json()["status"]), (&code.into(), &status.into()), "{case}");
}

/// A gzip stream, modification time 0, that is flushed after each part: what there is to write then, and last the trailer. The
/// parts are stored blocks, and an empty one flushes (RFC 1952, RFC 1951 section 3.2.4).
pub fn gzip(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let (mut crc, mut length) = (!0_u32, 0);
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut writes = Vec::new();
    for part in parts {
        for byte in *part {
            crc = (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
            });
        }
        let of_part = u16::try_from(part.len()).unwrap_or_else(|_| panic!("a part of {} bytes", part.len()));
        length += u32::from(of_part);
        out.push(0);
        out.extend(of_part.to_le_bytes());
        out.extend((!of_part).to_le_bytes());
        out.extend(*part);
        out.extend([0, 0, 0, 0xff, 0xff]);
        writes.push(std::mem::take(&mut out));
    }
    out.extend([1, 0, 0, 0xff, 0xff]);
    out.extend((!crc).to_le_bytes());
    out.extend(length.to_le_bytes());
    writes.push(out);
    writes
}
