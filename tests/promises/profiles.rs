//! Profiles at the wire: which refusals are remembered is told by rules, counted at the upstream.
#![expect(clippy::unwrap_used, reason = "test")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nevertwice_testkit::{
    Answer, DOC, Gateway, Part, Post, Reply, Setup, Upstream, multipart, random_document,
};
use serde_json::{Value, json};

use crate::bench::settle;
use crate::caller::{CLASSIFY, assert_live, assert_replay, entries, entry_count, submit};

/// The guarded upstream with these lines in its `negative_cache`.
async fn with(upstream: &Upstream, keys: &str) -> Gateway {
    let lines = format!("negative_cache: {{{keys}}}");
    Gateway::with(&upstream.url(), &[("UPSTREAM", &lines)]).await
}

/// A refusal in JSON.
pub fn refusal(status: u16, body: impl ToString) -> Reply {
    Reply::status(status).header("Content-Type", "application/json").body(body.to_string())
}

/// An error of Azure AI Document Intelligence with this inner code.
pub fn inner(code: &str) -> Value {
    json!({ "error": { "code": "InvalidRequest", "message": "m", "innererror": { "code": code, "message": "m" } } })
}

fn document(gateway: &Gateway) -> Post {
    submit(gateway, CLASSIFY).header("Content-Type", "application/octet-stream").body(&DOC[..])
}

async fn three(send: impl AsyncFn() -> Answer) -> Vec<Answer> {
    vec![send().await, send().await, send().await]
}

/// Sends it three times; the upstream must be asked once where it is remembered, else every time.
pub async fn asked(upstream: &Upstream, send: impl AsyncFn() -> Answer) -> u64 {
    let before = upstream.calls();
    let answers = three(send).await;
    let asked = upstream.calls() - before;
    assert_eq!(answers.iter().filter(|a| a.is_hit()).count() as u64, 3 - asked);
    if asked == 1 {
        assert_replay(&answers[0], &answers[2]);
    }
    asked
}

#[tokio::test]
async fn the_inner_code_decides_and_not_the_400() {
    let upstream = Upstream::start().await;
    let gateway = with(&upstream, "profile: azure-document-intelligence").await;
    for (n, (code, calls)) in [
        ("InvalidContent", 1),
        ("UnsupportedContent", 1),
        ("ContentSourceTimeout", 3),
        ("ContentSourceNotAccessible", 3),
        ("ModelNotReady", 3),
        ("ModelAnalyzeError", 3),
        ("InvalidParameter", 3),
        ("SomethingNew", 3),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.always(refusal(400, inner(code)));
        let document = random_document(n as u64, 2000);
        let send = async || {
            submit(&gateway, CLASSIFY)
                .header("Content-Type", "application/pdf")
                .body(document.clone())
                .send()
                .await
        };
        assert_eq!(asked(&upstream, send).await, calls, "{code}");
    }
    assert_eq!(entry_count(&gateway).await, 2);
    let listed = entries(&gateway, "").await;
    assert!(listed.iter().all(|entry| entry["status"] == 400), "{listed:?}");
    for (reason, count) in [("unclassified", 6.0), ("rule", 12.0)] {
        gateway.wait_metric("gateway_negative_cache_not_recorded_total", &[("reason", reason)], count).await;
    }
    settle(&gateway, 24).await;
}

