//! The upstream sees the path, the query and the header fields that the client sent, byte for byte, and there is a stated
//! limit on header sections in both directions, beyond which the answer says so.

use nevertwice_testkit::{Answer, Client, DOC, Gateway, Reply, Request, Upstream, r400};

use crate::bench::{assert_own, post, settle};

const MOUNT: &str = "/doc-classifier";

async fn ask(gateway: &Gateway, request: Request) -> Answer {
    Client::connect(gateway.addr).await.request(request.bearer("tok-1")).await
}

/// Targets behind the mount that must arrive as they are.
const TARGETS: [&str; 19] = [
    "/documentModels/a%2Fb:analyze?pages=1%2C2&features=a+b&flag&e=%20",
    "/documentModels/a%2fb:analyze",
    "/documentModels/prebuilt%3Aread%3aanalyze",
    "/models;v=1/x;y=2?z;w",
    "/%E2%82%AC/%e2%82%ac?q=%C3%BC",
    "/classify%20",
    "/classify/",
    "//classify",
    "/a//b///c",
    "/a?",
    "/a??x=?&&=&=y&x",
    "/a?next=http://other.test/%3Fa%3Db&plus=+&at=@:",
    "/~user/!$&'()*+,;=:@",
    "/...",
    "/.well-known/x",
    "/a%00b",
    "/a%5Cb",
    "/%25252e%25252e/x",
    "/",
];

#[tokio::test]
async fn pa_01_the_upstream_sees_the_bytes_of_path_and_query() {
    let upstream = Upstream::start().await;
    let base = format!("{}/base", upstream.url());
    let more = format!(
        "- {{name: based, base_url: \"{base}\"}}\n\
         - {{name: root, base_url: \"{}\", mount: /, sync_paths: [\"/g/a%2Fb:analyze\"]}}\n",
        upstream.url()
    );
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAMS", &more)]).await;
    let mut calls = 0;
    for target in TARGETS {
        for method in ["GET", "POST"] {
            for (mount, prefix) in [(MOUNT, ""), ("/based", "/base"), ("", "")] {
                let answer = ask(&gateway, Request::new(method, &format!("{mount}{target}"))).await;
                calls += 1;
                let case = format!("{method} {mount}{target}");
                assert_eq!((answer.status, upstream.calls()), (200, calls), "{case}: {}", answer.text());
                assert_eq!(upstream.last_request().target, format!("{prefix}{target}"), "{case}");
            }
        }
    }
    // A mount alone is the root of its upstream.
    assert_eq!(ask(&gateway, Request::get(MOUNT)).await.status, 200);
    assert_eq!(upstream.last_request().target, "/");
    assert_eq!(ask(&gateway, Request::get("/doc-classifier?a=b")).await.status, 200);
    assert_eq!(upstream.last_request().target, "/?a=b");
    calls += 2;

    // On a guarded path the bytes are the key: another spelling is another path.
    upstream.always(r400());
    for (target, hit) in [
        ("/g/a%2Fb:analyze?pages=1%2C2", false),
        ("/g/a%2Fb:analyze?pages=1%2C2", true),
        ("/g/a%2Fb:analyze?pages=1%2c2", false),
        ("/g/a%2Fb:analyze?pages=1,2", false),
        ("/g/a%2Fb:analyze", false),
        ("/g/a%2Fb:analyze?", false),
        ("/g/a%2fb:analyze?pages=1%2C2", false),
        ("/g/a/b:analyze?pages=1%2C2", false),
    ] {
        let answer = ask(&gateway, Request::post(target).body(&DOC[..])).await;
        assert_eq!((answer.status, answer.is_hit()), (400, hit), "{target}");
        calls += u64::from(!hit);
        assert_eq!(upstream.calls(), calls, "{target}");
        if !hit {
            assert_eq!(upstream.last_request().target, target);
        }
    }
    settle(&gateway, usize::try_from(calls).unwrap_or_default() + 1).await;
}

