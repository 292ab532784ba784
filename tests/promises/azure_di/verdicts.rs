//! What is remembered of the facade's answers, at the submit and at the poll, and what never is.

use nevertwice_testkit::{Part, multipart};
use serde_json::json;

use super::*;
use crate::caller::{assert_live, assert_replay, entries, entry_count, forget, forget_all};
use crate::memory_settings::reconfigure;

/// Base64 of a document, as clients write it.
fn base64(document: &[u8]) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(document)
}

/// Submits and polls to the end; the poll's answer.
async fn end(gateway: &Gateway, submitted: &Answer) -> Answer {
    poll(gateway, &operation(gateway, submitted)).await
}

async fn recorded(gateway: &Gateway) -> f64 {
    gateway.metric("gateway_negative_cache_recorded_total", &[]).await
}

#[tokio::test]
async fn a_refusal_at_the_submit_is_replayed_at_the_submit() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    di.on(&DOC[..], refused());
    for (n, path) in [ANALYZE, ANALYZE_V3].into_iter().enumerate() {
        let live = submit(&gateway, path, &DOC[..]).await;
        assert_live(&live, 400);
        assert!(live.header("apim-request-id").is_some());
        for tenant in [1, 2] {
            let hit = submit_as(&gateway, tenant, path, "application/octet-stream", &DOC[..]).await;
            assert_replay(&live, &hit);
            for name in ["operation-location", "apim-request-id"] {
                assert_eq!(hit.header(name), None, "{name} on a replay");
            }
        }
        assert_eq!((di.submits().len(), entry_count(&gateway).await), (n + 1, n + 1));
    }
    let lines = settle(&gateway, 6).await;
    let codes: Vec<_> = lines.iter().map(|line| line["code"].as_str().unwrap()).collect();
    let each = ["HTTP_400", "REFUSED_HTTP_400", "REFUSED_HTTP_400"];
    assert_eq!(codes, [each, each].concat());
}

#[tokio::test]
async fn what_a_poll_shows_is_remembered_under_the_submit() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    di.on(&DOC[..], failing().after(1));
    let submitted = submit(&gateway, ANALYZE, &DOC[..]).await;
    assert!(!submitted.is_hit());
    let operation = operation(&gateway, &submitted);
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "running");
    assert_eq!(entry_count(&gateway).await, 0, "nothing is known yet");
    // whoever polls again gets the upstream's word again, and it is remembered once
    for _ in 0..3 {
        let failed = poll(&gateway, &operation).await;
        assert_live(&failed, 200);
        assert_eq!(failed.json()["error"]["innererror"]["code"], "InvalidContent");
    }
    assert_eq!((entry_count(&gateway).await, recorded(&gateway).await), (1, 1.0));
    let known = entries(&gateway, &format!("?document={}", sha256_hex(&[&DOC[..]]))).await;
    assert_eq!((known.len(), &known[0]["upstream"]), (1, &"di".into()));
    for _ in 0..3 {
        let replay = submit(&gateway, ANALYZE, &DOC[..]).await;
        assert!(replay.status == 202 && replay.is_hit(), "{} {:?}", replay.status, replay.headers);
    }
    assert_eq!((di.submits().len(), di.polls().len()), (1, 4));
    // another document, model, version or set of parameters is another matter
    for path in [
        "/documentintelligence/documentModels/prebuilt-layout:analyze?api-version=2024-11-30",
        "/documentintelligence/documentModels/prebuilt-read:analyze?api-version=2025-11-30",
        "/documentintelligence/documentModels/prebuilt-read:analyze?api-version=2024-11-30&pages=1",
        ANALYZE_V3,
    ] {
        assert!(!submit(&gateway, path, &DOC[..]).await.is_hit(), "{path}");
    }
    assert!(!submit(&gateway, ANALYZE, &DOC2[..]).await.is_hit());
    assert!(!submit_as(&gateway, 1, ANALYZE, "application/pdf", &DOC[..]).await.is_hit());
    assert_eq!(di.submits().len(), 7);
    settle(&gateway, 14).await;
}

