//! The settings of the memory, end to end: what is in the key, whose refusals count, how long they live, how many it
//! takes, and watching without answering.

use std::fs;
use std::time::{Duration, Instant};

use nevertwice_testkit::{
    Answer, DOC, DOC2, Gateway, Part, Reply, Upstream, multipart, r400, random_document,
};
use serde_json::{Value, json};

use crate::bench::settle;
use crate::caller::{
    CLASSIFY, LAYOUT, assert_live, assert_own, assert_replay, entries, entry_count, forget, submit,
    submit_as, until,
};

/// A gateway whose one upstream has this in its `negative_cache`.
pub async fn with_rules(upstream: &Upstream, rules: &str) -> Gateway {
    Gateway::with(&upstream.url(), &[("UPSTREAM", &format!("negative_cache: {{ {rules} }}"))]).await
}

/// Restarts it with another text in place of the one in its configuration.
pub async fn reconfigure(gateway: &mut Gateway, old: &str, new: &str) {
    let file = gateway.config_file();
    let text = fs::read_to_string(&file).unwrap_or_default();
    assert!(text.contains(old), "{old:?} is not in the configuration:\n{text}");
    assert!(fs::write(&file, text.replace(old, new)).is_ok());
    gateway.restart().await;
}

fn send(gateway: &Gateway, tenant: u8, document: &[u8]) -> impl Future<Output = Answer> + use<> {
    submit_as(gateway, tenant, CLASSIFY).body(document.to_vec()).send()
}

#[tokio::test]
async fn filename_neutral_makes_temporary_names_one_and_sends_what_it_keyed() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = with_rules(&upstream, "filename: neutral").await;
    let mut requests = 0;
    let mut goes_up = async |boundary: &str, part: Part<'_>, sent: Option<&str>| {
        let (content_type, body) = multipart(boundary, &[part, Part::field("lang", "en")]);
        let before = upstream.calls();
        let post = submit(&gateway, CLASSIFY).header("Content-Type", &content_type).body(body.clone());
        let answer = post.send().await;
        requests += 1;
        let went = upstream.calls() > before;
        assert_eq!(answer.is_hit(), !went);
        if let (Some(sent), true) = (sent, went) {
            let part = Part { filename: Some(sent), ..part };
            let expected = multipart(boundary, &[part, Part::field("lang", "en")]).1;
            let seen = upstream.last_request();
            assert_eq!(String::from_utf8_lossy(&seen.body), String::from_utf8_lossy(&expected));
            assert_eq!(seen.headers_named("content-length"), [expected.len().to_string().as_bytes()]);
            assert_eq!(seen.header("content-type").as_ref(), Some(&content_type));
        }
        went
    };
    let file = |name| Part::file("file", name, "application/pdf", &DOC);
    assert!(goes_up("one", file("tmp8a1x.pdf"), Some("document.pdf")).await);
    for name in ["tmp77.pdf", "a.b.PDF", "C:\\\\x\\\\y.pdf", "\u{30d5}.pdf", "document.pdf"] {
        assert!(!goes_up("two", file(name), None).await, "{name}");
    }
    // The extension counts; without one there is none to count.
    assert!(goes_up("three", file("tmp1.docx"), Some("document.docx")).await);
    assert!(goes_up("three", file("tmp1"), Some("document")).await);
    assert!(!goes_up("four", file("other"), None).await);
    // What is in the file, and what is beside the name, counts as ever.
    assert!(goes_up("five", Part { content: &DOC2, ..file("x.pdf") }, Some("document.pdf")).await);
    assert!(goes_up("five", Part { name: "other", ..file("x.pdf") }, Some("document.pdf")).await);
    // What cannot be rewritten without loss is left alone, and then its name counts.
    let odd = |name| Part { filename: Some(name), ..file("") };
    assert!(goes_up("six", odd("a.pdf\"; size=\"7"), Some("a.pdf\"; size=\"7")).await);
    assert!(goes_up("six", odd("b.pdf\"; size=\"7"), Some("b.pdf\"; size=\"7")).await);
    assert_eq!(entry_count(&gateway).await, 7);
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn ignored_query_goes_up_and_does_not_count() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = with_rules(&upstream, "ignored_query: [_, sig]").await;
    let mut requests = 0;
    for (query, goes) in [
        ("?a=1&_=77", true),
        ("?a=1&_=78", false),
        ("?_=1&a=1&sig=x%2Cy&_=2", false),
        ("?a=1", false),
        ("?a=1&sig", false),
        ("?a=1&_x=1", true),
        ("?a=1&%5F=1", true),
        ("?a=1&Sig=1", true),
        ("?a=1&b=2", true),
        ("?b=2&a=1", true),
        ("?sig=1", true),
        ("", false),
        ("?_", false),
    ] {
        let before = upstream.calls();
        let answer = submit(&gateway, &format!("{CLASSIFY}{query}")).body(&DOC[..]).send().await;
        requests += 1;
        assert_eq!((upstream.calls() > before, answer.is_hit()), (goes, !goes), "{query}");
        if goes {
            assert_eq!(upstream.last_request().target, format!("/classify{query}"));
        }
    }
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn key_headers_go_up_and_count() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = with_rules(&upstream, "key_headers: [X-Model, x-tier, User-Agent]").await;
    let sets: [&[(&str, &str)]; 7] = [
        &[],
        &[("X-Model", "a")],
        &[("X-Model", "b")],
        &[("X-Model", "a"), ("X-Tier", "1")],
        &[("X-Tier", "1")],
        &[("X-Model", "a"), ("X-Model", "b")],
        &[("User-Agent", "scanner/2")],
    ];
    let mut first = Vec::new();
    for round in 0..2 {
        for (number, fields) in sets.iter().enumerate() {
            let post = submit(&gateway, CLASSIFY).header("X-Other", round.to_string());
            let answer = fields
                .iter()
                .fold(post, |post, (name, value)| post.header(name, value))
                .body(&DOC[..])
                .send();
            let answer = answer.await;
            if round == 1 {
                assert_replay(&first[number], &answer);
                continue;
            }
            assert_live(&answer, 400);
            first.push(answer);
            let seen = upstream.last_request();
            for name in ["x-model", "x-tier", "user-agent"] {
                let sent: Vec<_> = fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).collect();
                assert_eq!(
                    seen.headers_named(name),
                    sent.iter().map(|(_, v)| v.as_bytes()).collect::<Vec<_>>()
                );
            }
            assert_eq!(seen.header("x-other"), None);
        }
    }
    assert_eq!(upstream.calls(), sets.len() as u64);
    settle(&gateway, 2 * sets.len()).await;
}