#[tokio::test]
async fn pa_01_what_is_no_path_gets_one_clear_answer_and_reaches_nobody() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    let mut audited = 0;
    for (target, status, code) in [
        ("/doc-classifier/../admin", 400, "BAD_REQUEST"),
        ("/doc-classifier/%2e%2e/admin", 400, "BAD_REQUEST"),
        ("/doc-classifier/%2E./classify", 400, "BAD_REQUEST"),
        ("/doc-classifier/./classify", 400, "BAD_REQUEST"),
        ("/doc-classifier/classify/..", 400, "BAD_REQUEST"),
        ("/doc-classifierx/classify", 404, "NO_ROUTE"),
        ("/DOC-CLASSIFIER/classify", 404, "NO_ROUTE"),
        ("/doc%2Dclassifier/classify", 404, "NO_ROUTE"),
        ("/", 404, "NO_ROUTE"),
        ("/admin/v1/refusals", 404, "NO_ROUTE"),
        ("/metrics", 404, "NO_ROUTE"),
    ] {
        for _ in 0..2 {
            let answer = ask(&gateway, Request::post(target).body(&DOC[..])).await;
            assert_own(&answer, status, code, target);
            audited += 1;
        }
    }
    // An absolute target names the same path (RFC 9112 section 3.2.2); the named host is not asked.
    let answer =
        ask(&gateway, Request::post("http://other.test/doc-classifier/classify").body(&DOC[..])).await;
    assert_eq!((answer.status, upstream.calls()), (400, 1));
    let seen = upstream.last_request();
    assert_eq!((seen.target.as_str(), seen.header("host")), ("/classify", Some(upstream.addr().to_string())));
    audited += 1;
    assert_own(&ask(&gateway, Request::new("OPTIONS", "*")).await, 404, "NO_ROUTE", "OPTIONS *");
    audited += 1;
    assert_eq!(upstream.calls(), 1);

    // Bytes that no target can have: one answer with the marker, or passed on as they are; nothing is made of them.
    for target in ["/doc-classifier/classify?a=%zz", "/doc-classifier/%zz", "/doc-classifier/classify%"] {
        let before = upstream.calls();
        let answer = ask(&gateway, Request::post(target).body(&DOC[..])).await;
        audited += 1;
        if answer.header("x-gateway-error").is_some() {
            assert_own(&answer, 400, "BAD_REQUEST", target);
            assert_eq!(upstream.calls(), before, "{target}");
        } else {
            assert_eq!(upstream.calls(), before + 1, "{target}");
            assert_eq!(upstream.last_request().target, target.strip_prefix(MOUNT).unwrap_or_default());
        }
    }
    settle(&gateway, audited).await;
}

#[tokio::test]
async fn pa_01_a_target_that_no_uri_can_have_gets_the_gateway_s_own_answer() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let mut audited = 0;
    let mut wrong = Vec::new();
    for target in [
        &b"/doc-classifier/cl assify"[..],
        b"/doc-classifier/classify\tx",
        b"/doc-classifier/classify?long-enough-to-come-apart=\x00",
        b"/doc-classifier/cl\x00assify",
        b"/doc-classifier/x\x7f",
        b"/doc-classifier/<x>",
        b"/doc-classifier/`x`",
        b"/doc-classifier/\xff",
        b"/doc-classifier/classify#x",
        b"http:///doc-classifier/classify",
        b"http://[::1/doc-classifier/classify",
        b"classify",
    ] {
        let mut client = Client::connect(gateway.addr).await;
        let rest = b" HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nContent-Length: 1\r\n\r\nx";
        let sent = client.send([b"POST ", target, rest].concat()).await;
        let answer = client.read_answer().await;
        let case = target.escape_ascii().to_string();
        assert!(sent.is_ok() && [400, 404].contains(&answer.status), "{case}: {}", answer.status);
        if answer.header("x-gateway-error").is_none() || answer.json()["code"].is_null() {
            wrong.push(case);
            continue;
        }
        // An own answer to what the parser itself refuses is counted and not audited; a route that is not there is audited.
        audited += usize::from(answer.status == 404);
    }
    assert!(wrong.is_empty(), "answered without the gateway's own marker: {wrong:?}");
    assert_eq!(upstream.calls(), 0);
    settle(&gateway, audited).await;
}

fn many(lines: usize, bytes_each: usize) -> Vec<(String, String)> {
    (0..lines).map(|n| (format!("X-Big-{n}"), format!("{n:04}").repeat(bytes_each.div_ceil(4)))).collect()
}

const KIB: usize = 1024;