#[tokio::test]
async fn the_service_may_spell_failed_as_it_likes() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    di.on(&DOC[..], failing().spelt("Failed"));
    end(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await).await;
    assert!(submit(&gateway, ANALYZE, &DOC[..]).await.is_hit());
    assert_eq!(di.submits().len(), 1);
}

#[tokio::test]
async fn a_failure_that_is_not_of_the_document_is_never_remembered() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let mixed = json!({
        "code": "InvalidRequest", "message": "two things",
        "details": [
            { "code": "InvalidRequest", "message": "a", "innererror": { "code": "InvalidContent", "message": "a" } },
            { "code": "InvalidRequest", "message": "b", "innererror": { "code": "InvalidParameter", "message": "b" } },
        ],
    });
    let errors = [
        fault("InternalServerError", "Unknown"),
        json!({ "code": "InternalServerError", "message": "An unexpected error occurred." }),
        fault("ServiceUnavailable", "InvalidContent"),
        fault("InvalidRequest", "ContentSourceTimeout"),
        fault("InvalidRequest", "ModelNotReady"),
        fault("InvalidRequest", "ModelAnalyzeError"),
        fault("InvalidRequest", "NobodyKnowsThisOne"),
        mixed,
        json!({}),
        json!("InvalidContent"),
    ];
    for (n, error) in errors.iter().enumerate() {
        let document = format!("transient {n}");
        di.on(&document, Fate::fails(error.clone()));
        for goes_up in 1..=2 {
            let submitted = submit(&gateway, ANALYZE, document.clone()).await;
            assert!(!submitted.is_hit(), "{error}");
            assert_eq!(end(&gateway, &submitted).await.json()["status"], "failed");
            assert_eq!(di.submits_of(&document), goes_up, "{error}");
        }
    }
    // canceled, and no last word at all
    for (word, n) in [("canceled", 100), ("skipped", 101)] {
        let document = format!("ended {n}");
        di.on(&document, failing().spelt(word));
        for _ in 0..2 {
            let submitted = submit(&gateway, ANALYZE, document.clone()).await;
            assert!(!submitted.is_hit(), "{word}");
            end(&gateway, &submitted).await;
        }
    }
    assert_eq!((entry_count(&gateway).await, recorded(&gateway).await), (0, 0.0));
    settle(&gateway, (errors.len() + 2) * 4).await;
}

/// The document behind an address may be another one tomorrow.
#[tokio::test]
async fn input_by_reference_is_never_remembered_and_inline_input_is() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let content = fault("InvalidRequest", "InvalidContent");
    let source = fault("InvalidRequest", "ContentSourceNotAccessible");
    let v2 = json!({ "code": "InvalidImage", "message": "m" });
    let url = |n: usize| format!("https://documents.example/{n}.pdf");
    for (n, (path, body, fate)) in [
        (ANALYZE, json!({ "urlSource": url(0) }), Fate::refused(400, content.clone())),
        (ANALYZE, json!({ "urlSource": url(1) }), Fate::refused(400, source.clone())),
        (ANALYZE, json!({ "urlSource": url(2) }), Fate::fails(content.clone())),
        (ANALYZE, json!({ "urlSource": url(3) }), Fate::fails(source)),
        (ANALYZE_V3, json!({ "urlSource": url(4) }), Fate::fails(content.clone())),
        (ANALYZE_V2, json!({ "source": url(5) }), Fate::refused(400, v2.clone())),
        (ANALYZE_V2, json!({ "source": url(6) }), Fate::refused(400, content.clone())),
        (ANALYZE_V2, json!({ "source": url(7) }), Fate::fails(content.clone())),
        // told apart wherever it stands
        (ANALYZE, json!({ "base64Source": "", "urlSource": url(8) }), Fate::fails(content.clone())),
    ]
    .into_iter()
    .enumerate()
    {
        di.on(body.to_string(), fate.clone());
        for goes_up in 1..=2 {
            let submitted = submit_json(&gateway, path, &body).await;
            assert!(!submitted.is_hit(), "{n}: {body}");
            if submitted.status == 202 {
                assert_eq!(end(&gateway, &submitted).await.json()["status"], "failed");
            }
            let submits = di.submits().iter().filter(|seen| seen.body == body.to_string()).count();
            assert_eq!(submits, goes_up, "{n}: {body}");
        }
    }
    assert_eq!((entry_count(&gateway).await, recorded(&gateway).await), (0, 0.0));
    // the same document inline: at the submit and at the poll
    for (document, fate) in [(&DOC, refused()), (&DOC2, failing())] {
        di.on(document, fate);
        let body = json!({ "base64Source": base64(document) });
        let live = submit_json(&gateway, ANALYZE, &body).await;
        assert!(!live.is_hit());
        if live.status == 202 {
            end(&gateway, &live).await;
        }
        let hit = submit_json(&gateway, ANALYZE, &body).await;
        assert_eq!((hit.is_hit(), hit.status), (true, live.status));
        let known = entries(&gateway, &format!("?document={}", sha256_hex(&[&document[..]]))).await;
        assert_eq!(known.len(), 1, "the document is what base64Source says");
    }
}

