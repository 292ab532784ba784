//! The `openai` adapter passes everything through: bytes as they came in both directions, streams as they arrive, the
//! upstream's credential in place of the tenant's key, and no refusal remembered.

use nevertwice_testkit::{Answer, Client, Gate, Gateway, Reply, Request, Setup, Step, Upstream};

use crate::bench::settle;

const CHAT: &str = "/llm/v1/chat/completions";
/// Everything that a parser would write differently.
const ODD: &str =
    "{\"b\":1.0,\"a\":12345678901234567890,\"c\":\"\\u0026\\/\",\"a\":2,\"e\":1e400,\"model\":\"x\" }\n";

/// The memory is on for all, and off for this upstream as ever.
fn config(upstream: &Upstream, more: &str) -> String {
    let entry = format!(
        "- name: llm\n  adapter: openai\n  base_url: \"{}\"\n{}",
        upstream.url(),
        more.lines().map(|line| format!("  {line}\n")).collect::<String>()
    );
    Gateway::simple_yaml(&upstream.url(), &[("UPSTREAMS", &entry)])
}

async fn ask(gateway: &Gateway, request: Request) -> Answer {
    Client::connect(gateway.addr).await.request(request).await
}

fn chat() -> Request {
    Request::post(CHAT).header("Content-Type", "application/json")
}

#[tokio::test]
async fn openai_requests_and_answers_pass_byte_for_byte() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let reply = Reply::status(200)
        .header("Content-Type", "application/json")
        .header("Content-Encoding", "gzip")
        .header("openai-processing-ms", "12")
        .header("x-request-id", "req_1")
        .header("x-ratelimit-remaining-requests", "59")
        .body(&b"\x1f\x8b\x08\0not really gzip"[..]);
    upstream.always(reply.clone());
    let mut n = 0;
    for (method, path, body) in [
        ("POST", "/v1/chat/completions", ODD),
        ("POST", "/v1/completions", ODD),
        ("POST", "/v1/responses", ODD),
        ("POST", "/v1/embeddings", "{\"input\":[\"a\",\"b\"],\"model\":\"e\"}"),
        ("GET", "/v1/models", ""),
        ("GET", "/v1/models/gpt%2Fx?after=1", ""),
        ("DELETE", "/v1/responses/resp_1", ""),
    ] {
        let request = Request::new(method, &format!("/llm{path}"))
            .bearer("tok-1")
            .header("Content-Type", "application/json")
            .header("Accept-Encoding", "gzip, br")
            .header("OpenAI-Organization", "org_1")
            .header("User-Agent", "OpenAI/Python 1.2.3")
            .header("X-Stainless-Retry-Count", "0")
            .body(body);
        let answer = ask(&gateway, request).await;
        n += 1;
        assert_eq!((answer.status, upstream.calls()), (200, n), "{path}");
        assert_eq!(&answer.body[..], b"\x1f\x8b\x08\0not really gzip", "{path}");
        for (name, value) in [
            ("content-encoding", "gzip"),
            ("openai-processing-ms", "12"),
            ("x-request-id", "req_1"),
            ("x-ratelimit-remaining-requests", "59"),
        ] {
            assert_eq!(answer.header(name).as_deref(), Some(value), "{path} {name}");
        }
        let seen = upstream.last_request();
        assert_eq!(
            (seen.method.as_str(), seen.target.as_str(), &seen.body[..]),
            (method, path, body.as_bytes())
        );
        for (name, value) in [
            ("accept-encoding", "gzip, br"),
            ("openai-organization", "org_1"),
            ("user-agent", "OpenAI/Python 1.2.3"),
            ("x-stainless-retry-count", "0"),
        ] {
            assert_eq!(seen.header(name).as_deref(), Some(value), "{path} {name}");
        }
        assert!(seen.problems.is_empty(), "{seen:?}");
    }
    let lines = settle(&gateway, 7).await;
    for line in &lines {
        assert_eq!(
            (&line["upstream"], &line["route"], &line["code"]),
            (&"llm".into(), &"*".into(), &"OK".into())
        );
        assert!(line.get("fingerprint").is_none(), "{line}");
    }
}

