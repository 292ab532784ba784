//! Answers that look like a verdict on the document, and are about something else: by the profiles of the program.
#![expect(clippy::unwrap_used, reason = "test")]

use http::{HeaderMap, HeaderValue, StatusCode};
use nevertwice_config::profiles::Catalog;
use nevertwice_domain::profile::{Answer, Phase, Remember, SavedRequest, Terms};
use serde_json::{Value, json};

/// What a profile makes of this answer to this request.
fn judged(profile: &str, request: &SavedRequest<'_>, status: u16, body: &Value) -> Remember {
    let profile = Catalog::default().get(profile).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("x-amzn-errortype", HeaderValue::from_static("UnsupportedDocumentException"));
    let body = body.to_string();
    let status = StatusCode::from_u16(status).unwrap();
    let answer = Answer { status, headers: &headers, body: body.as_bytes() };
    profile.explain(&request.facts(Phase::Submit, &profile), &answer, &Terms::default()).remember
}

fn to_json(profile: &str, request: &Value, status: u16, body: &Value) -> Remember {
    let request = request.to_string();
    let request = SavedRequest {
        content_type: Some("application/json"),
        body: Some(request.as_bytes()),
        ..SavedRequest::default()
    };
    judged(profile, &request, status, body)
}

#[test]
fn input_that_lies_elsewhere() {
    let context = json!({"error": {"code": "context_length_exceeded", "type": "invalid_request_error", "message": "m"}});
    let tokens =
        json!({"message": "too many tokens: total number of tokens in the prompt exceeds the limit"});
    let vllm = json!({"error": {"type": "BadRequestError", "message": "cannot identify image file"}});
    let pixels = json!({"errorCode": 422, "errorMsg": "Image pixel count 9 exceeds maximum allowed 8"});
    let claude = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 3 tokens > 2 maximum"}});
    let gemini = json!({"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}});
    for (profile, status, body, inline, elsewhere) in [
        (
            "openai",
            400,
            &context,
            json!({"input": [{"role": "user", "content": "x"}], "prompt": "x"}),
            vec![
                json!({"input": "x", "conversation": {"id": "conv_1"}}),
                json!({"input": "x", "conversation": "conv_1"}),
                json!({"input": "x", "prompt": {"id": "pmpt_1", "version": "2"}}),
                json!({"input": [{"type": "item_reference", "id": "msg_1"}]}),
                json!({"input": "x", "tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}]}),
                json!({"input": "x", "tools": [{"type": "code_interpreter", "container": "cntr_1"}]}),
            ],
        ),
        (
            "cohere",
            400,
            &tokens,
            json!({"message": "x", "documents": [{"id": "1", "text": "x"}]}),
            vec![
                json!({"message": "x", "conversation_id": "c"}),
                json!({"message": "x", "connectors": [{"id": "web-search"}]}),
            ],
        ),
        (
            "vllm",
            400,
            &vllm,
            json!({"messages": [{"content": [{"image_url": {"url": "data:image/png;base64,AA"}}]}]}),
            vec![
                json!({"messages": [{"content": [{"image_url": null, "uuid": "a"}]}]}),
                json!({"input": "x", "previous_response_id": "resp_1"}),
            ],
        ),
        (
            "paddlex-serving",
            422,
            &pixels,
            json!({"file": "aGVsbG8=", "fileType": 1}),
            vec![json!({"file": "http://host/a.png", "fileType": 1}), json!({"image": "https://host/a.png"})],
        ),
        (
            "anthropic",
            400,
            &claude,
            json!({"messages": [{"role": "user", "content": "x"}]}),
            vec![
                json!({"messages": [], "container": "container_1"}),
                json!({"messages": [], "container": {"id": "container_1", "skills": []}}),
                json!({"messages": [], "container": {"skills": [{"type": "custom", "skill_id": "skill_1", "version": "latest"}]}}),
            ],
        ),
        (
            "google-gemini",
            400,
            &gemini,
            json!({"contents": [{"parts": [{"inlineData": {"data": "aGVsbG8="}}]}]}),
            vec![
                json!({"input": "x", "previous_interaction_id": "i"}),
                json!({"contents": [], "tools": [{"fileSearch": {"fileSearchStoreNames": ["fileSearchStores/a"]}}]}),
            ],
        ),
    ] {
        assert_ne!(to_json(profile, &inline, status, body), Remember::Never, "{profile} {inline}");
        for request in elsewhere {
            assert_eq!(to_json(profile, &request, status, body), Remember::Never, "{profile} {request}");
        }
    }
}

#[test]
fn input_in_a_notation_that_is_not_read() {
    let body = json!({"message": "m"});
    let to = |content_type, request: &[u8]| {
        let request =
            SavedRequest { content_type: Some(content_type), body: Some(request), ..SavedRequest::default() };
        judged("aws-textract", &request, 400, &body)
    };
    assert_eq!(to("application/x-amz-json-1.1", br#"{"Document":{"Bytes":"aGVsbG8="}}"#), Remember::Full);
    assert_eq!(
        to("application/x-amz-json-1.1", br#"{"Document":{"S3Object":{"Bucket":"b"}}}"#),
        Remember::Never
    );
    // the same in CBOR
    assert_eq!(
        to("application/cbor", b"\xa1\x68Document\xa1\x68S3Object\xa1\x66Bucket\x61b"),
        Remember::Never
    );
}

#[test]
fn the_state_of_the_machine() {
    let document = SavedRequest { content_type: Some("application/pdf"), ..SavedRequest::default() };
    let of_category = |category: &str, message: &str| {
        let error = json!({"component_type": "user_input", "category": category, "error_message": message});
        let answer = json!({"status": "failure", "document": {"md_content": null}, "errors": [error]});
        judged("docling-serve", &document, 200, &answer)
    };
    let docling = |message: &str| of_category("backend_failure", message);
    assert_eq!(
        of_category("policy", "File format not allowed"),
        Remember::Short,
        "a limit that is configured"
    );
    assert_eq!(docling("Input document a.pdf is not valid."), Remember::Full);
    let pdf = |message: &str| {
        let detail = format!("File does not appear to be a valid PDF. Error: {message}");
        judged("unstructured-api", &document, 422, &json!({ "detail": detail }))
    };
    assert_eq!(pdf("EOF marker not found"), Remember::Full);
    for message in [
        "[Errno 28] No space left on device: '/tmp/x'",
        "[Errno 2] No usable temporary directory found in ['/tmp']",
        "[Errno 12] Cannot allocate memory",
        "std::bad_alloc",
        "CUDA out of memory. Tried to allocate 20.00 MiB",
        "[Errno 24] Too many open files",
        "cryptography>=3.1 is required for AES algorithm",
    ] {
        assert_eq!(docling(message), Remember::Never, "{message}");
        assert_eq!(pdf(message), Remember::Never, "{message}");
    }
}
