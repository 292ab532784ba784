//! Shapes of refusals that a client library takes as they come, and that a memory must not get wrong: counted at the upstream.
//! `tests/sdk/test_traps.py` has the table of all traps, and those that need the libraries themselves.

use nevertwice_domain::outcome::OwnCode;
use nevertwice_testkit::{Gateway, Reply, Upstream, random_document};
use serde_json::{Value, json};

use crate::bench::{gzip, settle};
use crate::caller::{CLASSIFY, entry_count, submit};
use crate::profiles::{asked, inner, refusal};

const DI: &str = "azure-document-intelligence";

/// A gateway with a guarded route `/NAME/read` for each of these profiles.
async fn with_profiles(upstream: &Upstream, names: &[&str], memory: &str) -> Gateway {
    let one = |name: &&str| {
        format!(
            "- name: {}\n  base_url: \"{}\"\n  mount: /{name}\n  sync_paths: [/read]\n  negative_cache: {{profile: {name}}}\n",
            name.replace('.', "-"),
            upstream.url()
        )
    };
    let lines: String = names.iter().map(one).collect();
    Gateway::with(&upstream.url(), &[("UPSTREAMS", &lines), ("MEMORY", memory)]).await
}

/// Each answer for a document of its own, sent three times to the profile's route. `true` = remembered, so asked once.
async fn check(gateway: &Gateway, upstream: &Upstream, cases: Vec<(&str, Reply, bool)>) {
    let mut entries = entry_count(gateway).await;
    for (number, (profile, reply, remembered)) in cases.into_iter().enumerate() {
        upstream.always(reply);
        let document = random_document(number as u64, 2000);
        let path = format!("/{profile}/read");
        let send = async || {
            submit(gateway, &path)
                .header("Content-Type", "application/pdf")
                .header("Accept-Encoding", "gzip, br")
                .body(document.clone())
                .send()
                .await
        };
        let calls = asked(upstream, send).await;
        assert_eq!(calls, if remembered { 1 } else { 3 }, "case {number}, {profile}");
        entries += usize::from(remembered);
        assert_eq!(entry_count(gateway).await, entries, "case {number}, {profile}");
    }
}

/// An uncompressed meta-block with a window of 16 bits, and an empty last one (RFC 7932 section 9).
fn brotli(text: &[u8]) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX) - 1;
    assert!(length < 1 << 16);
    [&((length << 4) | (1 << 20)).to_le_bytes()[..3], text, &[3]].concat()
}

