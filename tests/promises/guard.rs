//! The mass-refusal guard: an upstream that used to accept and suddenly refuses nearly every document says something
//! about itself. Its refusals are not remembered then, those of the window are not used, and it ends by an acceptance or
//! by an operator's word. One bad document, an upstream that never accepted, and ordinary shares of refusals do not
//! set it off.
#![expect(clippy::unwrap_used, reason = "test")]

use std::sync::Arc;
use std::time::Duration;

use nevertwice_domain::clock::{Clock, ManualClock, Millis, SystemClock};
use nevertwice_domain::entry::{Candidate, Selector};
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_domain::strike::LifePolicy;
use nevertwice_store::sqlite::{SqliteOptions, SqliteStore};
use nevertwice_store::{Recorded, RefusalStore};
use nevertwice_testkit::{Answer, Gate, Gateway, Post, Reply, Setup, Upstream, r400, random_document};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bench::{post, settle};

const CLASSIFY: &str = "/doc-classifier/classify";
const OTHER: &str = "/other-classifier/classify";
const NAME: [(&str, &str); 1] = [("upstream", "doc-classifier")];
const RECOVER: &str = "/admin/v1/upstreams/doc-classifier/recover";

async fn submit(gateway: &Gateway, seed: u64) -> Answer {
    post(gateway, CLASSIFY, random_document(5000 + seed, 2048)).await
}

async fn is_on(gateway: &Gateway) -> bool {
    let metric = gateway.metric("gateway_negative_cache_guard", &NAME).await;
    let (status, upstreams) = gateway.admin_get("/admin/v1/upstreams").await;
    assert_eq!(status, 200, "{upstreams}");
    let mut items = upstreams["items"].as_array().into_iter().flatten();
    let guard =
        items.find(|item| item["name"] == NAME[0].1).map_or(Value::Null, |item| item["guard"].clone());
    assert_eq!(guard["tripped_at"].is_null(), metric == 0.0, "metric and admin API agree: {guard}");
    metric == 1.0
}

async fn kept_off(gateway: &Gateway) -> f64 {
    gateway.metric("gateway_negative_cache_not_recorded_total", &[("reason", "guard")]).await
}

fn guard(lines: &str) -> String {
    format!("negative_cache:\n  mass_refusal_guard: {{{lines}}}")
}

fn times(log: &str, text: &str) -> usize {
    log.matches(text).count()
}

#[tokio::test]
async fn mg_01_twenty_distinct_refusals_trip_it_and_an_acceptance_ends_it() {
    let upstream = Upstream::start().await;
    let second = "- name: other-classifier\n  base_url: URL\n  sync_paths: [/classify]";
    let second = second.replace("URL", &upstream.url());
    let mut gateway = Gateway::with(&upstream.url(), &[("UPSTREAMS", &second)]).await;
    assert_eq!(submit(&gateway, 0).await.status, 200);
    upstream.always(r400());
    for n in 1..20 {
        submit(&gateway, n).await;
        assert!(submit(&gateway, n).await.is_hit(), "document {n} is remembered");
    }
    let mut requests = 1 + 19 * 2;
    assert!(!is_on(&gateway).await);
    // the twentieth is one too many
    let answer = submit(&gateway, 20).await;
    assert!(answer.status == 400 && !answer.is_hit());
    assert!(is_on(&gateway).await);
    assert_eq!(gateway.metric("gateway_negative_cache_suspects_total", &[]).await, 19.0);
    assert_eq!(times(&gateway.log(), "mass-refusal guard on"), 1, "{}", gateway.log());

    // nothing of the window is served, and nothing new is remembered
    let calls = upstream.calls();
    for n in 1..=20 {
        for _ in 0..2 {
            assert!(!submit(&gateway, n).await.is_hit(), "document {n}");
        }
    }
    assert_eq!(upstream.calls(), calls + 40);
    assert_eq!(kept_off(&gateway).await, 41.0);
    assert_eq!(times(&gateway.log(), "mass-refusal guard on"), 1, "said once");
    requests += 1 + 40;

    // another upstream has nothing to do with it
    let document = random_document(6000, 2048);
    post(&gateway, OTHER, document.clone()).await;
    assert!(post(&gateway, OTHER, document).await.is_hit());
    requests += 2;

    // a document of the window turns out to be good: it is served at once, and the guard is off
    upstream.always(Reply::status(200).body("fine"));
    let good = submit(&gateway, 3).await;
    assert_eq!((good.status, good.text().as_str()), (200, "fine"));
    assert!(!is_on(&gateway).await);
    assert_eq!(times(&gateway.log(), "mass-refusal guard off"), 1, "{}", gateway.log());

    // suspect entries do not come back by themselves, over a restart neither; a fresh refusal replaces them
    upstream.always(r400());
    assert!(!submit(&gateway, 5).await.is_hit());
    assert!(submit(&gateway, 5).await.is_hit());
    requests += 3;
    settle(&gateway, requests).await;
    gateway.restart().await;
    assert!(submit(&gateway, 5).await.is_hit(), "the fresh refusal");
    let calls = upstream.calls();
    assert!(!submit(&gateway, 6).await.is_hit(), "the suspect one");
    assert!(submit(&gateway, 6).await.is_hit());
    assert_eq!(upstream.calls(), calls + 1);
    settle(&gateway, requests + 3).await;
}