#[tokio::test]
async fn input_by_reference_is_never_remembered_however_it_is_named() {
    let upstream = Upstream::start().await;
    let gateway = with(&upstream, "profile: azure-document-intelligence").await;
    upstream.always(refusal(400, inner("InvalidContent")));
    let json = |body: String| {
        let gateway = &gateway;
        async move || {
            submit(gateway, CLASSIFY)
                .header("Content-Type", "application/json")
                .body(body.clone())
                .send()
                .await
        }
    };
    assert_eq!(asked(&upstream, json(json!({ "base64Source": "JVBERi0=" }).to_string())).await, 1);
    assert_eq!(asked(&upstream, json(json!({ "urlSource": "https://a/b.pdf" }).to_string())).await, 3);
    assert_eq!(asked(&upstream, json(r#"{"url\u0053ource":"https://a/b.pdf"}"#.to_owned())).await, 3);
    // behind a document that is too long for the memory of one body
    let long = format!(r#"{{"padding":"{}","urlSource":"https://a/b.pdf"}}"#, "A".repeat(3_000_000));
    assert_eq!(asked(&upstream, json(long)).await, 3);
    // a form field and a query parameter
    let (content_type, form) = multipart(
        "b",
        &[Part::field("urlSource", "https://a/b.pdf"), Part::file("file", "a.pdf", "application/pdf", b"x")],
    );
    let send = async || {
        submit(&gateway, CLASSIFY).header("Content-Type", &content_type).body(form.clone()).send().await
    };
    assert_eq!(asked(&upstream, send).await, 3);
    let query = format!("{CLASSIFY}?urlSource=https%3A%2F%2Fa");
    let send = async || {
        submit(&gateway, &query).header("Content-Type", "application/pdf").body(&DOC[..]).send().await
    };
    assert_eq!(asked(&upstream, send).await, 3);
    // a form that only some read may name it
    let lenient = String::from_utf8(form.clone()).unwrap().replace('\r', "");
    let send = async || {
        submit(&gateway, CLASSIFY).header("Content-Type", &content_type).body(lenient.clone()).send().await
    };
    assert_eq!(asked(&upstream, send).await, 3);
    // JSON in a form field, in a content coding, in another encoding, and of two types
    let (content_type, form) = multipart(
        "b",
        &[
            Part::field("options", r#"{"urlSource":"https://a/b.pdf"}"#),
            Part::file("file", "a.pdf", "application/pdf", b"x"),
        ],
    );
    let utf16: Vec<u8> = r#"{"urlSource":"https://a"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let json_type = ("Content-Type", "application/json");
    let sent = [
        (&[("Content-Type", content_type.as_str())][..], form.as_ref()),
        (&[json_type, ("Content-Encoding", "gzip")][..], &b"\x1f\x8b compressed"[..]),
        (&[("Content-Type", "application/json; charset=utf-16")][..], &utf16[..]),
        (
            &[json_type, ("Content-Type", "application/x-www-form-urlencoded")][..],
            &b"urlSource=https://a"[..],
        ),
        (&[("Content-Type", "application/cbor")][..], &b"\xa1\x69urlSource\x61a"[..]),
    ];
    for (headers, body) in sent {
        let send = async || {
            let post = submit(&gateway, CLASSIFY);
            let post = headers.iter().fold(post, |post, (name, value)| post.header(name, value));
            post.body(body.to_vec()).send().await
        };
        assert_eq!(asked(&upstream, send).await, 3, "{headers:?}");
    }
    gateway.wait_metric("gateway_negative_cache_not_recorded_total", &[("reason", "reference")], 33.0).await;
}

#[tokio::test]
async fn what_stands_in_front_of_the_service_is_not_believed() {
    let upstream = Upstream::start().await;
    let gateway = with(&upstream, "profile: azure-document-intelligence").await;
    let html = "<html><head><title>413 Request Entity Too Large</title></head></html>";
    for reply in [
        Reply::status(413).header("Content-Type", "text/html").body(html),
        Reply::status(400).header("Content-Type", "text/plain").body("Bad Request"),
        Reply::status(400),
        refusal(400, json!({ "statusCode": 400, "message": "InvalidContent" })),
        refusal(400, inner("InvalidContent")).header("Retry-After", "5"),
        refusal(400, inner("InvalidContent")).header("x-should-retry", "true"),
    ] {
        upstream.always(reply);
        assert_eq!(asked(&upstream, async || document(&gateway).send().await).await, 3);
    }
    assert_eq!(entry_count(&gateway).await, 0);
    // and the service itself is, the moment it speaks
    upstream.always(refusal(400, inner("InvalidContent")));
    assert_eq!(asked(&upstream, async || document(&gateway).send().await).await, 1);
}

#[tokio::test]
async fn short_verdicts_live_shorter() {
    let upstream = Upstream::start().await;
    let gateway = with(&upstream, "profile: azure-document-intelligence, ttl_s: 500, short_ttl_s: 100").await;
    for (code, life) in [("InvalidContent", 500), ("InvalidContentLength", 100)] {
        upstream.always(refusal(400, inner(code)));
        let send = async || {
            submit(&gateway, CLASSIFY).header("Content-Type", "application/pdf").body(code).send().await
        };
        assert_live(&send().await, 400);
        let hit = send().await;
        assert!(hit.is_hit());
        let status = hit.header("cache-status").unwrap_or_default();
        let ttl = status
            .split("ttl=")
            .nth(1)
            .and_then(|rest| rest.split(';').next())
            .and_then(|t| t.parse::<u64>().ok());
        assert!(ttl.is_some_and(|ttl| ttl <= life && ttl + 60 > life), "{code}: {status}");
    }
}

#[tokio::test]
async fn keyed_verdicts_are_remembered_where_that_is_switched_on_and_the_key_holds_all() {
    let upstream = Upstream::start().await;
    upstream.always(refusal(
        400,
        json!({ "error": { "code": "InvalidArgument", "innererror": { "code": "InvalidParameter" } } }),
    ));
    for (keys, calls) in [
        ("profile: azure-document-intelligence", 3),
        ("profile: azure-document-intelligence, remember_keyed: true", 1),
        ("profile: azure-document-intelligence, remember_keyed: true, ignored_query: [pages]", 3),
    ] {
        let gateway = with(&upstream, keys).await;
        assert_eq!(asked(&upstream, async || document(&gateway).send().await).await, calls, "{keys}");
    }
}

#[tokio::test]
async fn a_service_may_say_it_itself_where_it_is_trusted() {
    let upstream = Upstream::start().await;
    let say = |class: &str| refusal(422, json!({ "detail": "no" })).header("X-Refusal-Class", class);
    for (keys, class, calls) in [
        ("profile: status, trust_refusal_class: true", "content", 1),
        ("profile: status, trust_refusal_class: true", "transient", 3),
        ("profile: status, trust_refusal_class: true", "caller", 3),
        ("profile: fastapi, trust_refusal_class: true", "content", 1),
        ("profile: fastapi", "content", 3),
    ] {
        upstream.always(say(class));
        let gateway = with(&upstream, keys).await;
        assert_eq!(asked(&upstream, async || document(&gateway).send().await).await, calls, "{keys} {class}");
    }
}

#[tokio::test]
async fn whatever_the_verdict_depended_on_leaves_it_behind_when_it_changes() {
    let upstream = Upstream::start().await;
    upstream.always(refusal(400, inner("InvalidContent")));
    let config = |more: &str| {
        let own = "profiles: [\"@DIR@/own.yaml\"]";
        Gateway::simple_yaml(&upstream.url(), &[("UPSTREAM", more), ("TOP", own)])
    };
    let own = |rule: &str| {
        format!(
            "profile: own\nabout: ours\nextends: azure-document-intelligence\nrules:\n- {{rule: {rule}, status: 400, when: [{{at: /x, is: y}}], class: content, remember: full}}\n"
        )
    };
    let guarded = |more: &str| format!("negative_cache: {{profile: own{more}}}");
    let credential =
        |name: &str| format!("credential: {{header: api-key, value: 'env:{name}'}}\n{}", guarded(""));
    let mut gateway = Setup::new(&Gateway::simple_yaml(&upstream.url(), &[]))
        .env("KEY_A", "credential-a")
        .env("KEY_B", "credential-b")
        .start()
        .await;
    let profile = gateway.dir().join("own.yaml");
    let write = |rule: &str| std::fs::write(&profile, own(rule)).unwrap();
    let yaml = |gateway: &Gateway, text: &str| {
        let text = text
            .replace("@DIR@", &gateway.dir().display().to_string())
            .replace("@LISTEN@", &gateway.addr.to_string())
            .replace("@ADMIN@", &gateway.admin.to_string());
        std::fs::write(gateway.config_file(), text).unwrap();
    };
    write("one");
    let mut calls = 0;
    for (change, known) in [
        (config(&guarded("")), false),
        (config(&guarded("")), true),
        (config(&guarded(", tier: S0")), false),
        (config(&guarded(", generation: 2")), false),
        (config(&credential("KEY_A")), false),
        (config(&credential("KEY_B")), false),
        (config(&credential("KEY_A")), true),
        (config(&guarded("")), true),
    ] {
        yaml(&gateway, &change);
        gateway.restart().await;
        let answer = document(&gateway).send().await;
        assert_eq!(answer.is_hit(), known, "{change}");
        calls += u64::from(!known);
        assert_eq!(upstream.calls(), calls);
    }
    // no secret reaches the store
    for entry in std::fs::read_dir(gateway.dir().join("data")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        assert!(!bytes.windows(12).any(|w| w == b"credential-a" || w == b"credential-b"));
    }
    // other rules, too
    write("two");
    gateway.restart().await;
    assert!(!document(&gateway).send().await.is_hit());
}

#[tokio::test]
async fn a_document_in_base64_is_known_by_the_digest_of_its_bytes() {
    let upstream = Upstream::start().await;
    let gateway = with(&upstream, "profile: azure-document-intelligence").await;
    upstream.always(refusal(400, inner("InvalidContent")));
    let body = json!({ "base64Source": STANDARD.encode(DOC) }).to_string();
    assert_live(
        &submit(&gateway, CLASSIFY).header("Content-Type", "application/json").body(body).send().await,
        400,
    );
    assert_live(&document(&gateway).send().await, 400);
    let listed = entries(&gateway, "").await;
    let digests: Vec<_> = listed.iter().map(|entry| &entry["document_sha256"]).collect();
    assert_eq!(digests.len(), 2);
    assert_eq!(digests[0], digests[1]);
}

#[tokio::test]
async fn a_reload_takes_changed_rules_and_refuses_broken_ones() {
    let upstream = Upstream::start().await;
    let own = "profiles: [\"@DIR@/own.yaml\"]";
    let gateway = Setup::new(&Gateway::simple_yaml(
        &upstream.url(),
        &[("UPSTREAM", "negative_cache: {profile: own}"), ("TOP", own)],
    ));
    // the file has to be there before the gateway starts
    let rule = |code: &str| {
        format!(
            "profile: own\nabout: ours\nrules:\n- {{rule: r, status: 400, when: [{{at: /code, is: {code}}}], class: content, remember: full}}\n"
        )
    };
    let gateway = gateway.file("own.yaml", &rule("A")).start().await;
    let write = |text: &str| std::fs::write(gateway.dir().join("own.yaml"), text).unwrap();
    let send = async || document(&gateway).send().await;
    upstream.always(refusal(400, json!({ "code": "A" })));
    assert_eq!(asked(&upstream, send).await, 1);
    // unchanged: nothing happens, the memory stays
    let (status, answer) = gateway.admin_post("/admin/v1/reload", &json!({})).await;
    assert_eq!(
        (status, &answer),
        (200, &json!({ "profiles": { "doc-classifier": "own" }, "changed": [], "restart_needed": false }))
    );
    assert!(send().await.is_hit());
    // broken: told with file, line and rule, and what was live stays live
    write(&rule("B").replace("400", "404"));
    let (status, answer) = gateway.admin_post("/admin/v1/reload", &json!({})).await;
    assert_eq!((status, &answer["code"]), (422, &json!("BAD_CONFIGURATION")));
    let told = answer["problems"].to_string();
    assert!(told.contains("own.yaml:4:21: rules[0] (r).status: 404 is never remembered"), "{told}");
    assert!(send().await.is_hit());
    let failed = gateway.cli(&["reload"]).await;
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && told.contains("own.yaml:4:21"), "{told}");
    // other rules: what the old ones remembered is not used, and what they knew is not known
    write(&rule("B"));
    let done = gateway.cli(&["reload"]).await;
    assert!(
        done.status.success() && String::from_utf8_lossy(&done.stdout).contains("doc-classifier: own"),
        "{done:?}"
    );
    assert_eq!(asked(&upstream, send).await, 3);
    upstream.always(refusal(400, json!({ "code": "B" })));
    assert_eq!(asked(&upstream, send).await, 1);
    // and back: the entries of those rules are there again
    write(&rule("A"));
    gateway.admin_post("/admin/v1/reload", &json!({})).await;
    assert!(send().await.is_hit());
}

fn chat(gateway: &Gateway, path: &str, content: &Value) -> Post {
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": content }] });
    submit(gateway, path).header("Content-Type", "application/json").body(body.to_string())
}

#[tokio::test]
async fn nv_01_03_09_chat_with_the_memory_on_by_name_remembers_only_what_is_about_the_input() {
    let upstream = Upstream::start().await;
    let lines = format!(
        "- name: llm\n  adapter: openai\n  base_url: \"{}\"\n  mount: /llm\n  negative_cache: {{profile: openai}}",
        upstream.url()
    );
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAMS", &lines)]).await;
    let error = |code: Value, kind: &str, message: &str| {
        refusal(400, json!({ "error": { "message": message, "type": kind, "param": null, "code": code } }))
    };
    let inline = json!([{ "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } }]);
    let linked = json!([{ "type": "image_url", "image_url": { "url": "https://a.example/b.png" } }]);
    let mut n = 0;
    for path in ["/llm/v1/chat/completions", "/llm/v1/responses", "/llm/v1/embeddings", "/llm/v1/completions"]
    {
        for (reply, content, calls) in [
            (
                error(
                    json!("invalid_image_format"),
                    "invalid_request_error",
                    "You uploaded an unsupported image.",
                ),
                &inline,
                1,
            ),
            (
                error(
                    json!("invalid_image_format"),
                    "invalid_request_error",
                    "You uploaded an unsupported image.",
                ),
                &linked,
                3,
            ),
            (error(json!("context_length_exceeded"), "invalid_request_error", "too long"), &inline, 1),
            (error(json!(null), "invalid_request_error", "balance too low"), &inline, 3),
            (error(json!("billing_hard_limit_reached"), "invalid_request_error", "m"), &inline, 3),
            (error(json!("model_not_found"), "invalid_request_error", "m"), &inline, 3),
            (error(json!("content_filter"), "invalid_request_error", "m"), &inline, 3),
            (
                error(
                    json!("sanitizer_server_error"),
                    "invalid_request_error",
                    "You uploaded an unsupported image.",
                ),
                &inline,
                3,
            ),
        ] {
            n += 1;
            upstream.always(reply);
            let mut content = content.clone();
            content.as_array_mut().unwrap().push(json!({ "type": "text", "text": format!("number {n}") }));
            let send = async || chat(&gateway, path, &content).send().await;
            assert_eq!(asked(&upstream, send).await, calls, "{path} {content}");
        }
    }
    // good answers, streamed ones among them, pass; and topping the account up helps at once
    upstream.always(
        Reply::status(200).header("Content-Type", "text/event-stream").body("data: {}\n\ndata: [DONE]\n\n"),
    );
    let send = async || chat(&gateway, "/llm/v1/chat/completions", &inline).send().await;
    assert_eq!(asked(&upstream, send).await, 3);
    // what carries no input is not looked at
    upstream.always(refusal(400, json!({ "error": { "code": "invalid_image_format" } })));
    let send = async || submit(&gateway, "/llm/v1/files").body("x").send().await;
    assert_eq!(asked(&upstream, send).await, 3);
}