#[tokio::test]
async fn coded_refusals_are_judged_decoded_and_replayed_as_they_came() {
    let upstream = Upstream::start().await;
    let gateway = with_profiles(&upstream, &[DI], "").await;
    let content = inner("InvalidContent").to_string().into_bytes();
    let transient = inner("ContentSourceTimeout").to_string().into_bytes();
    let zipped = gzip(&[&content]).concat();
    let coded = |coding: &str, body: Vec<u8>| {
        let reply = Reply::status(400).header("Content-Type", "application/json");
        (DI, reply.header("Content-Encoding", coding).body(body))
    };
    let case = |(profile, reply), remembered| (profile, reply, remembered);
    let cases = vec![
        case(coded("gzip", zipped.clone()), true),
        case(coded("x-gzip", zipped.clone()), true),
        case(coded("GZip", zipped.clone()), true),
        case(coded("br", brotli(&content)), true),
        case(coded("identity", content.clone()), true),
        // what is in it decides
        case(coded("gzip", gzip(&[&transient]).concat()), false),
        case(coded("br", brotli(&transient)), false),
        // what cannot be read is not believed
        case(coded("gzip", zipped[..zipped.len() - 9].to_vec()), false),
        case(coded("gzip", content.clone()), false),
        case(coded("br", brotli(&content)[..40].to_vec()), false),
        case(coded("zstd", content.clone()), false),
        case(coded("gzip, br", zipped), false),
    ];
    let requests = 3 * cases.len();
    check(&gateway, &upstream, cases).await;
    let undecodable = [("reason", "undecodable")];
    gateway.wait_metric("gateway_negative_cache_not_recorded_total", &undecodable, 15.0).await;
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn names_of_aws_errors_are_found_where_each_protocol_puts_them() {
    const TEXTRACT: &str = "aws-textract";
    const BEDROCK: &str = "aws-bedrock-runtime";
    let upstream = Upstream::start().await;
    let gateway = with_profiles(&upstream, &[TEXTRACT, BEDROCK], "").await;
    let amz = |header: Option<&str>, body: Value| {
        let reply = Reply::status(400).header("Content-Type", "application/x-amz-json-1.1");
        header.map_or(reply.clone(), |name| reply.header("x-amzn-ErrorType", name)).body(body.to_string())
    };
    // {"__type": NAME, "Message": "m"} (RFC 8949): a map of two texts
    let cbor = |name: &str| {
        let length = 0x60 | u8::try_from(name.len()).unwrap_or_default();
        let head = if name.len() < 24 {
            vec![length]
        } else {
            vec![0x78, u8::try_from(name.len()).unwrap_or_default()]
        };
        let body = [&[0xa2, 0x66][..], b"__type", &head, name.as_bytes(), &[0x67], b"Message", &[0x61], b"m"]
            .concat();
        Reply::status(400)
            .header("Content-Type", "application/cbor")
            .header("smithy-protocol", "rpc-v2-cbor")
            .body(body)
    };
    let message = |text: &str| json!({ "message": text });
    let cases = vec![
        (TEXTRACT, amz(Some("BadDocumentException"), json!({})), true),
        (TEXTRACT, amz(Some("BadDocumentException:http://internal.amazon.com/coral/"), json!({})), true),
        (TEXTRACT, amz(None, json!({ "__type": "UnsupportedDocumentException", "Message": "m" })), true),
        (TEXTRACT, amz(None, json!({ "__type": "com.amazonaws.textract#DocumentTooLargeException" })), true),
        (TEXTRACT, cbor("BadDocumentException"), true),
        (TEXTRACT, cbor("com.amazonaws.textract#UnsupportedDocumentException"), true),
        // throttling and rights are 400 here
        (TEXTRACT, amz(Some("ThrottlingException"), json!({ "__type": "BadDocumentException" })), false),
        (TEXTRACT, amz(None, json!({ "__type": "ProvisionedThroughputExceededException" })), false),
        (TEXTRACT, amz(None, json!({ "__type": "AccessDeniedException" })), false),
        (TEXTRACT, amz(None, json!({ "__type": "InvalidS3ObjectException" })), false),
        (TEXTRACT, cbor("ProvisionedThroughputExceededException"), false),
        (TEXTRACT, amz(None, message("BadDocumentException")), false),
        // the name in the header alone, and one name for most of all
        (BEDROCK, amz(Some("ValidationException"), message("Input is too long for requested model.")), true),
        (BEDROCK, amz(Some("ValidationException"), message("Operation not allowed")), false),
        (BEDROCK, amz(None, message("Input is too long for requested model.")), false),
        (BEDROCK, amz(Some("ServiceQuotaExceededException"), message("Input is too long")), false),
    ];
    let requests = 3 * cases.len();
    check(&gateway, &upstream, cases).await;
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn codes_are_numbers_here_and_texts_there_flat_here_and_wrapped_there() {
    const PADDLE: &str = "paddlex-serving";
    const MISTRAL: &str = "mistral-ocr";
    const VLLM: &str = "vllm";
    const VISION: &str = "azure-computer-vision-read-3.2";
    const FORMS: &str = "azure-form-recognizer-v2.1";
    let upstream = Upstream::start().await;
    let gateway = with_profiles(&upstream, &[PADDLE, MISTRAL, VLLM, DI, VISION, FORMS], "").await;
    let paddle = |code: Value| {
        let says = "Image pixel count 9 exceeds maximum allowed 4";
        refusal(422, json!({ "logId": "a", "errorCode": code, "errorMsg": says }))
    };
    let mistral = |code: Value, kind: &str| {
        refusal(422, json!({ "object": "error", "message": "m", "type": kind, "param": null, "code": code }))
    };
    let context = "This model's maximum context length is 10 tokens.";
    let cases = vec![
        (PADDLE, paddle(json!(422)), true),
        (PADDLE, paddle(json!("422")), true),
        (PADDLE, paddle(json!(423)), false),
        // a download that failed, whichever way its code is written
        (MISTRAL, mistral(json!("3310"), "document_parser_invalid_file"), false),
        (MISTRAL, mistral(json!(3310), "document_parser_invalid_file"), false),
        (MISTRAL, mistral(json!("3005"), "document_parser_invalid_file"), true),
        (MISTRAL, mistral(json!(3005), "document_parser_invalid_file"), true),
        // before and after a release, with the code as a number
        (
            VLLM,
            refusal(
                400,
                json!({ "object": "error", "message": context, "type": "BadRequestError", "code": 400 }),
            ),
            true,
        ),
        (
            VLLM,
            refusal(400, json!({ "error": { "message": context, "type": "BadRequestError", "code": 400 } })),
            true,
        ),
        // the front door's codes are statuses as texts, and a missing result is flat
        (DI, refusal(400, json!({ "error": { "code": "400", "message": "InvalidContent" } })), false),
        (DI, refusal(400, json!({ "error": { "code": 400, "message": "InvalidContent" } })), false),
        (DI, refusal(400, json!({ "code": "NotFound", "message": "Analyze result was not found." })), false),
        (
            DI,
            refusal(400, json!({ "code": "InvalidRequest", "innererror": { "code": "InvalidContent" } })),
            false,
        ),
        // older services of the same vendor: flat, and wrapped without an inner error
        (
            VISION,
            refusal(400, json!({ "code": "InvalidImageFormat", "requestId": "r", "message": "m" })),
            true,
        ),
        (VISION, refusal(400, json!({ "code": "InvalidImageURL", "message": "m" })), false),
        (FORMS, refusal(400, json!({ "error": { "code": "UnsupportedImageFormat", "message": "m" } })), true),
        (FORMS, refusal(400, json!({ "error": { "code": "FailedToDownloadImage", "message": "m" } })), false),
    ];
    let requests = 3 * cases.len();
    check(&gateway, &upstream, cases).await;
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn several_errors_are_a_verdict_only_where_all_of_them_are() {
    let upstream = Upstream::start().await;
    let gateway = with_profiles(&upstream, &[DI], "").await;
    let with = |top: &str, leaves: &[&str]| {
        let detail = |(page, code): (usize, &&str)| json!({ "code": "InvalidRequest", "target": page.to_string(), "message": "m", "innererror": { "code": code, "message": "m" } });
        let details: Vec<_> = leaves.iter().enumerate().map(detail).collect();
        refusal(400, json!({ "error": { "code": top, "message": "m", "details": details } }))
    };
    let cases = vec![
        (DI, with("InvalidRequest", &["InvalidContent"]), true),
        (
            DI,
            with("InvalidRequest", &["InvalidContent", "InvalidContentDimensions", "UnsupportedContent"]),
            true,
        ),
        (DI, with("InvalidRequest", &["InvalidContent", "ModelNotReady"]), false),
        (DI, with("InvalidRequest", &["ContentSourceTimeout", "InvalidContent"]), false),
        (DI, with("InvalidRequest", &["InvalidContent", "SomethingNew", "InvalidContent"]), false),
        (DI, with("InvalidRequest", &[]), false),
        // the top code is the most severe one
        (DI, with("InternalServerError", &["InvalidContent"]), false),
        (DI, with("InternalServerError", &["FailedToSerializeAnalyzeResult", "InvalidContent"]), false),
    ];
    let requests = 3 * cases.len();
    check(&gateway, &upstream, cases).await;
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn failed_operations_say_so_in_any_case() {
    let upstream = Upstream::start().await;
    let gateway = with_profiles(&upstream, &[DI], "").await;
    let operation = |status: &str, code: &str| {
        let error = json!({ "code": "InvalidRequest", "message": "m", "innererror": { "code": code, "message": "m" } });
        refusal(200, json!({ "status": status, "createdDateTime": "2026-01-01T00:00:00Z", "error": error }))
    };
    let cases = vec![
        (DI, operation("failed", "InvalidContent"), true),
        (DI, operation("Failed", "InvalidContent"), true),
        (DI, operation("FAILED", "InvalidContent"), true),
        (DI, operation("Failed", "ContentSourceTimeout"), false),
        (DI, operation("succeeded", "InvalidContent"), false),
        (DI, operation("Running", "InvalidContent"), false),
    ];
    let requests = 3 * cases.len();
    check(&gateway, &upstream, cases).await;
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn a_conflict_is_never_remembered_by_a_profile_and_never_the_gateways_own() {
    const OPENAI: &str = "openai";
    const ANTHROPIC: &str = "anthropic";
    // but for jobs, whose paths no SDK of a service calls
    let conflicts = OwnCode::ALL.iter().filter(|code| code.status() == 409);
    assert!(conflicts.eq([&OwnCode::JobNotFinished]));
    let upstream = Upstream::start().await;
    let openai = json!({ "error": { "message": "m", "type": "invalid_request_error", "param": null, "code": "context_length_exceeded" } });
    let anthropic = json!({ "type": "error", "error": { "type": "invalid_request_error", "message": "prompt is too long" } });
    // also where an operator counts it among the statuses
    for memory in ["", "statuses: [400, 409, 413, 415, 422]"] {
        let gateway = with_profiles(&upstream, &[DI, OPENAI, ANTHROPIC], memory).await;
        let both = |profile, body: &Value| {
            [(profile, refusal(409, body), false), (profile, refusal(400, body), true)]
        };
        let mut cases = Vec::from(both(DI, &inner("InvalidContent")));
        cases.extend(both(OPENAI, &openai));
        cases.extend(both(ANTHROPIC, &anthropic));
        check(&gateway, &upstream, cases).await;
        settle(&gateway, 18).await;
    }
    // nor by status alone, unless the operator does
    let gateway = Gateway::simple(&upstream.url()).await;
    upstream.always(refusal(409, inner("InvalidContent")));
    let send = async || submit(&gateway, CLASSIFY).body("conflict").send().await;
    assert_eq!(asked(&upstream, send).await, 3);
    settle(&gateway, 3).await;
}