#[tokio::test]
async fn mg_02_an_operator_s_word_ends_it() {
    let upstream = Upstream::start().await;
    let gateway =
        Gateway::with(&upstream.url(), &[("UPSTREAM", &guard("distinct: 3, share: 0.5, window_s: 600"))])
            .await;
    let (status, body) = gateway.admin_post(RECOVER, &Value::Null).await;
    assert_eq!((status, body), (200, json!({"recovered": false})), "there is nothing to recover from");
    submit(&gateway, 0).await;
    upstream.always(r400());
    for n in 1..=3 {
        submit(&gateway, n).await;
    }
    assert!(is_on(&gateway).await);
    submit(&gateway, 1).await;
    let (status, body) = gateway.admin_post(RECOVER, &Value::Null).await;
    assert_eq!((status, body), (200, json!({"recovered": true})));
    assert!(!is_on(&gateway).await);
    // the window begins anew: two refusals are remembered, the suspects have to be asked about again
    let calls = upstream.calls();
    for n in 1..=2 {
        assert!(!submit(&gateway, n).await.is_hit());
        assert!(submit(&gateway, n).await.is_hit());
    }
    assert_eq!(upstream.calls(), calls + 2);
    assert!(!is_on(&gateway).await);
    // and it can trip again
    submit(&gateway, 9).await;
    assert!(is_on(&gateway).await);
    assert!(!submit(&gateway, 1).await.is_hit());
    let (status, _) = gateway.admin_post("/admin/v1/upstreams/nobody/recover", &Value::Null).await;
    assert_eq!(status, 404);
    settle(&gateway, 4 + 1 + 4 + 2).await;
}

#[tokio::test]
async fn mg_03_what_does_not_set_it_off() {
    let upstream = Upstream::start().await;
    upstream.always(r400());
    let lines = guard("distinct: 5, share: 0.9, window_s: 600");
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", &lines)]).await;
    // an upstream that never accepted anything: a new route may well be fed nothing but rubbish
    for n in 0..30 {
        submit(&gateway, n).await;
        assert!(submit(&gateway, n).await.is_hit());
    }
    assert!(!is_on(&gateway).await);
    gateway.admin_post(RECOVER, &Value::Null).await;
    gateway.admin_post("/admin/v1/refusals/forget", &json!({"all": true})).await;

    // one document, refused a hundred times without being remembered, is one document
    upstream.always(Reply::status(200));
    submit(&gateway, 100).await;
    upstream.always(r400());
    for _ in 0..50 {
        submit(&gateway, 101).await;
        gateway.admin_post("/admin/v1/refusals/forget", &json!({"all": true})).await;
    }
    assert!(!is_on(&gateway).await);

    // three acceptances among ten judged documents
    for n in 0..30 {
        upstream.always(if n % 10 < 3 { Reply::status(200) } else { r400() });
        submit(&gateway, 200 + n).await;
    }
    assert!(!is_on(&gateway).await);

    // refusals that are no verdicts: bad days of the upstream, which are not remembered anyway
    gateway.admin_post(RECOVER, &Value::Null).await;
    for n in 0..30 {
        let status = [429, 500, 503, 404, 401][n % 5];
        upstream.always(Reply::status(status));
        submit(&gateway, 300 + n as u64).await;
    }
    assert!(!is_on(&gateway).await);
    assert_eq!(kept_off(&gateway).await, 0.0);
    settle(&gateway, 60 + 1 + 50 + 30 + 30).await;
}

