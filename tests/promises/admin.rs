//! The admin API: closed unless it is opened on purpose, quiet about what it knows to those who may not know, and exact in
//! what it forgets and counts.

use std::process::{Command, Output};
use std::time::Duration;

use nevertwice_testkit::{
    Answer, Client, DOC, DOC2, Gateway, Reply, Request, Setup, Upstream, r400, random_document,
};
use serde_json::{Value, json};

use crate::bench::{assert_own, post, settle};
use crate::caller::{CLASSIFY, LAYOUT, entries, entry_count, forget, until};

const TOKEN: &str = "admin-s3cret-token";

fn with_admin(upstream: &Upstream, admin: &str) -> String {
    let yaml = Gateway::simple_yaml(&upstream.url(), &[]);
    let plain = "admin:\n  listen: \"@ADMIN@\"\n";
    assert!(yaml.contains(plain), "{yaml}");
    yaml.replace(plain, &format!("admin: {admin}\n"))
}

/// A request on the admin listener exactly as it is said here.
async fn raw(gateway: &Gateway, request: Request) -> Answer {
    Client::connect(gateway.admin).await.request(request).await
}

#[tokio::test]
async fn ob_07_an_admin_api_without_a_token_is_refused_unless_it_is_on_loopback() {
    let upstream = Upstream::start().await;
    for (case, admin, env, part) in [
        ("unset", "{listen: \"0.0.0.0:0\"}", None, "token"),
        ("unset, all addresses", "{listen: \"[::]:0\"}", None, "token"),
        ("empty text", "{listen: \"0.0.0.0:0\", token: \"\"}", None, "token"),
        ("a literal", "{listen: \"@ADMIN@\", token: secret}", None, "env:"),
        ("a template", "{listen: \"@ADMIN@\", token: \"${ADMIN}\"}", None, "env:"),
        ("a missing variable", "{listen: \"@ADMIN@\", token: env:ADMIN_TOKEN_X}", None, "ADMIN_TOKEN_X"),
        ("an empty variable", "{listen: \"@ADMIN@\", token: env:ADMIN_TOKEN_X}", Some(""), "admin.token"),
        ("blanks", "{listen: \"@ADMIN@\", token: env:ADMIN_TOKEN_X}", Some("   "), "admin.token"),
    ] {
        let mut setup = Setup::new(&with_admin(&upstream, admin));
        if let Some(value) = env {
            setup = setup.env("ADMIN_TOKEN_X", value);
        }
        let reason = setup.try_start().await.err().unwrap_or_default();
        assert!(reason.contains("ended with exit status") && reason.contains(part), "{case}: {reason}");
    }
}