#[tokio::test]
async fn openai_streams_are_relayed_as_they_arrive_and_byte_for_byte() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let events = [
        ": ping\n\n",
        "event: x\nid: 7\nretry: 100\ndata: a\ndata: b\n\n",
        "data:{\"no\":\"space\"}\r\n\r\n",
        "data: [DONE]\n\n",
    ];
    let gates: Vec<Gate> = events.iter().map(|_| Gate::new()).collect();
    let mut steps: Vec<Step> = Vec::new();
    for (event, gate) in events.iter().zip(&gates) {
        steps.extend([Step::WaitFor(gate.clone()), Step::chunk(*event)]);
    }
    steps.push(Step::LastChunk);
    upstream.always(Reply::status(200).header("Content-Type", "text/event-stream").steps(steps));
    let mut client = Client::connect(gateway.addr).await;
    client
        .try_send_request(chat().bearer("tok-1").body("{\"stream\":true}"))
        .await
        .unwrap_or_else(|e| unreachable!("{e}"));
    let head = client.read_head().await;
    assert_eq!((head.status, head.header("content-type").as_deref()), (200, Some("text/event-stream")));
    let mut all = Vec::new();
    for (event, gate) in events.iter().zip(&gates) {
        // Each event arrives before the next one exists: nothing waits in the gateway.
        gate.open();
        let from = all.len();
        while all.len() < from + event.len() {
            let some = client.read_some().await.unwrap_or_else(|failure| unreachable!("{failure}"));
            all.extend_from_slice(&some.unwrap_or_else(|| unreachable!("the stream ended early")).bytes);
        }
        assert_eq!(String::from_utf8_lossy(&all[from..]), *event);
    }
    assert!(matches!(client.read_some().await, Ok(None)), "the end is the upstream's end");
    let lines = settle(&gateway, 1).await;
    assert_eq!((&lines[0]["code"], &lines[0]["bytes_out"]), (&"OK".into(), &events.concat().len().into()));
    assert!(lines[0].get("end").is_none(), "{}", lines[0]);
}

#[tokio::test]
async fn openai_refusals_are_never_remembered() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let mut calls = 0;
    for status in [400, 413, 415, 422, 429, 500] {
        let body = "{\"error\":{\"type\":\"invalid_request_error\",\"message\":\"balance too low\"}}";
        let reply =
            Reply::status(status).header("Content-Type", "application/json").header("Retry-After", "7");
        upstream.always(reply.body(body));
        for path in [CHAT, "/llm/v1/embeddings"] {
            for _ in 0..3 {
                let answer = ask(&gateway, Request::post(path).bearer("tok-1").body(ODD)).await;
                calls += 1;
                assert_eq!((answer.status, answer.text().as_str(), answer.is_hit()), (status, body, false));
                assert_eq!(answer.header("retry-after").as_deref(), Some("7"));
                assert_eq!(upstream.calls(), calls);
            }
        }
    }
    // The account is filled up: service is back with the next call.
    upstream.always(Reply::status(200));
    assert_eq!(ask(&gateway, chat().bearer("tok-1").body(ODD)).await.status, 200);
    assert_eq!(gateway.metric("gateway_negative_cache_entries", &[]).await, 0.0);
    assert!(!gateway.metrics().await.contains("not_recorded_total{reason=\"unclassified\"} 1"));
    settle(&gateway, 37).await;
}

/// Every field in which a client may present a key.
const KEYS: [&str; 4] = ["Authorization", "api-key", "x-api-key", "Ocp-Apim-Subscription-Key"];

fn presented(name: &str, key: &str) -> Request {
    let value = if name == "Authorization" { format!("Bearer {key}") } else { key.to_owned() };
    chat().header(name, value).body(ODD)
}

/// The key fields that the upstream saw.
fn seen_keys(upstream: &Upstream) -> Vec<(String, String)> {
    let seen = upstream.last_request();
    assert!(!String::from_utf8_lossy(&seen.raw()).contains("tok-1"), "the tenant's key went up: {seen:?}");
    KEYS.iter().filter_map(|name| Some((name.to_lowercase(), seen.header(name)?))).collect()
}