#[tokio::test]
async fn scope_tenant_isolates_fully_the_operators_view_included() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = with_rules(&upstream, "scope: tenant").await;
    let mut keys: Vec<String> = Vec::new();
    for tenant in 1..=3 {
        let live = send(&gateway, tenant, &DOC).await;
        assert_live(&live, 400);
        assert_eq!(upstream.calls(), u64::from(tenant), "one tenant's verdict is not another's");
        for _ in 0..tenant {
            let hit = send(&gateway, tenant, &DOC).await;
            assert_replay(&live, &hit);
            keys.push(hit.header("x-negative-cache-entry").unwrap_or_default());
        }
    }
    keys.dedup();
    assert_eq!((keys.len(), entry_count(&gateway).await), (3, 3));
    for tenant in 1..=3_u8 {
        let name = format!("dev_{tenant}");
        let listed = entries(&gateway, &format!("?tenant={name}")).await;
        assert_eq!(listed.len(), 1);
        let entry = &listed[0];
        assert_eq!((&entry["refused_tenant"], &entry["tenants"]), (&json!(name), &json!([name])));
        assert_eq!(
            (&entry["replays"], entry["fingerprint"].as_str()),
            (&tenant.into(), Some(keys[usize::from(tenant) - 1].as_str()))
        );
        let (_, shown) =
            gateway.admin_get(&format!("/admin/v1/refusals/{}", keys[usize::from(tenant) - 1])).await;
        assert_eq!(shown["scope"], format!("tenant:{name}"));
    }
    // Forgetting one tenant's entry leaves the others; a success of one tenant is its own, too.
    assert_eq!(gateway.admin_delete(&format!("/admin/v1/refusals/{}", keys[0])).await.0, 200);
    upstream.always(Reply::status(200));
    assert_live(&send(&gateway, 1, &DOC).await, 200);
    for tenant in [2, 3] {
        assert!(send(&gateway, tenant, &DOC).await.is_hit());
    }
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (4, 2));
    settle(&gateway, 12).await;
}