#[tokio::test]
async fn ob_07_a_token_is_asked_for_everywhere_and_in_one_form() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let setup = Setup::new(&with_admin(&upstream, "{listen: \"@ADMIN@\", token: env:ADMIN_TOKEN}"));
    let gateway = setup.env("ADMIN_TOKEN", TOKEN).admin_token(TOKEN).start().await;
    assert_eq!(post(&gateway, CLASSIFY, &DOC[..]).await.status, 400);
    let listed = "/admin/v1/refusals";
    assert_eq!(gateway.admin_get(listed).await.0, 200);

    let get = || Request::get(listed);
    let mut seen = Vec::new();
    for (case, request) in [
        ("nothing", get()),
        ("empty", get().header("Authorization", "")),
        ("empty bearer", get().header("Authorization", "Bearer ")),
        ("no token", get().header("Authorization", "Bearer")),
        ("wrong scheme", get().header("Authorization", format!("Basic {TOKEN}"))),
        ("no scheme", get().header("Authorization", TOKEN)),
        ("a tenant's key", get().bearer("tok-1")),
        ("another header", get().header("X-Api-Key", TOKEN)),
        ("in the query", Request::get(&format!("{listed}?token={TOKEN}"))),
        ("one byte less", get().bearer(&TOKEN[1..])),
        ("one byte more", get().bearer(&format!("{TOKEN}x"))),
        ("not ASCII", get().header("Authorization", b"Bearer \xff\xfe")),
        ("long", get().bearer(&"x".repeat(30_000))),
        ("a page", get().header("Origin", "http://evil.test")),
        ("a forget", Request::post("/admin/v1/refusals/forget").body("{\"all\":true}")),
        ("an unknown path", Request::get("/admin/v1/nothing")),
        ("the version", Request::get("/admin/v1/version")),
        ("two tokens", get().bearer(TOKEN).bearer(TOKEN)),
    ] {
        // Failures are limited in number; the limit is not what is looked at here.
        let answer = until(case, Duration::from_secs(5), || {
            let request = request.clone();
            async { Some(raw(&gateway, request).await).filter(|answer| answer.status != 429) }
        });
        let answer = answer.await;
        assert_eq!(answer.status, 401, "{case}: {}", answer.text());
        assert_eq!(answer.header("www-authenticate").as_deref(), Some("Bearer"), "{case}");
        assert!(
            !answer.text().contains(TOKEN) && !answer.text().contains("tok-1"),
            "{case}: {}",
            answer.text()
        );
        seen.push(answer.body);
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "one answer for all: {seen:?}");
    assert_eq!(entry_count(&gateway).await, 1, "nothing was forgotten");
    for open in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(raw(&gateway, Request::get(open)).await.status, 200, "{open}");
    }
    // The admin paths are nowhere else.
    for path in [listed, "/admin/v1/version", "/metrics", "/healthz"] {
        let answer = Client::connect(gateway.addr).await.request(Request::get(path).bearer("tok-1")).await;
        assert_own(&answer, 404, "NO_ROUTE", path);
        let answer = Client::connect(gateway.addr).await.request(Request::get(path).bearer(TOKEN)).await;
        assert_own(&answer, 401, "UNAUTHENTICATED", path);
    }
    // Guessing is slowed down, and whoever has the token does not notice.
    let mut guesses = Client::connect(gateway.admin).await;
    let mut statuses = Vec::new();
    for _ in 0..60 {
        statuses.push(guesses.request(get().bearer("guess")).await.status);
    }
    assert!(
        statuses.iter().all(|status| [401, 429].contains(status)) && statuses.contains(&429),
        "{statuses:?}"
    );
    assert_eq!(gateway.admin_get(listed).await.0, 200);
    assert!(!gateway.log().contains(TOKEN) && !gateway.log().contains("guess"), "{}", gateway.log());
    settle(&gateway, 9).await;
}

#[tokio::test]
async fn ob_07_without_a_token_no_web_page_gets_in() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::simple(&upstream.url()).await;
    assert_eq!(post(&gateway, CLASSIFY, &DOC[..]).await.status, 400);
    let forget = || {
        Request::post("/admin/v1/refusals/forget").header("Content-Type", "text/plain").body("{\"all\":true}")
    };
    let local = format!("localhost:{}", gateway.admin.port());
    for (case, request) in [
        ("a page", forget().header("Origin", "http://evil.test")),
        ("a local page", forget().header("Origin", format!("http://{local}"))),
        ("a sandboxed page", forget().header("Origin", "null")),
        ("a name made to resolve here", forget().header("Host", "evil.test")),
        ("with the port", forget().header("Host", format!("evil.test:{}", gateway.admin.port()))),
        ("a name that begins alike", forget().header("Host", "localhost.evil.test")),
        (
            "a preflight",
            Request::new("OPTIONS", "/admin/v1/refusals/forget")
                .header("Origin", "http://evil.test")
                .header("Access-Control-Request-Method", "POST"),
        ),
        ("reading", Request::get("/admin/v1/refusals").header("Host", "evil.test")),
        ("metrics", Request::get("/metrics").header("Host", "evil.test")),
    ] {
        let answer = raw(&gateway, request).await;
        assert_eq!(answer.status, 403, "{case}: {}", answer.text());
        let cors = answer.headers.iter().any(|(name, _)| name.to_lowercase().starts_with("access-control"));
        assert!(!cors, "{case}: {:?}", answer.headers);
    }
    assert_eq!(raw(&gateway, Request::get("/admin/v1/refusals").header("Host", &local)).await.status, 200);
    // What destroys asks for the method that says so.
    let fingerprint = entries(&gateway, "").await[0]["fingerprint"].as_str().unwrap_or_default().to_owned();
    for (method, path, allowed) in [
        ("GET", "/admin/v1/refusals/forget".to_owned(), "POST"),
        ("DELETE", "/admin/v1/refusals".to_owned(), "GET"),
        ("POST", format!("/admin/v1/refusals/{fingerprint}"), "DELETE"),
        ("GET", "/admin/v1/upstreams/doc-classifier/recover".to_owned(), "POST"),
    ] {
        let answer = raw(&gateway, Request::new(method, &path)).await;
        // A GET of `forget` asks for the entry of that name, of which there is none.
        assert!([405, 400, 404].contains(&answer.status), "{method} {path}: {}", answer.text());
        if answer.status == 405 {
            assert!(answer.header("allow").is_some_and(|allow| allow.contains(allowed)), "{method} {path}");
        }
    }
    assert_eq!(entry_count(&gateway).await, 1);
    settle(&gateway, 1).await;
}