/// The record of this document is an hour older, for all that its store knows. The gateway is started anew for it.
async fn age(gateway: &mut Gateway, fingerprint: &str) {
    gateway.signal("TERM");
    gateway.wait_exit(Duration::from_secs(40)).await;
    let key: Fingerprint = fingerprint.parse().unwrap();
    let now = SystemClock.now();
    let open = |at| {
        let clock = Arc::new(ManualClock::at(at));
        SqliteStore::open(&gateway.dir().join("data"), clock, SqliteOptions::default()).unwrap()
    };
    let store = open(now);
    let entry = (*store.recall(&key).await.unwrap().entry.unwrap()).clone();
    assert_eq!(store.forget(&Selector::key(key)).await.unwrap(), 1);
    store.close().await.unwrap();
    drop(store);
    let store = open(Millis(now.0 - 3_600_000));
    let life = LifePolicy::flat(entry.ttl_ms);
    let fence = store.recall(&key).await.unwrap().fence;
    let candidate = Candidate { entry, life, max_entries: 10_000 };
    assert!(matches!(store.record(candidate, fence).await.unwrap(), Recorded::Stored(_)));
    store.close().await.unwrap();
    drop(store);
    gateway.restart().await;
}

#[tokio::test]
async fn mg_04_entries_from_before_the_window_stay_and_switched_off_it_does_nothing() {
    let upstream = Upstream::start().await;
    let lines = guard("distinct: 3, share: 0.5, window_s: 600");
    let mut gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", &lines)]).await;
    submit(&gateway, 0).await;
    upstream.always(r400());
    submit(&gateway, 1).await;
    // the edges of the window are tested where the clock is in the test's hand: crates/gateway/src/memory/tests.rs
    let line = settle(&gateway, 2).await.pop().unwrap();
    age(&mut gateway, line["fingerprint"].as_str().unwrap()).await;
    for n in 2..=4 {
        assert!(!is_on(&gateway).await);
        submit(&gateway, n).await;
    }
    assert!(is_on(&gateway).await);
    let calls = upstream.calls();
    assert!(submit(&gateway, 1).await.is_hit(), "it was refused in good times");
    assert_eq!(upstream.calls(), calls);
    for n in 2..=4 {
        assert!(!submit(&gateway, n).await.is_hit(), "document {n} is of the window");
    }
    assert_eq!(upstream.calls(), calls + 3);
    settle(&gateway, 2 + 3 + 4).await;

    let off = Gateway::with(&upstream.url(), &[("UPSTREAM", &guard("enabled: false"))]).await;
    upstream.always(Reply::status(200));
    submit(&off, 0).await;
    upstream.always(r400());
    for n in 1..=40 {
        submit(&off, n).await;
        assert!(submit(&off, n).await.is_hit(), "document {n}");
    }
    assert!(!is_on(&off).await);
    settle(&off, 81).await;
}