#[tokio::test]
async fn scope_domain_shares_among_those_who_trust_each_other_alone() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let rules = "scope: domain, trust_domains: [{ name: ocr-team, tenants: [dev_1, dev_3] }]";
    let gateway = with_rules(&upstream, rules).await;
    let live = send(&gateway, 1, &DOC).await;
    assert_live(&live, 400);
    assert_replay(&live, &send(&gateway, 3, &DOC).await);
    let apart = send(&gateway, 2, &DOC).await;
    assert_live(&apart, 400);
    assert_replay(&apart, &send(&gateway, 2, &DOC).await);
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (2, 2));
    let scopes = |listed: Vec<Value>| async {
        let mut scopes = Vec::new();
        for entry in listed {
            let key = entry["fingerprint"].as_str().unwrap_or_default().to_owned();
            scopes.push(gateway.admin_get(&format!("/admin/v1/refusals/{key}")).await.1["scope"].clone());
        }
        scopes
    };
    assert_eq!(scopes(entries(&gateway, "?tenant=dev_3").await).await, ["domain:ocr-team"]);
    assert_eq!(scopes(entries(&gateway, "?tenant=dev_2").await).await, ["tenant:dev_2"]);
    settle(&gateway, 4).await;
}

#[tokio::test]
async fn tenants_without_the_right_never_learn_what_is_known() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let second = format!("- name: second\n  base_url: \"{}\"\n  sync_paths: [/classify]", upstream.url());
    let yaml = Gateway::simple_yaml(&upstream.url(), &[("UPSTREAMS", &second)]);
    let (before, after) = yaml.rsplit_once("routes: [\"*\"]").unwrap_or_default();
    let gateway = Gateway::start(&format!("{before}routes: [second]{after}")).await;
    let live = send(&gateway, 1, &DOC).await;
    assert_live(&live, 400);
    for document in [&DOC, &DOC2] {
        assert_own(&send(&gateway, 3, document).await, 403, "FORBIDDEN_ROUTE");
        assert_own(&send(&gateway, 9, document).await, 401, "UNAUTHENTICATED");
    }
    assert_live(&submit_as(&gateway, 3, "/second/classify").body(&DOC[..]).send().await, 400);
    assert_replay(&live, &send(&gateway, 2, &DOC).await);
    assert_eq!(upstream.calls(), 2);
    settle(&gateway, 7).await;
}

#[tokio::test]
async fn another_generation_credential_secret_or_address_leaves_old_entries_behind() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let secrets = tempfile::tempdir();
    let Ok(secrets) = secrets else { unreachable!("{secrets:?}") };
    let secret = |name: &str, value: &str| {
        let path = secrets.path().join(name);
        assert!(fs::write(&path, value).is_ok());
        format!("file:{}", path.display())
    };
    let credential = secret("credential", "Bearer plan-a");
    let key = secret("key", "deployment one");
    let rules = format!(
        "negative_cache: {{ generation: \"1\" }}\ncredential: {{ header: Authorization, value: \"{credential}\" }}"
    );
    let slots = [("UPSTREAM", rules.as_str()), ("MEMORY", &format!("key_secret: \"{key}\""))];
    let mut gateway = Gateway::with(&upstream.url(), &slots).await;
    let mut expected = 0;
    let mut requests = 0;
    let mut refused = async |gateway: &Gateway, what: &str| {
        expected += 1;
        let live = send(gateway, 1, &DOC).await;
        assert_live(&live, 400);
        assert_eq!(upstream.calls(), expected, "{what}");
        assert_replay(&live, &send(gateway, 2, &DOC).await);
        assert_eq!(upstream.calls(), expected, "{what}");
        requests += 2;
        live
    };
    let live = refused(&gateway, "the first").await;
    assert_eq!(upstream.last_request().header("authorization").as_deref(), Some("Bearer plan-a"));
    // The same configuration: known after a restart.
    gateway.restart().await;
    assert_replay(&live, &send(&gateway, 3, &DOC).await);

    reconfigure(&mut gateway, "generation: \"1\"", "generation: 2").await;
    refused(&gateway, "a new generation").await;
    secret("credential", "Bearer plan-b");
    gateway.restart().await;
    refused(&gateway, "a new credential").await;
    assert_eq!(upstream.last_request().header("authorization").as_deref(), Some("Bearer plan-b"));
    secret("key", "deployment two");
    gateway.restart().await;
    refused(&gateway, "a new key secret").await;
    let (old, new) = (upstream.url(), format!("{}/v2/", upstream.url()));
    reconfigure(&mut gateway, &format!("\"{old}\""), &format!("\"{new}\"")).await;
    refused(&gateway, "a new address").await;
    assert_eq!(upstream.last_request().target, "/v2/classify");
    // No secret stands in the log or in the audit.
    let told = gateway.log() + &serde_json::to_string(&gateway.audit()).unwrap_or_default();
    assert!(!told.contains("plan-") && !told.contains("deployment one"), "{told}");
    settle(&gateway, requests + 1).await;
}