#[tokio::test]
async fn ob_09_every_failed_log_in_of_a_tenant_gets_the_same_short_answer() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::simple(&upstream.url()).await;
    let get = || Request::get("/doc-classifier/x");
    let near = "tok-1".repeat(13_000);
    let cases = [
        ("missing", get()),
        ("wrong", get().bearer("tok-9")),
        ("almost", get().bearer("tok-11")),
        ("letter case", get().bearer("TOK-1")),
        ("huge", get().bearer(&near[..60_000])),
        ("not ASCII", get().header("Authorization", b"Bearer tok-1\xff")),
        ("empty", get().bearer("")),
        ("another scheme", get().header("Authorization", "Basic tok-1")),
        ("in the query", Request::get("/doc-classifier/x?api-key=tok-1")),
        ("two that differ", get().bearer("tok-1").header("api-key", "tok-2")),
        ("one that is none", get().bearer("tok-1").header("x-api-key", "tok-9")),
        ("a hash", get().bearer("b1a3cf6eb3a0a4ea1fc4a8eb1c5ce8d9b2f9a1a4d3f0a6b7c8d9e0f1a2b3c4d5")),
        ("where there is nothing", Request::get("/nowhere").bearer("tok-9")),
    ];
    let mut answers = Vec::new();
    for (case, request) in cases {
        let answer = Client::connect(gateway.addr).await.request(request).await;
        assert_own(&answer, 401, "UNAUTHENTICATED", case);
        assert!(answer.body.len() < 300 && !answer.text().contains("tok"), "{case}: {}", answer.text());
        answers.push((case, answer.body.clone(), answer.headers_named("www-authenticate").len()));
    }
    assert!(answers.windows(2).all(|pair| pair[0].1 == pair[1].1 && pair[0].2 == 1), "{answers:?}");
    let too_long = get().bearer(&"x".repeat(1 << 20));
    let answer = Client::connect(gateway.addr).await.request(too_long).await;
    assert_own(&answer, 431, "HEADERS_TOO_LARGE", "1 MiB");
    assert_eq!(upstream.calls(), 0);
    let lines = settle(&gateway, answers.len()).await;
    for line in lines {
        assert!(line["tenant"].is_null() && line["upstream"].is_null(), "{line}");
        assert!(!line.to_string().contains("tok-"), "{line}");
    }
    assert!(!gateway.log().contains("tok-"), "{}", gateway.log());
}