#[tokio::test]
async fn an_empty_document_is_submitted_nowhere() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    assert_own(&submit(&gateway, ANALYZE, "").await, 400, "EMPTY_DOCUMENT");
    assert_eq!(di.upstream.calls(), 0);
}

/// v2.1 clients may send a form; the boundary is not a part of what is known.
#[tokio::test]
async fn a_form_is_known_by_its_parts() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let form =
        |boundary: &str| multipart(boundary, &[Part::file("file", "a.pdf", "application/pdf", &DOC[..])]);
    let (kind, body) = form("one");
    // refused, with a code of the bytes, and a type that is not among those that may be wrong
    di.on(&body, failing());
    end(&gateway, &submit_as(&gateway, 1, ANALYZE, &kind, body).await).await;
    let (kind, body) = form("another");
    assert!(submit_as(&gateway, 1, ANALYZE, &kind, body).await.is_hit());
    assert_eq!(di.submits().len(), 1);
}

/// I7: an attempt from before a forget never records after it, whichever process hears of the failure.
#[tokio::test]
async fn a_forget_between_submit_and_poll_holds() {
    let di = AzureDi::start().await;
    let mut gateway = facade(&di, &[]).await;
    let selections = [
        json!({ "all": true }),
        json!({ "upstream": "di" }),
        json!({ "document": sha256_hex(&[b"forgotten 2"]) }),
        json!({ "status": 200 }),
    ];
    for is_killed in [false, true] {
        for (n, selection) in selections.iter().enumerate() {
            let document = format!("forgotten {n}");
            di.on(&document, failing().after(1));
            let operation = operation(&gateway, &submit(&gateway, ANALYZE, document.clone()).await);
            poll(&gateway, &operation).await;
            forget(&gateway, selection).await;
            if is_killed {
                gateway.signal("KILL");
                gateway.wait_exit(Duration::from_secs(10)).await;
                gateway.restart().await;
            }
            assert_eq!(poll(&gateway, &operation).await.json()["status"], "failed");
            assert_eq!(entry_count(&gateway).await, 0, "{selection}");
            assert!(!submit(&gateway, ANALYZE, document).await.is_hit(), "{selection}");
        }
    }
    // what a forget did not mean stays pending
    di.on(&DOC[..], failing());
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    forget(&gateway, &json!({ "upstream": "doc-classifier" })).await;
    forget(&gateway, &json!({ "document": sha256_hex(&[&DOC2[..]]) })).await;
    poll(&gateway, &operation).await;
    assert!(submit(&gateway, ANALYZE, &DOC[..]).await.is_hit());
}

