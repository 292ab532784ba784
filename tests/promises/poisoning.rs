//! Nobody can make the memory refuse for others: what is not in the key never reaches the upstream, what is in it makes
//! an entry of its own, and nothing that a client or an upstream says about the memory is believed.

use nevertwice_testkit::client::h2_post;
use nevertwice_testkit::{Answer, Client, DOC, DOC2, Gateway, Reply, Request, Seen, Upstream, r400};

use crate::bench::settle;
use crate::caller::{
    CLASSIFY, assert_live, assert_own, assert_replay, entries, entry_count, field, forget_all, submit,
    submit_as,
};

type Fields<'a> = &'a [(&'a str, &'a str)];

/// What a clean request shows to the upstream.
const CLEAN: [&str; 6] =
    ["host", "content-length", "content-type", "accept-encoding", "user-agent", "traceparent"];

/// Whether anything in the head is not as in a clean request.
fn is_touched(seen: &Seen) -> bool {
    let unknown = seen.headers.iter().any(|(name, _)| !CLEAN.contains(&name.to_ascii_lowercase().as_str()));
    unknown
        || seen.raw_head.len() > 8192
        || (seen.method.as_str(), seen.target.as_str()) != ("POST", "/classify")
        || seen.headers_named("content-type") != [b"application/pdf"]
        || seen.headers_named("accept-encoding") != [b"identity"]
        || !seen.header("user-agent").is_some_and(|agent| agent.starts_with("nevertwice/"))
}

/// An upstream as touchy as can be: it refuses whatever differs from a clean request in anything, and what is bad.
async fn touchy() -> Upstream {
    let upstream = Upstream::start().await;
    upstream.by(
        |seen, _| if is_touched(seen) || seen.body.starts_with(b"bad") { r400() } else { Reply::status(200) },
    );
    upstream
}

async fn post(gateway: &Gateway, tenant: u8, fields: Fields<'_>, document: &str) -> Answer {
    let typed = submit_as(gateway, tenant, CLASSIFY).header("Content-Type", "application/pdf");
    fields
        .iter()
        .fold(typed, |post, (name, value)| post.header(name, value))
        .body(document.to_owned())
        .send()
        .await
}

/// Fields that never reach the upstream of a guarded route.
const UNKEYED: [Fields<'_>; 26] = [
    &[("X-HTTP-Method-Override", "DELETE"), ("X-HTTP-Method", "GET"), ("X-Method-Override", "PUT")],
    &[
        ("X-Forwarded-Host", "evil.example"),
        ("X-Forwarded-For", "6.6.6.6"),
        ("X-Forwarded-Proto", "nothttps"),
    ],
    &[("Forwarded", "host=evil.example"), ("X-Host", "evil.example"), ("X-Forwarded-Port", "0")],
    &[("X-Original-URL", "/admin"), ("X-Rewrite-URL", "/admin"), ("X-Forwarded-Prefix", "/x")],
    &[("Accept-Encoding", "x-none, *;q=0"), ("Accept-Language", "tlh"), ("Accept-Charset", "x")],
    &[("User-Agent", "BadBot"), ("Referer", "https://evil.example/"), ("Origin", "null")],
    &[("Range", "bytes=9-1"), ("If-Range", "\"x\"")],
    &[("If-Match", "\"x\""), ("If-None-Match", "*")],
    &[("If-Modified-Since", "x"), ("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:00 GMT")],
    &[("Cookie", "session=expired"), ("Cookie2", "$Version=1")],
    &[("Cache-Control", "no-cache, no-store, only-if-cached"), ("Pragma", "no-cache")],
    &[("Via", "1.1 gw, 1.1 gw"), ("Max-Forwards", "0"), ("CDN-Loop", "gw")],
    &[("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA=="), ("Digest", "sha-256=AA=="), ("Want-Digest", "md5")],
    &[("Content-Digest", "sha-256=:AAAA:"), ("Repr-Digest", "sha-256=:AAAA:")],
    &[
        ("Content-Disposition", "attachment; filename=x"),
        ("Content-Location", "/x"),
        ("Content-Range", "bytes 0-0/1"),
    ],
    &[("Idempotency-Key", "used-before"), ("Prefer", "respond-async"), ("X-Stainless-Retry-Count", "9")],
    &[("X-Request-Id", "1"), ("Request-Id", "|1."), ("Tracestate", "x=y"), ("Baggage", "a=b")],
    &[("Traceparent", "ff-garbage"), ("X-Cloud-Trace-Context", "x")],
    &[("X-Negative-Cache", "HIT"), ("X-Negative-Cache-Entry", "0"), ("X-Negative-Cache-Bypass", "1")],
    &[("X-Gateway-Error", "POOL_FULL"), ("X-Should-Retry", "true")],
    &[("X-Tenant-Id", "dev_2"), ("X-Api-Version", "0"), ("Ocp-Apim-Trace", "true")],
    &[("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")],
    &[("TE", "trailers, deflate"), ("Trailer", "X-Sum"), ("Proxy-Authorization", "Basic eA==")],
    &[
        ("Connection", "keep-alive, X-Foo"),
        ("X-Foo", "1"),
        ("Keep-Alive", "timeout=1"),
        ("Proxy-Connection", "close"),
    ],
    &[("Connection", "authorization, content-type, host, content-length")],
    &[
        ("Sec-Fetch-Mode", "cors"),
        ("Access-Control-Request-Method", "PUT"),
        ("Early-Data", "1"),
        ("DNT", "1"),
    ],
];