#[tokio::test]
async fn ob_09_a_key_and_a_tenant_header_have_to_agree() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(&upstream.url(), &[("TOP", "identity: {tenant_header: X-Tenant}")]).await;
    let get = || Request::get("/doc-classifier/x");
    let cases = [
        ("the key alone", get().bearer("tok-1"), Some("dev_1")),
        ("the header alone", get().header("X-Tenant", "dev_2"), Some("dev_2")),
        ("both alike", get().bearer("tok-3").header("X-Tenant", "dev_3"), Some("dev_3")),
        ("a contradiction", get().bearer("tok-1").header("X-Tenant", "dev_2"), None),
        ("a wrong key beside a good header", get().bearer("tok-9").header("X-Tenant", "dev_2"), None),
        ("an unknown name beside a good key", get().bearer("tok-1").header("X-Tenant", ""), None),
        ("two names", get().header("X-Tenant", "dev_1").header("X-Tenant", "dev_2"), None),
        ("neither", get(), None),
    ];
    let tenants: Vec<_> = cases.iter().map(|(_, _, tenant)| *tenant).collect();
    for (case, request, tenant) in cases {
        let calls = upstream.calls();
        let answer = Client::connect(gateway.addr).await.request(request).await;
        if tenant.is_none() {
            assert_own(&answer, 401, "UNAUTHENTICATED", case);
            assert_eq!(upstream.calls(), calls, "{case}");
            continue;
        }
        assert_eq!((answer.status, upstream.calls()), (200, calls + 1), "{case}");
        let seen = upstream.last_request();
        assert!(
            seen.header("x-tenant").is_none() && seen.header("authorization").is_none(),
            "{case}: {seen:?}"
        );
    }
    for (line, tenant) in settle(&gateway, tenants.len()).await.iter().zip(tenants) {
        assert_eq!(line["tenant"].as_str(), tenant, "{line}");
    }
}

/// Two upstreams, two statuses, three documents: the entries that the selections choose from.
async fn remembered(gateway: &Gateway) {
    for path in [CLASSIFY, LAYOUT, "/other/classify"] {
        for document in [&DOC[..], &DOC2[..], b"third"] {
            let answer = post(gateway, path, document.to_vec()).await;
            assert!(!answer.is_hit() && answer.status < 500, "{path}: {}", answer.text());
        }
    }
    assert_eq!(entry_count(gateway).await, 9);
}

/// Which of the nine are answered from the memory; asking makes those live again that were not.
async fn hits(gateway: &Gateway) -> usize {
    let mut hits = 0;
    for path in [CLASSIFY, LAYOUT, "/other/classify"] {
        for document in [&DOC[..], &DOC2[..], b"third"] {
            hits += usize::from(post(gateway, path, document.to_vec()).await.is_hit());
        }
    }
    hits
}