/// The key names the rules that judged: a verdict by other ones would be found by nobody, or by the wrong ones.
#[tokio::test]
async fn rules_that_changed_between_submit_and_poll_record_nothing() {
    let di = AzureDi::start().await;
    let (old, new) = ("tier: one", "tier: two\n      profile: docling-serve");
    let memory = format!("negative_cache:\n  {old}");
    let mut gateway = facade(&di, &[("DI", &memory)]).await;
    di.on(&DOC[..], failing());
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    reconfigure(&mut gateway, old, new).await;
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "failed");
    assert_eq!(entry_count(&gateway).await, 0);
    reconfigure(&mut gateway, new, old).await;
    assert!(!submit(&gateway, ANALYZE, &DOC[..]).await.is_hit());
    assert_eq!(di.submits().len(), 2);
}

/// A document that was held on disk, and came in chunks.
#[tokio::test]
async fn a_large_document_is_known_by_its_bytes() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("TOP", "limits: {buffer_memory_bytes: 1048576}")]).await;
    let document = nevertwice_testkit::random_document(54, 3 << 20);
    di.on(&document, failing());
    let sent = |request: Request| request.bearer("tok-1").header("Content-Type", "application/pdf");
    let request = sent(Request::post(&format!("/di{ANALYZE}"))).body(document.clone());
    end(&gateway, &ask(&gateway, request.chunked(100_000)).await).await;
    let known = entries(&gateway, &format!("?document={}", sha256_hex(&[&document]))).await;
    assert_eq!(known.len(), 1);
    let request = sent(Request::post(&format!("/di{ANALYZE}"))).body(document);
    assert!(ask(&gateway, request).await.is_hit());
    assert_eq!(di.submits().len(), 1);
}

#[tokio::test]
async fn a_document_that_is_analyzed_after_all_is_no_bad_document() {
    let di = AzureDi::start().await;
    // every submit goes up, so that there is something to learn
    let gateway = facade(&di, &[("DI", "negative_cache: {mode: observe}")]).await;
    di.on(&DOC[..], failing());
    end(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await).await;
    assert_eq!(entry_count(&gateway).await, 1);
    di.on(&DOC[..], Fate::succeeds().after(1));
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    poll(&gateway, &operation).await;
    assert_eq!(entry_count(&gateway).await, 1, "that it was taken in says nothing yet");
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "succeeded");
    assert_eq!(entry_count(&gateway).await, 0);
    settle(&gateway, 5).await;
}

/// An upstream that fails on everything all of a sudden is ill, at the poll as at the submit.
#[tokio::test]
async fn failures_at_the_poll_count_for_the_mass_refusal_guard() {
    let di = AzureDi::start().await;
    let rules = "negative_cache: {mass_refusal_guard: {distinct: 3, share: 0.5}}";
    let gateway = facade(&di, &[("DI", rules)]).await;
    let one = async |name: &str, fate: Fate| {
        di.on(name, fate);
        end(&gateway, &submit(&gateway, ANALYZE, name.to_owned()).await).await
    };
    let is_on = async || gateway.metric("gateway_negative_cache_guard", &[("upstream", "di")]).await == 1.0;
    one("good", Fate::succeeds()).await;
    for n in 0..5 {
        one(&format!("transient {n}"), Fate::fails(fault("InternalServerError", "Unknown"))).await;
    }
    assert!(!is_on().await, "what is not of the document says nothing");
    for n in 0..3 {
        one(&format!("bad {n}"), failing()).await;
    }
    assert!(is_on().await);
    // what it remembered meanwhile is not used, and that it takes documents in is no sign of health
    assert!(!submit(&gateway, ANALYZE, "bad 0").await.is_hit());
    assert!(is_on().await);
    one("good again", Fate::succeeds()).await;
    assert!(!is_on().await);
}