/// Asks until an answer is live, checks that every answer before is a replay, and says how long that took from `since`.
pub async fn replays_until_live(
    gateway: &Gateway,
    live: &Answer,
    document: &[u8],
    since: Instant,
) -> (Duration, usize) {
    let mut replays = 0;
    let asked = &mut replays;
    let took = until("the end of the entry", Duration::from_secs(20), || {
        let answer = send(gateway, 1, document);
        let asked = &mut *asked;
        *asked += 1;
        async move {
            let answer = answer.await;
            if !answer.is_hit() {
                assert_live(&answer, live.status);
                return Some(since.elapsed());
            }
            assert_replay(live, &answer);
            None
        }
    });
    let took = took.await;
    (took, replays)
}

/// The `ttl` of `Cache-Status` and the `Age`, seconds.
pub fn ttl_and_age(hit: &Answer) -> (u64, u64) {
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    let status = hit.header("cache-status").unwrap_or_default();
    let ttl = status.split("ttl=").nth(1).and_then(|rest| rest.split(';').next());
    (number(ttl), number(hit.header("age").as_deref()))
}

#[tokio::test]
async fn ttl_ends_an_entry_on_time_however_often_it_is_read() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = Gateway::with(&upstream.url(), &[("MEMORY", "ttl_s: 2")]).await;
    let began = Instant::now();
    let live = send(&gateway, 1, &DOC).await;
    assert_live(&live, 400);
    let (ttl, age) = ttl_and_age(&send(&gateway, 1, &DOC).await);
    assert_eq!(ttl + age, 2);
    let (took, asked) = replays_until_live(&gateway, &live, &DOC, began).await;
    assert!(took >= Duration::from_secs(2), "ended after {took:?}");
    assert!(took < Duration::from_secs(10), "ended after {took:?}");
    // The probe that went up made a new entry, in which the count of replays goes on.
    assert!(send(&gateway, 2, &DOC).await.is_hit());
    assert_eq!(entries(&gateway, "").await[0]["replays"], asked + 1);
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (2, 1));
    settle(&gateway, asked + 3).await;
}

#[tokio::test]
async fn ttl_that_was_shortened_counts_at_once_and_a_longer_one_stretches_nothing() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let mut gateway = Gateway::with(&upstream.url(), &[("MEMORY", "ttl_s: 3600")]).await;
    let long = send(&gateway, 1, &DOC).await;
    let began = Instant::now();
    reconfigure(&mut gateway, "ttl_s: 3600", "ttl_s: 2").await;
    let (took, asked_first) = replays_until_live(&gateway, &long, &DOC, began).await;
    assert!(took < Duration::from_secs(10), "an hour became {took:?}");

    let began = Instant::now();
    let short = send(&gateway, 1, &DOC2).await;
    assert_live(&short, 400);
    reconfigure(&mut gateway, "ttl_s: 2", "ttl_s: 3600").await;
    let hit = send(&gateway, 1, &DOC2).await;
    let mut asked_then = 1;
    // On a slow machine the entry may be over before the restart is.
    if hit.is_hit() {
        let (ttl, age) = ttl_and_age(&hit);
        assert_eq!(ttl + age, 2);
        let (took, asked) = replays_until_live(&gateway, &short, &DOC2, began).await;
        assert!(
            (Duration::from_secs(2)..Duration::from_secs(10)).contains(&took),
            "two seconds became {took:?}"
        );
        asked_then += asked;
    }
    assert_eq!(upstream.calls(), 4);
    settle(&gateway, 2 + asked_first + asked_then).await;
}