/// A crowd that is refused at once, over the real store; who comes first is left to chance here. Each order by itself, a write
/// that ends after the guard tripped above all, is forced in `crates/gateway/src/memory/tests.rs`.
#[tokio::test]
async fn mg_05_of_a_crowd_that_is_refused_at_once_none_is_replayed() {
    const DOCUMENTS: u64 = 60;
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(&upstream.url(), &[("UPSTREAM", "pool:\n  max_in_flight: 30")]).await;
    assert_eq!(submit(&gateway, 0).await.status, 200);
    let mut requests = 1;
    for round in 0..2 {
        let seeds = || (0..DOCUMENTS).map(move |n| 1000 * (round + 1) + n);
        let gate = Gate::new();
        upstream.always(r400().wait_for(&gate));
        let ask = |seed| {
            let document = random_document(5000 + seed, 2048);
            Post::to(gateway.addr, CLASSIFY).bearer("tok-2").body(document).send()
        };
        let mut sent = JoinSet::new();
        for seed in seeds() {
            sent.spawn(ask(seed));
        }
        gate.wait_waiting(30).await;
        gateway.wait_metric("gateway_pool_queued", &[], DOCUMENTS as f64 - 30.0).await;
        gate.open();
        while let Some(answer) = sent.join_next().await {
            let answer = answer.unwrap();
            assert!(answer.status == 400 && !answer.is_hit(), "{answer:?}");
        }
        assert!(is_on(&gateway).await);
        let calls = upstream.calls();
        let mut hits = Vec::new();
        for seed in seeds() {
            if ask(seed).await.is_hit() {
                hits.push(seed);
            }
        }
        assert!(hits.is_empty(), "round {round}: {hits:?} are of the window");
        assert_eq!(upstream.calls(), calls + DOCUMENTS, "round {round}");
        requests += 2 * DOCUMENTS;

        // it ends by an acceptance or by an operator's word; then each is judged afresh, and most are fine
        upstream.always(Reply::status(200));
        if round % 2 == 0 {
            assert_eq!(submit(&gateway, 100 + round).await.status, 200);
            requests += 1;
        } else {
            assert_eq!(gateway.admin_post(RECOVER, &Value::Null).await.0, 200);
        }
        assert!(!is_on(&gateway).await);
        for (n, seed) in seeds().enumerate() {
            let status = if n % 3 == 0 { 400 } else { 200 };
            upstream.always(if status == 400 { r400() } else { Reply::status(200) });
            let live = ask(seed).await;
            assert_eq!((live.status, live.is_hit()), (status, false), "round {round}, document {seed}");
            assert_eq!(ask(seed).await.is_hit(), status == 400, "round {round}, document {seed}");
        }
        assert!(!is_on(&gateway).await);
        requests += 2 * DOCUMENTS;
        // the next round is a window of its own
        gateway.admin_post(RECOVER, &Value::Null).await;
    }
    settle(&gateway, requests as usize).await;
}

#[tokio::test]
async fn mg_06_after_a_full_disk_every_good_document_goes_through_at_once() {
    // what a real document service answers to good documents when its disk is full
    let full = json!({ "detail": "Could not extract text: [Errno 2] No usable temporary directory found" });
    for profile in ["status", "own"] {
        let own = "profile: own\nabout: a profile that takes the text for a verdict\nrules:\n\
                   - {rule: unreadable, status: 422, when: [{at: /detail, starts_with: Could not extract text}], class: content, remember: full}\n";
        let upstream = Upstream::start().await;
        let slots = [
            ("UPSTREAM", format!("negative_cache: {{profile: {profile}}}")),
            ("TOP", "profiles: [\"@DIR@/own.yaml\"]".to_owned()),
        ];
        let slots = slots.each_ref().map(|(name, lines)| (*name, lines.as_str()));
        let yaml = Gateway::simple_yaml(&upstream.url(), &slots);
        let gateway = Setup::new(&yaml).file("own.yaml", own).start().await;
        assert_eq!(submit(&gateway, 0).await.status, 200);
        let refusal = Reply::status(422).header("Content-Type", "application/json").body(full.to_string());
        upstream.always(refusal);
        for n in 1..=30 {
            assert_eq!(submit(&gateway, n).await.status, 422);
        }
        assert!(is_on(&gateway).await);
        upstream.always(Reply::status(200).body("text"));
        let before = upstream.calls();
        for n in 1..=30 {
            let answer = submit(&gateway, n).await;
            assert_eq!((answer.status, answer.is_hit()), (200, false), "{profile}: document {n}");
        }
        assert_eq!(upstream.calls() - before, 30);
        assert!(!is_on(&gateway).await);
        // what is still on its way out is suspect, and used for nothing
        let (_, left) = gateway.admin_get("/admin/v1/refusals").await;
        assert!(left["items"].as_array().into_iter().flatten().all(|item| item["suspect"] == true), "{left}");
    }
}