#[tokio::test]
async fn tenants_that_share_nothing_share_no_failure() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("DI", "negative_cache: {scope: tenant}")]).await;
    di.on(&DOC[..], failing());
    end(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await).await;
    let other = submit_as(&gateway, 2, ANALYZE, "application/octet-stream", &DOC[..]).await;
    assert!(!other.is_hit());
    let mine = submit(&gateway, ANALYZE, &DOC[..]).await;
    assert!(mine.is_hit());
    assert_eq!(di.submits().len(), 2);
}

/// Who asks may be gone when the answer comes; it is learned all the same.
#[tokio::test]
async fn a_poll_whose_client_leaves_teaches_too() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let gate = nevertwice_testkit::Gate::new();
    di.on(&DOC[..], failing().polled_through(&gate));
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    let mut client = Client::connect(gateway.addr).await;
    client.try_send_request(Request::get(&operation).bearer("tok-1")).await.unwrap();
    gate.wait_waiting(1).await;
    client.reset();
    gateway.wait_metric("gateway_negative_cache_entries", &[], 0.0).await;
    gate.open();
    gateway.wait_metric("gateway_negative_cache_entries", &[], 1.0).await;
    assert!(submit(&gateway, ANALYZE, &DOC[..]).await.is_hit());
    assert_eq!((di.submits().len(), di.polls().len()), (1, 1));
}

/// Results are long: what is read of one is its state, and the rest goes by.
#[tokio::test]
async fn a_result_of_any_length_says_that_the_document_is_good() {
    let di = AzureDi::start().await;
    let slots = [("MEMORY", "max_body_bytes: 1000"), ("DI", "negative_cache: {mode: observe}")];
    let gateway = facade(&di, &slots).await;
    di.on(&DOC[..], failing());
    end(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await).await;
    assert_eq!(entry_count(&gateway).await, 1);
    di.on(&DOC[..], Fate::succeeds_at_length(1 << 20));
    let done = end(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await).await;
    assert!(done.complete && done.body.len() > 2 << 20, "{}", done.body.len());
    assert_eq!(done.json()["status"], "succeeded");
    assert_eq!(entry_count(&gateway).await, 0);
}

#[tokio::test]
async fn a_failure_over_the_size_that_is_kept_is_passed_on_whole_and_not_remembered() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("MEMORY", "max_body_bytes: 1000")]).await;
    let mut error = fault("InvalidRequest", "InvalidContent");
    error["message"] = "x".repeat(5000).into();
    di.on(&DOC[..], Fate::fails(error.clone()));
    for _ in 0..2 {
        let submitted = submit(&gateway, ANALYZE, &DOC[..]).await;
        assert!(!submitted.is_hit());
        assert_eq!(end(&gateway, &submitted).await.json()["error"], error);
    }
    assert_eq!((di.submits().len(), forget_all(&gateway).await), (2, 0));
}

#[tokio::test]
async fn a_hundred_submits_of_a_known_document_are_one() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    di.on(&DOC[..], failing());
    end(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await).await;
    let mut all = many(&gateway, 100);
    let mut ids = Vec::new();
    while let Some(answer) = all.join_next().await {
        let answer = answer.unwrap();
        assert!(answer.is_hit(), "{} {:?}", answer.status, answer.headers);
        ids.push(id_of(&operation(&gateway, &answer)).to_owned());
    }
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), di.submits().len()), (100, 1), "each has an operation of its own");
    settle(&gateway, 102).await;
}

/// An attempt is under way until its outcome is known: of many that come at once, one goes up, and whoever polls it learns it for
/// all of them.
#[tokio::test]
async fn a_hundred_submits_at_once_wait_for_what_the_first_one_s_poll_shows() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("DI", "negative_cache: {single_flight_wait_ms: 60000}")]).await;
    di.on(&DOC[..], failing().after(2));
    let mut all = many(&gateway, 100);
    let first = all.join_next().await.unwrap().unwrap();
    assert!(!first.is_hit());
    let operation_of_first = operation(&gateway, &first);
    // all that have arrived wait
    gateway.wait_metric("gateway_body_memory_bytes", &[], 99.0 * DOC.len() as f64).await;
    for state in ["running", "running", "failed"] {
        assert_eq!(di.submits().len(), 1);
        assert_eq!(poll(&gateway, &operation_of_first).await.json()["status"], state);
    }
    while let Some(answer) = all.join_next().await {
        let answer = answer.unwrap();
        assert!(answer.is_hit(), "{} {:?}", answer.status, answer.headers);
        operation(&gateway, &answer);
    }
    assert_eq!((di.submits().len(), di.polls().len()), (1, 3));
    settle(&gateway, 103).await;
}