#[tokio::test]
async fn rule_14_what_is_not_keyed_never_reaches_the_upstream_and_changes_nothing() {
    let upstream = touchy().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    for (number, fields) in UNKEYED.into_iter().enumerate() {
        // The attack changes nothing, and so poisons nothing.
        let (good, bad) = (format!("good {number}"), format!("bad {number}"));
        let before = upstream.calls();
        assert_live(&post(&gateway, 1, fields, &good).await, 200);
        assert_live(&post(&gateway, 2, &[], &good).await, 200);
        // A caller cannot get around the memory with it, either.
        let refused = post(&gateway, 2, &[], &bad).await;
        assert_live(&refused, 400);
        assert_replay(&refused, &post(&gateway, 1, fields, &bad).await);
        assert_eq!(upstream.calls() - before, 3, "{fields:?}");
    }
    assert_eq!(entry_count(&gateway).await, UNKEYED.len());
    settle(&gateway, 4 * UNKEYED.len()).await;
}

/// Fields that reach the upstream, and that the touchy one refuses.
const KEYED: [Fields<'_>; 10] = [
    &[("Accept", "application/x-nothing")],
    &[("Accept", "*/*"), ("Accept", "text/html;q=x")],
    &[("Accept", "")],
    &[("Content-Encoding", "bogus")],
    &[("Content-Encoding", "gzip"), ("Content-Encoding", "gzip")],
    &[("Content-Language", "x-klingon")],
    &[("Content-Type", "text/plain")],
    &[("X-Model", "gone")],
    &[("X-Model", ""), ("X-Model", "x")],
    &[("X-Model", "<script>;\u{e9}")],
];

#[tokio::test]
async fn rule_14_what_is_keyed_makes_an_entry_of_its_own() {
    let upstream = touchy().await;
    let slots = [("UPSTREAM", "negative_cache: { key_headers: [X-Model] }")];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    let long = "x/y;q=0.1, ".repeat(900);
    let oversized: Fields<'_> = &[("Accept", &long)];
    let all = KEYED.into_iter().chain([oversized]);
    for (number, fields) in all.enumerate() {
        let document = format!("good {number}");
        let before = upstream.calls();
        let refused = post(&gateway, 1, fields, &document).await;
        assert_live(&refused, 400);
        let seen = upstream.last_request();
        for (name, value) in fields {
            assert!(
                seen.headers_named(name).contains(&value.as_bytes().trim_ascii()),
                "{name} was sent: {:?}",
                seen.headers
            );
        }
        assert_live(&post(&gateway, 2, &[], &document).await, 200);
        assert_replay(&refused, &post(&gateway, 2, fields, &document).await);
        assert_live(&post(&gateway, 3, &[], &document).await, 200);
        assert_eq!(upstream.calls() - before, 3, "{fields:?}");
    }
    assert_eq!(entry_count(&gateway).await, KEYED.len() + 1);
    settle(&gateway, 4 * (KEYED.len() + 1)).await;
}