#[tokio::test]
async fn forget_takes_exactly_what_is_selected_and_says_so() {
    let upstream = Upstream::start().await;
    upstream.by(|seen, _| if seen.target == "/layout" { Reply::status(422).body("no") } else { r400() });
    let more = format!("- {{name: other, base_url: \"{}\", sync_paths: [/classify]}}", upstream.url());
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAMS", &more)]).await;
    remembered(&gateway).await;
    let mut requests = 9;
    let digest = sha256sum(&DOC);
    let of = |all: &[Value], document: &str| -> String {
        let found =
            all.iter().find(|item| item["document_sha256"] == document && item["upstream"] == "other");
        found.and_then(|item| item["fingerprint"].as_str()).unwrap_or_default().to_owned()
    };
    let (all, before) = (entries(&gateway, "").await, Value::from("2020-01-01T00:00:00Z"));
    let fingerprint = of(&all, &digest);
    for (selection, count) in [
        (json!({ "fingerprint": fingerprint }), 1),
        (json!({ "document": digest }), 3),
        (json!({ "document": digest.to_uppercase() }), 3),
        (json!({ "upstream": "other" }), 3),
        (json!({ "status": 422 }), 3),
        (json!({ "status": 400 }), 6),
        (json!({ "status": 413 }), 0),
        (json!({ "before": "2999-01-01T00:00:00Z" }), 9),
        (json!({ "before": before }), 0),
        (json!({ "all": true }), 9),
        // Fields are ANDed.
        (json!({ "upstream": "doc-classifier", "document": digest }), 2),
        (json!({ "upstream": "doc-classifier", "status": 422, "document": digest }), 1),
        (json!({ "upstream": "other", "status": 422 }), 0),
        (json!({ "fingerprint": fingerprint, "status": 422 }), 0),
        (json!({ "document": digest, "before": before }), 0),
    ] {
        let calls = upstream.calls();
        assert_eq!(forget(&gateway, &selection).await, count, "{selection}");
        assert_eq!(entry_count(&gateway).await as u64, 9 - count, "{selection}");
        // All nine again: those that were forgotten go up once, the others not at all.
        assert_eq!(hits(&gateway).await as u64, 9 - count, "{selection}");
        assert_eq!(upstream.calls(), calls + count, "{selection}");
        requests += 9;
    }
    // One by its name.
    let path = format!("/admin/v1/refusals/{fingerprint}");
    assert_eq!(gateway.admin_delete(&path).await, (200, json!({ "forgotten": 1 })));
    assert_eq!(gateway.admin_delete(&path).await.0, 404);
    assert_eq!(gateway.admin_get(&path).await.0, 404);
    // What is not clear is refused, and takes nothing.
    for (selection, part) in [
        (json!({}), "all"),
        (json!({ "all": false }), "all"),
        (json!({ "all": true, "status": 400 }), "all"),
        (json!({ "upstrem": "other" }), "upstream"),
        (json!({ "upstream": "nobody" }), "doc-classifier"),
        (json!({ "status": 404 }), "never"),
        (json!({ "status": "400" }), "number"),
        (json!({ "document": "abc" }), "64"),
        (json!({ "before": "yesterday" }), "time"),
        (json!([]), "object"),
    ] {
        let (status, problem) = gateway.admin_post("/admin/v1/refusals/forget", &selection).await;
        assert_eq!(status, 400, "{selection}: {problem}");
        assert!(
            problem["detail"].as_str().is_some_and(|detail| detail.contains(part)),
            "{selection}: {problem}"
        );
    }
    assert_eq!(entry_count(&gateway).await, 8);
    // Who forgot what, and how much, is written down.
    let log = gateway.log();
    for part in [
        format!("document={digest}"),
        "upstream=doc-classifier".to_owned(),
        "status=422".to_owned(),
        format!("fingerprint={fingerprint}"),
        "before=2999-01-01T00:00:00".to_owned(),
        "forgotten=9".to_owned(),
        "who=\"loopback\"".to_owned(),
    ] {
        assert!(
            log.lines().any(|line| line.contains("refusals forgotten") && line.contains(&part)),
            "{part}: {log}"
        );
    }
    assert_eq!(log.matches("refusals forgotten").count(), 17);
    settle(&gateway, requests).await;
}