#[tokio::test]
async fn openai_a_tenant_key_is_taken_off_and_the_credential_put_in() {
    let upstream = Upstream::start().await;
    for (more, expected) in [
        ("credential: {header: Authorization, value: env:UP}", vec![("authorization", "Bearer up-secret")]),
        ("credential: {header: api-key, value: env:UP}", vec![("api-key", "Bearer up-secret")]),
        ("", vec![]),
    ] {
        let gateway = Setup::new(&config(&upstream, more)).env("UP", "Bearer up-secret").start().await;
        let expected: Vec<_> = expected.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        for name in KEYS {
            assert_eq!(ask(&gateway, presented(name, "tok-1")).await.status, 200, "{name}");
            assert_eq!(seen_keys(&upstream), expected, "{more} {name}");
        }
        let both = presented("Authorization", "tok-1").header("x-api-key", "tok-1");
        assert_eq!(ask(&gateway, both).await.status, 200, "the same key twice is one key");
        assert_eq!(seen_keys(&upstream), expected);
        let log = gateway.log();
        let config = gateway.admin_get("/admin/v1/upstreams").await.1.to_string();
        settle(&gateway, 5).await;
        let audit = std::fs::read_to_string(gateway.dir().join("audit.jsonl")).unwrap_or_default();
        for text in [&log, &config, &audit, &gateway.metrics().await] {
            assert!(!text.contains("up-secret") && !text.contains("tok-1"), "a secret shows: {text}");
        }
    }
}

#[tokio::test]
async fn openai_without_tenant_keys_the_client_s_own_key_passes() {
    let upstream = Upstream::start().await;
    let keyless = |more: &str| {
        let yaml = config(&upstream, more);
        let (before, rest) = yaml.split_once("tenants:\n").unwrap_or_else(|| unreachable!("{yaml}"));
        let after = rest.find("store:").unwrap_or_else(|| unreachable!("{yaml}"));
        format!("{before}{}", &rest[after..])
    };
    let gateway = Gateway::start(&keyless("")).await;
    for name in KEYS {
        let request = presented(name, "sk-client");
        assert_eq!(ask(&gateway, request).await.status, 200);
        let value = if name == "Authorization" { "Bearer sk-client" } else { "sk-client" };
        assert_eq!(seen_keys(&upstream), [(name.to_lowercase(), value.to_owned())]);
    }
    let odd = chat().header("Authorization", "Basic dXNlcjpwYXNz").body(ODD);
    assert_eq!(ask(&gateway, odd).await.status, 200);
    assert_eq!(seen_keys(&upstream), [("authorization".to_owned(), "Basic dXNlcjpwYXNz".to_owned())]);
    assert_eq!(ask(&gateway, chat().body(ODD)).await.status, 200);
    assert_eq!(seen_keys(&upstream), []);
    let lines = settle(&gateway, 6).await;
    assert!(lines.iter().all(|line| line["tenant"] == "default"), "{lines:#?}");
    let audit = std::fs::read_to_string(gateway.dir().join("audit.jsonl")).unwrap_or_default();
    assert!(!audit.contains("sk-client") && !gateway.log().contains("sk-client"));
    drop(gateway);

    // Where the gateway has a credential, it is the one that counts.
    let with = keyless("credential: {header: Authorization, value: env:UP}");
    let gateway = Setup::new(&with).env("UP", "Bearer up-secret").start().await;
    assert_eq!(ask(&gateway, presented("Authorization", "sk-client")).await.status, 200);
    assert_eq!(seen_keys(&upstream), [("authorization".to_owned(), "Bearer up-secret".to_owned())]);
    assert_eq!(ask(&gateway, presented("x-api-key", "sk-client")).await.status, 200);
    let seen = seen_keys(&upstream);
    assert!(seen.contains(&("authorization".to_owned(), "Bearer up-secret".to_owned())), "{seen:?}");
    settle(&gateway, 2).await;
}

#[tokio::test]
async fn openai_uploads_are_forwarded_while_they_arrive() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::start(&config(&upstream, "")).await;
    let mut client = Client::connect(gateway.addr).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{{\"a\":\r\n"
    );
    client.send(head).await.unwrap_or_else(|failure| unreachable!("{failure}"));
    upstream.wait_until("the first half of the body", |upstream| upstream.body_bytes() == 5).await;
    client.send("2\r\n1}\r\n0\r\n\r\n").await.unwrap_or_else(|failure| unreachable!("{failure}"));
    assert_eq!(client.read_answer().await.status, 200);
    let seen = upstream.last_request();
    assert_eq!(
        (&seen.body[..], seen.header("transfer-encoding").as_deref()),
        (&b"{\"a\":1}"[..], Some("chunked"))
    );
    let lines = settle(&gateway, 1).await;
    assert_eq!(lines[0]["bytes_in"], 7);
}