#[tokio::test]
async fn any_other_outcome_releases_all_who_wait_at_once() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("DI", "negative_cache: {single_flight_wait_ms: 60000}")]).await;
    for (n, (fate, is_deleted)) in [
        (Fate::succeeds(), false),
        (Fate::fails(fault("InternalServerError", "Unknown")), false),
        (Fate::succeeds().after(9), true),
    ]
    .into_iter()
    .enumerate()
    {
        // what was accepted lately is not waited for: a document each
        let document = format!("waited for {n}");
        di.on(&document, fate);
        let first = operation(&gateway, &submit(&gateway, ANALYZE, document.clone()).await);
        let mut rest = many_of(&gateway, 9, document.clone().into());
        gateway.wait_metric("gateway_body_memory_bytes", &[], 9.0 * document.len() as f64).await;
        assert_eq!(di.submits_of(&document), 1);
        call(&gateway, 1, if is_deleted { "DELETE" } else { "GET" }, &first).await;
        while let Some(answer) = rest.join_next().await {
            assert!(!answer.unwrap().is_hit());
        }
        assert_eq!(di.submits_of(&document), 10, "nobody else's operation is shared");
    }
}

#[tokio::test]
async fn an_operation_that_nobody_polls_holds_others_no_longer_than_they_wait() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("DI", "negative_cache: {single_flight_wait_ms: 300}")]).await;
    let mut all = many(&gateway, 10);
    while let Some(answer) = all.join_next().await {
        operation(&gateway, &answer.unwrap());
    }
    assert_eq!(di.submits().len(), 10);
}

/// Clients give up, crash, or are written badly: what the service says is learned all the same.
#[tokio::test]
async fn slow_the_gateway_looks_for_an_outcome_that_nobody_asks_for() {
    let di = AzureDi::start().await;
    di.upstream.patience(Duration::from_secs(90));
    let gateway = facade(&di, &[]).await;
    di.on(&DOC[..], failing());
    let lost = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    di.upstream.wait_until("a look", |_| !di.polls().is_empty()).await;
    gateway.wait_metric("gateway_negative_cache_recorded_total", &[], 1.0).await;
    assert!(submit(&gateway, ANALYZE, &DOC[..]).await.is_hit());
    // its own caller may still come
    assert_eq!(poll(&gateway, &lost).await.json()["status"], "failed");
    assert_eq!(di.submits().len(), 1);
    let lines = gateway.wait_audit(4).await;
    let looks: Vec<_> = lines.iter().filter(|line| line["method"] == "GET").collect();
    assert_eq!(looks.len(), 2, "each call to the upstream has a line: {lines:#?}");
}

/// So many submits of [`DOC`] at once.
fn many(gateway: &Gateway, count: usize) -> tokio::task::JoinSet<Answer> {
    many_of(gateway, count, Bytes::from_static(&DOC))
}

fn many_of(gateway: &Gateway, count: usize, document: Bytes) -> tokio::task::JoinSet<Answer> {
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..count {
        let request = Request::post(&format!("/di{ANALYZE}")).bearer("tok-1");
        let request = request.header("Content-Type", "application/octet-stream").body(document.clone());
        let addr = gateway.addr;
        all.spawn(async move {
            Client::connect(addr).await.patience(Duration::from_secs(60)).request(request).await
        });
    }
    all
}