#[tokio::test]
async fn ttl_ladder_climbs_with_each_fresh_refusal_and_starts_anew_after_a_forget() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = with_rules(&upstream, "ttl_s: 3, ttl_ladder: { first_s: 1, factor: 2 }").await;
    let entry = async || entries(&gateway, "").await.into_iter().next().unwrap_or_default();
    let mut began = Instant::now();
    let live = send(&gateway, 1, &DOC).await;
    assert_live(&live, 400);
    let first_refused = entry().await["first_refused_at"].clone();
    let mut asked = 1;
    for (life, next) in [(1, 2), (2, 3)] {
        assert_eq!(entry().await["ttl_s"], life);
        let (took, replays) = replays_until_live(&gateway, &live, &DOC, began).await;
        began = Instant::now();
        asked += replays;
        assert!(
            (Duration::from_secs(life)..Duration::from_secs(10)).contains(&took),
            "rung {life}: {took:?}"
        );
        assert_eq!(
            (&entry().await["ttl_s"], &entry().await["first_refused_at"]),
            (&next.into(), &first_refused)
        );
    }
    assert_eq!(upstream.calls(), 3);
    // A forget takes the history with it, and so does an acceptance.
    assert_eq!(forget(&gateway, &json!({ "upstream": "doc-classifier" })).await, 1);
    assert_live(&send(&gateway, 1, &DOC).await, 400);
    assert_eq!(entry().await["ttl_s"], 1);
    // Another verdict starts at the first rung.
    upstream.always(Reply::status(422));
    assert_eq!(forget(&gateway, &json!({ "upstream": "doc-classifier" })).await, 1);
    assert_live(&send(&gateway, 1, &DOC).await, 422);
    assert_eq!(entry().await["ttl_s"], 1);
    settle(&gateway, asked + 2).await;
}

#[tokio::test]
async fn confirmations_want_the_same_refusal_as_often_as_said() {
    let upstream = Upstream::start().await;
    let mut gateway = with_rules(&upstream, "confirmations: 3").await;
    let refusal = |status: u16, body: &str| Reply::status(status).body(body.to_owned());
    let mut documents = 0;
    let mut requests = 0;
    for script in [
        &[400, 400, 400][..],
        &[400, 400, 422, 422, 422],
        &[400, 400, 200, 400, 400, 400],
        &[400, 503, 400, 400],
    ] {
        documents += 1;
        let document = random_document(documents, 500);
        let mut live = None;
        for (number, status) in script.iter().enumerate() {
            upstream.always(refusal(*status, &format!("answer {number}")));
            let answer = send(&gateway, 1, &document).await;
            assert_live(&answer, *status);
            assert_eq!(answer.text(), format!("answer {number}"));
            live = Some(answer);
        }
        let hit = send(&gateway, 2, &document).await;
        // Bodies carry times and addresses: they are not compared, and the latest is kept.
        assert_replay(&live.unwrap_or_else(|| unreachable!()), &hit);
        requests += script.len() + 1;
    }
    assert_eq!(upstream.calls() as usize + 4, requests);
    assert_eq!(entry_count(&gateway).await, 4);
    let unconfirmed =
        gateway.metric("gateway_negative_cache_not_recorded_total", &[("reason", "unconfirmed")]).await;
    assert_eq!(unconfirmed, 12.0);
    // What was counted is counted on after a restart.
    upstream.always(refusal(400, ""));
    for round in 1..=3 {
        assert_live(&send(&gateway, 1, &DOC).await, 400);
        if round == 2 {
            gateway.restart().await;
        }
    }
    assert!(send(&gateway, 3, &DOC).await.is_hit());
    settle(&gateway, requests + 4).await;
}

#[tokio::test]
async fn observe_counts_what_would_have_been_replayed_and_answers_nothing() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let gateway = with_rules(&upstream, "mode: observe").await;
    for number in 1..=4_u8 {
        let answer = send(&gateway, 1 + number % 3, &DOC).await;
        assert_live(&answer, 400);
        for name in ["age", "cache-status", "x-should-retry"] {
            assert_eq!(answer.header(name), None);
        }
        assert_eq!(upstream.calls(), u64::from(number));
    }
    let labels = [("upstream", "doc-classifier"), ("status", "400")];
    assert_eq!(gateway.metric("gateway_negative_cache_would_replay_total", &labels).await, 3.0);
    assert_eq!(gateway.metric("gateway_negative_cache_refusals_total", &[]).await, 0.0);
    let listed = entries(&gateway, "").await;
    assert_eq!((listed.len(), &listed[0]["replays"]), (1, &0.into()));
    let (_, coverage) = gateway.admin_get("/admin/v1/coverage").await;
    let guarded =
        coverage["routes"].as_array().into_iter().flatten().filter(|route| route["guarded"] == true);
    assert!(guarded.map(|route| &route["mode"]).all(|mode| mode == "observe"), "{coverage}");
    let lines = settle(&gateway, 4).await;
    let would: Vec<&Value> = lines.iter().map(|line| &line["would_replay"]).collect();
    assert_eq!(would, [false, true, true, true]);
    assert!(lines.iter().all(|line| line["code"] == "HTTP_400" && line["cache_hit"] == false));
}