#[tokio::test]
async fn rule_50_nominated_fields_end_here_and_cannot_take_others_with_them() {
    let upstream = touchy().await;
    let slots = [("UPSTREAM", "negative_cache: { key_headers: [X-Model] }")];
    let gateway = Gateway::with(&upstream.url(), &slots).await;
    // A field that `Connection` names goes no further (RFC 9110, section 7.6.1), also where it would be keyed.
    for (number, fields) in [
        &[("Connection", "X-Model"), ("X-Model", "gone")][..],
        &[("Connection", "close , x-model"), ("X-Model", "gone")],
        &[("Connection", "keep-alive"), ("Connection", "ACCEPT"), ("Accept", "x/y")],
    ]
    .into_iter()
    .enumerate()
    {
        let document = format!("good {number}");
        assert_live(&post(&gateway, 1, fields, &document).await, 200);
        assert_live(&post(&gateway, 2, &[], &document).await, 200);
    }
    // What describes the body stays: without it the document would be another one.
    let coded = [
        ("Connection", "content-encoding, content-type,, content-language"),
        ("Content-Encoding", "gzip"),
        ("Content-Language", "de"),
    ];
    let live = post(&gateway, 1, &coded, "coded").await;
    assert_live(&live, 400);
    let seen = upstream.last_request();
    assert_eq!((seen.header("content-encoding").as_deref(), seen.header("connection")), (Some("gzip"), None));
    assert_eq!(seen.header("content-language").as_deref(), Some("de"));
    assert_replay(&live, &post(&gateway, 2, &coded[1..], "coded").await);
    assert_live(&post(&gateway, 2, &[], "coded").await, 200);

    // The upstream's nominations: they end here as well, and the refusal keeps what it is promised to keep.
    let nominating = r400().header("Content-Language", "de").header("X-Secret", "1").header("X-Kept", "1");
    upstream.always(
        nominating.header("Connection", "x-secret, content-type, content-language, content-encoding"),
    );
    let live = post(&gateway, 1, &[], "nominating").await;
    assert_live(&live, 400);
    assert_eq!((field(&live, "x-secret"), field(&live, "x-kept")), (None, Some(b"1".to_vec())));
    assert_eq!(live.header("content-type").as_deref(), Some("application/json"));
    assert_replay(&live, &post(&gateway, 2, &[], "nominating").await);
    settle(&gateway, 11).await;
}

