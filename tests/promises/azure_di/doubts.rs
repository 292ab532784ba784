//! What must not be believed, or reached, though it looks much like what may be.

use nevertwice_testkit::{Gate, Reply, Upstream};

use super::*;
use crate::caller::{entry_count, forget_all};

const OTHERS: &str = "/documentintelligence/documentModels/prebuilt-read/analyzeResults/";

/// A service at which submits wait at the gate, and operations fail for the document's sake.
async fn slow_to_take(gate: &Gate) -> Upstream {
    let (upstream, gate) = (Upstream::start().await, gate.clone());
    let authority = upstream.addr().to_string();
    upstream.by(move |seen, _| match seen.method.as_str() {
        "POST" => Reply::status(202)
            .header("Operation-Location", format!("http://{authority}{OTHERS}7f?api-version=2024-11-30"))
            .wait_for(&gate),
        _ => Reply::status(200).header("Content-Type", "application/json").body(
            serde_json::json!({ "status": "failed", "error": fault("InvalidRequest", "InvalidContent") })
                .to_string(),
        ),
    });
    upstream
}

/// I7: the attempt began before the forget, though its operation began after it.
#[tokio::test]
async fn a_forget_while_a_submit_is_on_its_way_holds_for_its_poll() {
    let gate = Gate::new();
    let (di, upstream) = (AzureDi::start().await, slow_to_take(&gate).await);
    let base = format!("\"{}\"", upstream.url());
    let gateway = facade(&di, &[("BASE", &base)]).await;
    let (submitted, ()) = tokio::join!(submit(&gateway, ANALYZE, &DOC[..]), async {
        upstream.wait_calls(1).await;
        forget_all(&gateway).await;
        gate.open();
    });
    let operation = operation(&gateway, &submitted);
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "failed");
    assert_eq!(entry_count(&gateway).await, 0);
    // what began after it is remembered
    let again = submit(&gateway, ANALYZE, &DOC[..]).await;
    assert!(!again.is_hit());
    poll(&gateway, &super::operation(&gateway, &again)).await;
    assert!(submit(&gateway, ANALYZE, &DOC[..]).await.is_hit());
}

/// A failure that is heard of late says less than a success since.
#[tokio::test]
async fn an_old_failure_does_not_outlive_a_newer_success() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("DI", "negative_cache: {single_flight_wait_ms: 0}")]).await;
    di.on(&DOC[..], failing());
    let old = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    di.on(&DOC[..], Fate::succeeds());
    let new = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    assert_eq!(poll(&gateway, &new).await.json()["status"], "succeeded");
    assert_eq!(poll(&gateway, &old).await.json()["status"], "failed");
    assert_eq!(entry_count(&gateway).await, 0);
    assert!(!submit(&gateway, ANALYZE, &DOC[..]).await.is_hit());
    assert_eq!(di.submits().len(), 3);
}

/// I4: of what one caller chose to send with its poll, nothing shapes what all are told.
#[tokio::test]
async fn a_poll_that_teaches_says_nothing_of_its_caller() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    di.on(&DOC[..], failing().after(1));
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    let asked =
        || Request::get(&operation).bearer("tok-1").header("Accept-Language", "tlh").header("X-Odd", "1");
    for _ in 0..3 {
        ask(&gateway, asked()).await;
    }
    let polls = di.polls();
    let told: Vec<_> = polls.iter().map(|seen| seen.header("x-odd").is_some()).collect();
    assert_eq!(told, [false, false, true], "a poll that teaches nothing more is the caller's own");
    assert_eq!(polls[1].header("accept-language"), None);
}

/// A server may read a path more generously than it is written.
#[tokio::test]
async fn no_other_spelling_leads_around_the_facade() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    di.on(&DOC[..], Fate::succeeds());
    let submitted = submit(&gateway, ANALYZE, &DOC[..]).await;
    poll(&gateway, &operation(&gateway, &submitted)).await;
    let theirs = di.polls().pop().unwrap().target;
    let calls = di.upstream.calls();
    for spelt in [
        theirs.clone(),
        theirs.replace("analyzeResults", "analyze%52esults"),
        theirs.replace("analyzeResults", "ANALYZERESULTS"),
        theirs.replace("analyzeResults/", "analyzeResults%2f"),
        theirs.replace("analyzeResults/", "analyzeResults%5C"),
        theirs.replace("analyzeResults/", "analyzeResults//"),
        theirs.replace("analyzeResults/", "analyzeResults;v=1/"),
    ] {
        for method in ["GET", "DELETE"] {
            let answer = call(&gateway, 2, method, &format!("/di{spelt}")).await;
            assert_no_operation(&answer, 404, "OPERATION_NOT_FOUND");
        }
    }
    assert_eq!(di.upstream.calls(), calls, "the upstream's own ids lead nowhere");
    // a submit is one in every spelling
    di.on(&DOC2[..], failing());
    let odd = ANALYZE.replace(":analyze", "%3Aanalyze");
    for path in [odd.as_str(), &ANALYZE.replace(":analyze", ":ANALYZE")] {
        let submitted = submit(&gateway, path, &DOC2[..]).await;
        assert!(!submitted.is_hit(), "{path}");
        if submitted.status == 202 {
            poll(&gateway, &operation(&gateway, &submitted)).await;
            assert!(submit(&gateway, path, &DOC2[..]).await.is_hit(), "{path}");
        }
    }
}

/// I5: what the upstream says of half a document says nothing of the document.
#[tokio::test]
async fn an_operation_that_began_before_the_document_was_there_teaches_nothing() {
    let di = AzureDi::start().await;
    let upstream = Upstream::start().await;
    let authority = upstream.addr().to_string();
    upstream.by_head(move |seen, _| match seen.method.as_str() {
        "POST" => Reply::status(202)
            .header("Operation-Location", format!("http://{authority}{OTHERS}7f?api-version=2024-11-30"))
            .answer_early(),
        _ => Reply::status(200).header("Content-Type", "application/json").body(
            serde_json::json!({ "status": "failed", "error": fault("InvalidRequest", "InvalidContent") })
                .to_string(),
        ),
    });
    let base = format!("\"{}\"", upstream.url());
    let gateway = facade(&di, &[("BASE", &base)]).await;
    let document = nevertwice_testkit::random_document(1, 24 << 20);
    let submitted = submit(&gateway, ANALYZE, document).await;
    let operation = operation(&gateway, &submitted);
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "failed");
    assert_eq!(entry_count(&gateway).await, 0);
}