#[tokio::test]
async fn pa_04_large_answer_heads_pass_up_to_the_limit_and_are_a_502_beyond_it() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let mut audited = 0;
    for (case, fields, passes) in [
        ("3 KiB", many(1, 3 * KIB), true),
        ("12 KiB", many(3, 4 * KIB), true),
        ("40 KiB", many(1, 40 * KIB), true),
        ("150 lines", many(150, 8), true),
        ("200 KiB", many(50, 4 * KIB), false),
        ("200 KiB in one", many(1, 200 * KIB), false),
        ("600 KiB", many(100, 6 * KIB), false),
        ("250 lines", many(250, 8), false),
        ("3,000 lines", many(3_000, 8), false),
    ] {
        for (status, path) in [(200, "/doc-classifier/other"), (400, "/doc-classifier/classify")] {
            let reply = Reply::status(status).header("Content-Type", "text/plain").body("body");
            upstream.always(fields.iter().fold(reply, |reply, (name, value)| reply.header(name, value)));
            let document = format!("{case} {status}");
            for n in 0..2 {
                let before = upstream.calls();
                let answer = post(&gateway, path, document.clone()).await;
                audited += 1;
                let case = format!("{case}, {status}, {n}");
                if !passes {
                    assert_own(&answer, 502, "UPSTREAM_MALFORMED", &case);
                    assert_eq!(upstream.calls(), before + 1, "{case}: live each time");
                    continue;
                }
                assert_eq!((answer.status, answer.text().as_str()), (status, "body"), "{case}");
                let hit = status == 400 && n == 1;
                assert_eq!((answer.is_hit(), upstream.calls()), (hit, before + u64::from(!hit)), "{case}");
                if !hit {
                    for (name, value) in &fields {
                        assert_eq!(answer.header(name).as_ref(), Some(value), "{case}");
                    }
                }
            }
        }
    }
    let lines = settle(&gateway, audited).await;
    for line in lines.iter().filter(|line| line["status"] == 502) {
        assert!(
            ["header_bytes", "header_fields", "parse"].contains(&line["end"].as_str().unwrap_or_default()),
            "{line}"
        );
    }
}

#[tokio::test]
async fn pa_04_large_request_heads_pass_up_to_the_limit_and_are_a_431_beyond_it() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let (mut audited, mut calls) = (0, 0);
    for (case, fields, passes) in [
        ("3 KiB", many(1, 3 * KIB), true),
        ("12 KiB", many(3, 4 * KIB), true),
        ("40 KiB", many(1, 40 * KIB), true),
        ("150 lines", many(150, 8), true),
        ("200 KiB", many(50, 4 * KIB), false),
        ("200 KiB in one", many(1, 200 * KIB), false),
        ("1 MiB in one", many(1, 1024 * KIB), false),
        ("250 lines", many(250, 8), false),
        ("12,000 lines", many(12_000, 8), false),
    ] {
        for path in ["/doc-classifier/other", "/doc-classifier/classify"] {
            let request = fields.iter().fold(Request::post(path), |r, (name, value)| r.header(name, value));
            let answer = ask(&gateway, request.body(case)).await;
            if !passes {
                assert_own(&answer, 431, "HEADERS_TOO_LARGE", case);
                assert_eq!(upstream.calls(), calls, "{case}");
                continue;
            }
            (audited, calls) = (audited + 1, calls + 1);
            assert_eq!((answer.status, upstream.calls()), (200, calls), "{case}: {}", answer.text());
            let seen = upstream.last_request();
            for (name, value) in &fields {
                // On a guarded route no field goes up that is not in the key.
                let expected = Some(value).filter(|_| path.ends_with("other"));
                assert_eq!(seen.header(name).as_ref(), expected, "{case} {path}");
            }
        }
    }
    // A long query is part of the head.
    let query = "q".repeat(50 * KIB);
    let answer = ask(&gateway, Request::get(&format!("/doc-classifier/other?{query}"))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(upstream.last_request().target, format!("/other?{query}"));
    let longer = "q".repeat(70 * KIB);
    let answer = ask(&gateway, Request::get(&format!("/doc-classifier/other?{longer}"))).await;
    assert_own(&answer, 431, "HEADERS_TOO_LARGE", "a query of 70 KiB");
    let lines = settle(&gateway, audited + 1).await;
    assert!(lines.iter().all(|line| line.to_string().len() < 4 * KIB), "lines are bounded");
    let refused = gateway.metric("gateway_refused_framing_total", &[]).await;
    assert_eq!(refused, 11.0, "what the parser refuses is counted");
}

#[tokio::test]
async fn pa_04_the_limits_are_settings() {
    let upstream = Upstream::start().await;
    let http = "http: {header_max_bytes: 2048, header_max_count: 20}";
    let gateway = Gateway::with(&upstream.url(), &[("TOP", http)]).await;
    for (fields, status) in
        [(many(1, 1_500), 200), (many(1, 2_500), 431), (many(15, 8), 200), (many(25, 8), 431)]
    {
        let request = Request::get("/doc-classifier/other");
        let request = fields.iter().fold(request, |request, (name, value)| request.header(name, value));
        assert_eq!(ask(&gateway, request).await.status, status, "{}", fields.len());
    }
    assert_eq!(upstream.calls(), 2);
    settle(&gateway, 2).await;
}