#[tokio::test]
async fn po_02_oversized_heads_harm_nobody_else() {
    let upstream = touchy().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let long = "t".repeat(20 << 10);
    let names: Vec<String> = (0..100).map(|number| format!("X-Line-{number}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v")).collect();
    let shapes: [(&str, Fields<'_>); 2] = [("long", &[("X-Trace", &long)]), ("many", &many)];
    for (document, fields) in shapes {
        assert_live(&post(&gateway, 1, fields, document).await, 200);
        assert_live(&post(&gateway, 2, &[], document).await, 200);
    }
    assert_eq!(upstream.calls(), 4);
    // Beyond the gateway's own limits the answer is its own, and nothing is known of the document.
    let longer = "t".repeat(65 << 10);
    let names: Vec<String> = (0..201).map(|number| format!("X-Line-{number}")).collect();
    let more: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v")).collect();
    let shapes: [(&str, Fields<'_>); 3] =
        [("longer", &[("X-Trace", &longer)]), ("longer keyed", &[("Accept", &longer)]), ("more", &more)];
    for (document, fields) in shapes {
        assert_own(&post(&gateway, 1, fields, document).await, 431, "HEADERS_TOO_LARGE");
        assert_live(&post(&gateway, 2, &[], document).await, 200);
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (7, 0));
    assert!(gateway.metric("gateway_refused_framing_total", &[]).await >= 3.0);
    // Where the memory does not look, fields pass; what the upstream makes of them is not remembered.
    let other = |fields: Fields<'_>| {
        let post = submit(&gateway, "/doc-classifier/other");
        fields.iter().fold(post, |post, (name, value)| post.header(name, value)).body(&DOC[..]).send()
    };
    for _ in 0..2 {
        assert_live(&other(&[("X-Trace", &long)]).await, 400);
        assert_eq!(upstream.last_request().header("x-trace").as_deref(), Some(long.as_str()));
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (9, 0));
    // The heads that could not be read have no audit line.
    settle(&gateway, 9).await;
}

#[tokio::test]
async fn rule_14_odd_bytes_and_targets_make_no_entry_that_a_clean_request_hits() {
    let upstream = touchy().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let mut requests = 0;
    let head = |target: &str, fields: &str| {
        format!(
            "POST {target} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nContent-Type: application/pdf\r\n\
             Content-Length: 4\r\n{fields}\r\ngood"
        )
    };
    // Bytes that no field may hold: refused before anything is read.
    for fields in [
        "Accept: a\u{7}b\r\n",
        "Accept: a\u{0}b\r\n",
        "Accept: a\rX-Injected: 1\r\n",
        "Accept: a\nX-Injected: 1\r\n",
        "Accept : a\r\n",
        "Accept: a\r\n b\r\n",
        "X\u{e9}: a\r\n",
        "Accept\r\n",
    ] {
        let mut client = Client::connect(gateway.addr).await;
        assert_eq!(client.send(head(CLASSIFY, fields)).await, Ok(()));
        assert_own(&client.read_answer().await, 400, "BAD_REQUEST");
        assert!(client.closed_by_peer().await, "{fields:?}");
    }
    assert_eq!(upstream.calls(), 0);
    // Targets that look like the guarded path to somebody: none is guarded but the path itself.
    for (target, goes) in [
        ("/doc-classifier/classify;x=y", true),
        ("/doc-classifier/classify/x.css", true),
        ("/doc-classifier/classify.css", true),
        ("/doc-classifier/classify%00", true),
        ("/doc-classifier/classify%2f", true),
        ("/doc-classifier//classify", true),
        ("/doc-classifier/%63lassify", true),
        ("/doc-classifier/CLASSIFY", true),
        ("/doc-classifier/x/../classify", false),
        ("/doc-classifier/%2e%2e/classify", false),
        ("/doc-classifier/./classify", false),
        ("/DOC-CLASSIFIER/classify", false),
        ("/other/classify", false),
    ] {
        let before = upstream.calls();
        for _ in 0..2 {
            let mut client = Client::connect(gateway.addr).await;
            assert_eq!(client.send(head(target, "")).await, Ok(()));
            let answer = client.read_answer().await;
            requests += 1;
            if goes {
                assert_live(&answer, 400);
                assert_eq!(format!("/doc-classifier{}", upstream.last_request().target), target);
            } else {
                assert!(answer.header("x-gateway-error").is_some(), "{target}: {}", answer.text());
            }
        }
        assert_eq!(upstream.calls() - before, if goes { 2 } else { 0 }, "{target}");
    }
    assert_eq!(entry_count(&gateway).await, 0);
    // Another host, in the field or in the target, changes nothing.
    for (target, host) in
        [(CLASSIFY.to_owned(), "evil.example"), (format!("http://evil.example{CLASSIFY}"), "gw")]
    {
        let mut client = Client::connect(gateway.addr).await;
        assert_eq!(
            client.send(head(&target, "").replace("Host: gw", &format!("Host: {host}"))).await,
            Ok(())
        );
        assert_live(&client.read_answer().await, 200);
        assert_eq!(upstream.last_request().header("host"), Some(upstream.addr().to_string()));
        requests += 1;
    }
    assert_live(&post(&gateway, 2, &[], "good").await, 200);
    settle(&gateway, requests + 1).await;
}

#[tokio::test]
async fn rule_47_targets_that_are_none_get_the_gateways_own_answer() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let mut unmarked = Vec::new();
    for target in [
        "*",
        "classify",
        "http://",
        "http:///x",
        "//",
        "?x",
        "#",
        "http://a b/",
        "gw:80",
        "/doc-classifier/classify\u{e9}",
        "/doc-classifier/classify?q={\"a\"|b}^`<>",
        "/doc-classifier/classify\\x",
        "http://[::1/doc-classifier/classify",
        "ftp://gw/doc-classifier/classify",
        "/doc-classifier/classify?q=\u{e9}",
        "/doc-classifier/classify#x",
    ] {
        let mut client = Client::connect(gateway.addr).await;
        let request = format!(
            "POST {target} HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer tok-1\r\nContent-Length: 4\r\n\r\ngood"
        );
        assert_eq!(client.send(request).await, Ok(()));
        let answer = client.read_answer().await;
        // Passed on as it is, or refused with a mark: never a bare refusal that looks like an upstream's.
        if answer.status != 200 {
            if !(400..500).contains(&answer.status) || answer.header("x-gateway-error").is_none() {
                unmarked.push(target);
            }
        } else {
            let seen = upstream.last_request();
            assert!(target.ends_with(&seen.target), "{target:?} became {:?}", seen.target);
        }
    }
    assert_eq!(unmarked, [""; 0], "answered without the gateway's mark");
    assert_eq!(entry_count(&gateway).await, 0);
}

#[tokio::test]
async fn what_follows_an_answer_is_never_taken_for_the_next_one() {
    let upstream = Upstream::start().await;
    let forged = "HTTP/1.1 400 No\r\nContent-Length: 6\r\n\r\nforged";
    upstream.by(move |seen, _| {
        let own = format!("own {}", String::from_utf8_lossy(&seen.body));
        let answer = format!("HTTP/1.1 400 No\r\nContent-Length: {}\r\n\r\n{own}", own.len());
        Reply::raw(answer + forged)
    });
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", "pool: { max_in_flight: 1 }")]).await;
    // One place in the pool: the connection with the surplus is the one that would be used next.
    for number in 0..50 {
        let document = format!("document {number}");
        let answer = submit(&gateway, CLASSIFY).body(document.clone()).send().await;
        if answer.status != 502 {
            assert_live(&answer, 400);
            assert_eq!(answer.text(), format!("own {document}"));
        }
    }
    for entry in entries(&gateway, "?limit=1000").await {
        assert_ne!(entry["body_bytes"], 6, "a forged verdict was remembered: {entry}");
    }
    settle(&gateway, 50).await;
}

#[tokio::test]
async fn po_05_clients_cannot_force_or_fake_the_memory() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    let live = submit(&gateway, CLASSIFY).body(&DOC[..]).send().await;
    assert_live(&live, 400);
    let key = entries(&gateway, "").await[0]["fingerprint"].as_str().unwrap_or_default().to_owned();
    let mut requests = 1;
    for (name, value) in [
        ("X-Negative-Cache", "HIT"),
        ("X-Negative-Cache", "MISS"),
        ("X-Negative-Cache-Bypass", "1"),
        ("X-Negative-Cache-Entry", &key),
        ("Cache-Control", "no-cache"),
        ("Cache-Control", "no-store"),
        ("Cache-Control", "max-age=0"),
        ("Pragma", "no-cache"),
        ("Cache-Status", "nevertwice; fwd=bypass"),
        ("X-Gateway-Error", "DRAINING"),
    ] {
        // No way around what is known.
        let answer = submit_as(&gateway, 2, CLASSIFY).header(name, value).body(&DOC[..]).send().await;
        assert_replay(&live, &answer);
        assert_eq!(upstream.calls(), 1, "{name}: {value}");
        requests += 1;
    }
    let h2 = [("authorization", "Bearer tok-3"), ("cache-control", "no-cache"), ("x-negative-cache", "MISS")];
    assert_replay(&live, &h2_post(gateway.addr, CLASSIFY, &h2, &DOC[..]).await);

    // No way to claim an entry for another document, and nothing of the markers goes up, guarded or not.
    for path in [CLASSIFY, "/doc-classifier/other"] {
        let post = submit(&gateway, path).header("X-Negative-Cache", "HIT").header("X-Gateway-Error", "X");
        let answer = post.header("X-Negative-Cache-Entry", &key).body(&DOC2[..]).send().await;
        assert_live(&answer, 400);
        let seen = upstream.last_request();
        assert!(
            !seen.headers.iter().any(|(name, _)| name.to_ascii_lowercase().starts_with("x-negative-cache"))
        );
        assert_eq!(seen.header("x-gateway-error"), None);
    }
    requests += 3;

    // An upstream cannot fake a marker: not on an acceptance, not on a refusal, guarded or not, and not by a HEAD or a GET.
    assert_eq!(forget_all(&gateway).await, 2);
    for status in [200, 400, 500] {
        let faking =
            Reply::status(status).header("X-Negative-Cache", "HIT").header("x-negative-cache", "HIT");
        upstream.always(faking.header("X-Negative-Cache-Entry", &key).header("X-Gateway-Error", "POOL_FULL"));
        for (method, path) in
            [("POST", CLASSIFY), ("POST", "/doc-classifier/other"), ("GET", CLASSIFY), ("HEAD", CLASSIFY)]
        {
            let request = Request::new(method, path).bearer("tok-1");
            let request = if method == "POST" { request.body(format!("faked {status}")) } else { request };
            let answer = Client::connect(gateway.addr).await.request(request).await;
            assert_live(&answer, status);
            requests += 1;
        }
    }
    let replay = submit(&gateway, CLASSIFY).body("faked 400").send().await;
    assert!(replay.is_hit() && replay.headers_named("x-negative-cache").len() == 1, "{:?}", replay.headers);
    assert_eq!(replay.headers_named("x-gateway-error").len(), 0);
    let lines = settle(&gateway, requests + 1).await;
    let hits = lines.iter().filter(|line| line["cache_hit"] == true).count();
    assert_eq!(hits, 12);
    let told = gateway.metric("gateway_negative_cache_refusals_total", &[("status", "400")]).await;
    assert_eq!(told, 12.0);
}

#[tokio::test]
async fn rule_19_a_digest_that_the_client_names_selects_nothing() {
    let upstream = Upstream::start().await;
    upstream.by(|seen, _| if seen.body == DOC[..] { r400() } else { Reply::status(200) });
    let gateway = Gateway::simple(&upstream.url()).await;
    let live = submit(&gateway, CLASSIFY).body(&DOC[..]).send().await;
    assert_live(&live, 400);
    let digest = "a9244902da5899458950849c549905dd7d67cb5d2e6cfdbf8edfc120ec90c02a";
    let names =
        ["Content-Digest", "Repr-Digest", "Digest", "X-Content-SHA256", "X-Amz-Content-Sha256", "ETag"];
    for name in names {
        // The right digest with the wrong document, and the wrong digest with the right document.
        assert_live(&submit(&gateway, CLASSIFY).header(name, digest).body(&DOC2[..]).send().await, 200);
        assert_replay(&live, &submit(&gateway, CLASSIFY).header(name, "0").body(&DOC[..]).send().await);
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (1 + names.len() as u64, 1));
    settle(&gateway, 1 + 2 * names.len()).await;
}