fn sha256sum(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let file = dir.path().join("document");
    std::fs::write(&file, bytes).unwrap_or_else(|error| unreachable!("{error}"));
    let output =
        Command::new("sha256sum").arg(&file).output().unwrap_or_else(|error| unreachable!("{error}"));
    String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap_or_default().to_owned()
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn the_command_line_shows_the_document_by_the_digest_that_sha256sum_prints() {
    let upstream = Upstream::start().await;
    upstream.always(Reply::status(422).header("Content-Type", "text/plain").body(&b"form\xe9\x00"[..]));
    let gateway = Gateway::simple(&upstream.url()).await;
    assert!(!post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    for _ in 0..3 {
        assert!(post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    }
    assert!(!post(&gateway, CLASSIFY, &DOC2[..]).await.is_hit());
    let (digest, other) = (sha256sum(&DOC), sha256sum(&DOC2));
    let table = out(&gateway.cli(&["refusals", "list"]).await);
    assert!(table.contains(&digest) && table.contains(&other), "{table}");
    let first =
        table.lines().find(|line| line.contains(&digest) || line.contains(&other)).unwrap_or_default();
    assert!(
        first.contains(&digest) && first.split_whitespace().any(|word| word == "3"),
        "the most replayed first: {table}"
    );

    let listed: Value =
        serde_json::from_str(&out(&gateway.cli(&["refusals", "list", "--json"]).await)).unwrap_or_default();
    let items = listed.as_array().or_else(|| listed["items"].as_array()).cloned().unwrap_or_default();
    assert_eq!((items.len(), &items[0]["document_sha256"]), (2, &digest.clone().into()), "{listed}");
    let one = out(&gateway.cli(&["refusals", "list", "--document", &digest]).await);
    assert!(one.contains(&digest) && !one.contains(&other), "{one}");
    let fingerprint = items[0]["fingerprint"].as_str().unwrap_or_default();
    let shown = out(&gateway.cli(&["refusals", "show", fingerprint]).await);
    assert!(shown.contains(&digest) && shown.contains("422"), "{shown}");

    // Forgotten by its digest, it goes up again.
    let said = out(&gateway.cli(&["refusals", "forget", "--document", &digest]).await);
    assert!(said.contains('1'), "{said}");
    assert!(!post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    // What is not clear is no command, and an API that is not there is said.
    for (args, code) in [
        (&["refusals", "forget"][..], 2),
        (&["refusals", "forget", "--all"], 2),
        (&["refusals", "forget", "--document", "abc"], 2),
        (&["refusals", "show", "abc"], 2),
        (&["refusals", "list", "--upstrem", "x"], 2),
        (&["refusals", "list", "--sort", "size"], 2),
    ] {
        let output = gateway.cli(args).await;
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
    assert_eq!(entry_count(&gateway).await, 2);
    let nobody = gateway.run(&["refusals", "list", "--admin", "http://127.0.0.1:1"]).await;
    assert!(
        nobody.status.code() == Some(1) && String::from_utf8_lossy(&nobody.stderr).contains("127.0.0.1:1"),
        "{nobody:?}"
    );
    for args in [&["coverage"][..], &["upstreams"], &["version"], &["coverage", "--json"]] {
        let text = out(&gateway.cli(args).await);
        assert!(!text.trim().is_empty(), "{args:?}");
    }
    assert!(out(&gateway.cli(&["coverage"]).await).contains("/doc-classifier/classify"));
    settle(&gateway, 6).await;
}

#[tokio::test]
async fn one_document_that_keeps_coming_back_is_the_first_thing_an_operator_sees() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let mut gateway = Gateway::simple(&upstream.url()).await;
    for n in 0..5 {
        assert!(!post(&gateway, CLASSIFY, random_document(n, 64)).await.is_hit());
    }
    let looping = random_document(3, 64);
    let digest = sha256sum(&looping);
    let said = |gateway: &Gateway, replays: u32| {
        let needle = format!("replays={replays} ");
        let log = gateway.log();
        let lines = log.lines().filter(|line| line.contains("keeps coming back") && line.contains(&needle));
        lines.filter(|line| line.contains(&digest) && line.contains("WARN")).count()
    };
    for n in 1..=105 {
        let tenant = format!("tok-{}", 1 + n % 3);
        let request = Request::post(CLASSIFY).bearer(&tenant).header("Content-Type", "application/pdf");
        let answer = Client::connect(gateway.addr).await.request(request.body(looping.clone())).await;
        assert!(answer.is_hit(), "{n}");
        assert_eq!(said(&gateway, 10), usize::from(n >= 10), "{n}: {}", gateway.log());
    }
    assert_eq!(
        (said(&gateway, 100), gateway.log().matches("keeps coming back").count()),
        (1, 2),
        "{}",
        gateway.log()
    );
    let item = entries(&gateway, "?limit=1").await.remove(0);
    assert_eq!((&item["document_sha256"], &item["replays"]), (&digest.clone().into(), &105.into()), "{item}");
    assert_eq!(item["tenants"], json!(["dev_2", "dev_3", "dev_1"]), "in the order in which they first came");
    let (first, last) = (item["first_replayed_at"].clone(), item["last_replayed_at"].clone());
    assert!(first.is_string() && last.as_str() > first.as_str(), "{item}");

    // The counts are the store's: a restart changes nothing.
    gateway.restart().await;
    let again = entries(&gateway, "?limit=1").await.remove(0);
    assert_eq!(again, item, "the same after a restart");
    assert!(post(&gateway, CLASSIFY, looping).await.is_hit());
    let replays = async || (entries(&gateway, "?limit=1").await[0]["replays"] == 106).then_some(());
    until("the next replay to be counted on top", Duration::from_secs(5), replays).await;
    assert_eq!(upstream.calls(), 5);
    settle(&gateway, 5 + 105 + 1).await;
}

#[tokio::test]
async fn the_lists_filter_and_page_and_say_what_they_do_not_know() {
    let upstream = Upstream::start().await;
    upstream.by(|seen, _| if seen.target == "/layout" { Reply::status(422).body("no") } else { r400() });
    let more = format!("- {{name: other, base_url: \"{}\", sync_paths: [/classify]}}", upstream.url());
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAMS", &more)]).await;
    remembered(&gateway).await;
    let request =
        Request::post(LAYOUT).bearer("tok-3").header("Content-Type", "application/pdf").body(&DOC2[..]);
    assert!(Client::connect(gateway.addr).await.request(request).await.is_hit());
    let digest = sha256sum(&DOC);
    for (query, count) in [
        ("", 9),
        ("?upstream=other", 3),
        ("?status=422", 3),
        (&format!("?document={digest}"), 3),
        (&format!("?document={digest}&upstream=other"), 1),
        ("?status=413", 0),
        ("?tenant=dev_3", 1),
        ("?tenant=dev_2", 0),
        ("?sort=recent", 9),
        ("?limit=4", 4),
        ("?limit=1000", 9),
    ] {
        assert_eq!(entries(&gateway, query).await.len(), count, "{query}");
    }
    assert_eq!(entries(&gateway, "?sort=replays&limit=1").await[0]["replays"], 1);
    // Page by page it is the same list, each entry once.
    for sort in ["replays", "recent"] {
        let whole = entries(&gateway, &format!("?sort={sort}")).await;
        let (mut paged, mut cursor) = (Vec::new(), String::new());
        loop {
            let (status, page) =
                gateway.admin_get(&format!("/admin/v1/refusals?sort={sort}&limit=2&cursor={cursor}")).await;
            assert_eq!(status, 200, "{page}");
            paged.extend(page["items"].as_array().cloned().unwrap_or_default());
            let Some(next) = page["next_cursor"].as_str() else { break };
            next.clone_into(&mut cursor);
        }
        assert_eq!(paged, whole, "{sort}");
    }
    for (query, part) in [
        ("?upstrem=other", "`upstream`"),
        ("?upstream=nobody", "doc-classifier"),
        ("?status=404", "never"),
        ("?status=x", "status"),
        ("?document=abc", "64"),
        ("?sort=size", "recent"),
        ("?limit=0", "limit"),
        ("?limit=1001", "1000"),
        ("?limit=1&limit=2", "twice"),
        ("?cursor=abc", "next_cursor"),
    ] {
        let (status, problem) = gateway.admin_get(&format!("/admin/v1/refusals{query}")).await;
        assert_eq!((status, &problem["code"]), (400, &"BAD_REQUEST".into()), "{query}: {problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(part)), "{query}: {problem}");
    }
    let item = entries(&gateway, "?upstream=other&limit=1").await.remove(0);
    for field in [
        "fingerprint",
        "document_sha256",
        "upstream",
        "status",
        "replays",
        "first_refused_at",
        "last_replayed_at",
        "expires_at",
        "tenants",
        "content_type",
        "body_bytes",
    ] {
        assert!(item.get(field).is_some(), "{field}: {item}");
    }
    let path = format!("/admin/v1/refusals/{}", item["fingerprint"].as_str().unwrap_or_default());
    let (status, shown) = gateway.admin_get(&path).await;
    assert_eq!((status, &shown["body_text"]), (200, &"{\"error\":\"unreadable page\"}".into()), "{shown}");
    for (path, pointer) in [
        ("/admin/v1/version", "/config_digest"),
        ("/admin/v1/version", "/commit"),
        ("/admin/v1/version", "/started_at"),
        ("/admin/v1/coverage", "/routes/0/reason"),
        ("/admin/v1/upstreams", "/items/0/name"),
        ("/admin/v1/openapi.json", "/paths/~1admin~1v1~1refusals~1forget/post"),
        ("/readyz", "/status"),
        ("/healthz", "/status"),
    ] {
        let (status, body) = gateway.admin_get(path).await;
        assert!(
            status == 200 && body.pointer(pointer).is_some_and(|found| !found.is_null()),
            "{path}{pointer}: {body}"
        );
    }
    settle(&gateway, 10).await;
}