#[tokio::test]
async fn statuses_and_body_bound_are_exactly_the_configured_ones() {
    let upstream = Upstream::start().await;
    let slots = [("MEMORY", "statuses: [400, 418, 451]\nmax_body_bytes: 10")];
    let mut gateway = Gateway::with(&upstream.url(), &slots).await;
    let mut requests = 0;
    for (status, length, known) in [
        (400, 10, true),
        (418, 0, true),
        (451, 9, true),
        (400, 11, false),
        (418, 64, false),
        (413, 1, false),
        (422, 1, false),
    ] {
        upstream.always(Reply::status(status).body("x".repeat(length)));
        let document = format!("{status} {length}");
        let before = upstream.calls();
        let live = send(&gateway, 1, document.as_bytes()).await;
        assert_live(&live, status);
        let again = send(&gateway, 1, document.as_bytes()).await;
        if known {
            assert_replay(&live, &again)
        } else {
            assert_live(&again, status)
        }
        assert_eq!(upstream.calls() - before, if known { 1 } else { 2 }, "{document}");
        requests += 2;
    }
    // Chunked, the length is known only at the end of the body; the bound is the same.
    for (pieces, known) in [(10, true), (11, false)] {
        upstream.always(Reply::status(400).chunked(vec!["x"; pieces]));
        let send = || submit(&gateway, LAYOUT).body(format!("chunked {pieces}")).send();
        let live = send().await;
        assert_eq!((live.text(), live.complete), ("x".repeat(pieces), true));
        assert_eq!(send().await.is_hit(), known, "{pieces}");
        requests += 2;
    }
    // A status that is taken out is not replayed any more, whatever was remembered; the others are.
    reconfigure(&mut gateway, "statuses: [400, 418, 451]", "statuses: [400, 451]").await;
    upstream.always(Reply::status(200));
    for (document, known) in [("400 10", true), ("418 0", false), ("451 9", true)] {
        assert_eq!(send(&gateway, 1, document.as_bytes()).await.is_hit(), known, "{document}");
        requests += 1;
    }
    settle(&gateway, requests).await;
}

#[tokio::test]
async fn an_entry_whose_status_is_taken_out_gives_way_to_the_verdict_of_today() {
    let upstream = Upstream::start().await;
    let mut gateway = Gateway::with(&upstream.url(), &[("MEMORY", "statuses: [400, 415]")]).await;
    let refuse = |status: u16| upstream.always(Reply::status(status).body(format!("refused with {status}")));
    refuse(415);
    assert_live(&send(&gateway, 1, &DOC).await, 415);
    assert!(send(&gateway, 2, &DOC).await.is_hit());
    reconfigure(&mut gateway, "statuses: [400, 415]", "statuses: [400]").await;
    for calls in 2..4 {
        assert_live(&send(&gateway, 1, &DOC).await, 415);
        assert_eq!(upstream.calls(), calls, "never replayed, and not remembered either");
    }
    refuse(400);
    let mut live = send(&gateway, 1, &DOC).await;
    assert_live(&live, 400);
    let second = send(&gateway, 2, &DOC).await;
    if !second.is_hit() {
        live = second;
        assert_live(&live, 400);
    }
    assert_replay(&live, &send(&gateway, 3, &DOC).await);
    assert!(upstream.calls() <= 5, "{} calls", upstream.calls());
    let calls = upstream.calls();
    reconfigure(&mut gateway, "statuses: [400]", "statuses: [400, 415]").await;
    assert_replay(&live, &send(&gateway, 1, &DOC).await);
    assert_eq!((upstream.calls(), entry_count(&gateway).await), (calls, 1));
    settle(&gateway, 8).await;
}
