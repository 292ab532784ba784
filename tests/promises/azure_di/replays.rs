//! Operations of the gateway's own making: the document was known to fail, and the upstream is asked nothing.

use serde_json::{Value, json};

use super::*;
use crate::caller::{entries, forget_all};

/// A facade that knows that [`DOC`] fails, and what the poll said that showed it.
async fn known(di: &AzureDi) -> (Gateway, Value) {
    let gateway = facade(di, &[]).await;
    di.on(&DOC[..], failing());
    let live = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    let failed = poll(&gateway, &live).await;
    assert_eq!(failed.json()["status"], "failed");
    (gateway, failed.json())
}

#[tokio::test]
async fn a_replay_fails_at_the_poll_as_the_document_did() {
    let di = AzureDi::start().await;
    let (gateway, live) = known(&di).await;
    let calls = di.upstream.calls();
    let mut operations = Vec::new();
    for tenant in [1, 1, 2] {
        let submitted = submit_as(&gateway, tenant, ANALYZE, "application/octet-stream", &DOC[..]).await;
        assert!(submitted.is_hit(), "{:?}", submitted.headers);
        for name in ["apim-request-id", "x-envoy-upstream-service-time"] {
            assert_eq!(submitted.header(name), None, "{name} on a replay");
        }
        // clients wait for as long as it says, so it may say nothing, or a whole number of seconds
        let wait = submitted.header("retry-after").map(|wait| wait.parse::<u64>());
        assert!(wait.is_none_or(|wait| wait.is_ok_and(|wait| wait <= 1)), "{:?}", submitted.headers);
        let operation = operation(&gateway, &submitted);
        for _ in 0..2 {
            let failed = call(&gateway, tenant, "GET", &operation).await;
            assert_eq!((failed.status, failed.is_hit()), (200, true), "{:?}", failed.headers);
            assert_eq!(failed.header("content-type").as_deref(), Some("application/json; charset=utf-8"));
            let said = failed.json();
            assert_eq!((&said["status"], &said["error"]), (&live["status"], &live["error"]));
            for time in ["createdDateTime", "lastUpdatedDateTime"] {
                let text = said[time].as_str().unwrap();
                assert!(text.len() == 20 && text.ends_with('Z') && *text != live[time], "{time}: {text}");
            }
            let names: Vec<_> = said.as_object().unwrap().keys().cloned().collect();
            assert_eq!(names, live.as_object().unwrap().keys().cloned().collect::<Vec<_>>());
        }
        operations.push(operation);
    }
    assert_eq!(di.upstream.calls(), calls);
    operations.sort();
    operations.dedup();
    assert_eq!(operations.len(), 3);
    assert_eq!(
        entries(&gateway, "").await[0]["replays"],
        3,
        "a submit is one replay, and its polls are none"
    );
    let lines = settle(&gateway, 2 + 3 * 3).await;
    let submits: Vec<_> = lines.iter().filter(|line| line["method"] == "POST").collect();
    for line in &submits[1..] {
        assert_eq!((&line["code"], &line["cache_hit"]), (&json!("REFUSED_HTTP_200"), &json!(true)), "{line}");
        assert_eq!(
            (&line["upstream_ms"], &line["document_sha256"]),
            (&json!(0), &submits[0]["document_sha256"])
        );
    }
}

/// Clients take an address to pieces: it looks as the service's own would.
#[tokio::test]
async fn a_replay_s_address_is_made_of_the_submit_s() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    di.on(&DOC[..], failing());
    let classify =
        "/documentintelligence/documentClassifiers/c.1~x:analyze?split=auto&api-version=2024-11-30&pages=1";
    for path in [ANALYZE, ANALYZE_V3, classify, &ANALYZE.replacen('/', "//", 1)] {
        let live = operation(&gateway, &submit(&gateway, path, &DOC[..]).await);
        let failed = poll(&gateway, &live).await.json();
        let replay = submit(&gateway, path, &DOC[..]).await;
        assert!(replay.is_hit(), "{path}");
        let minted = operation(&gateway, &replay);
        assert_eq!(with_id(&minted, "@"), with_id(&live, "@"), "{path}");
        for asked in [minted.as_str(), minted.split('?').next().unwrap()] {
            assert_eq!(poll(&gateway, asked).await.json()["error"], failed["error"]);
        }
    }
    assert_eq!((di.submits().len(), di.polls().len()), (4, 4));
}

#[tokio::test]
async fn a_minted_operation_is_its_tenants_too() {
    let di = AzureDi::start().await;
    let (gateway, _) = known(&di).await;
    let minted = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    let calls = di.upstream.calls();
    for method in ["GET", "DELETE"] {
        assert_no_operation(&call(&gateway, 2, method, &minted).await, 404, "OPERATION_NOT_FOUND");
    }
    // it has no result, and so no parts of one
    let bare = minted.split('?').next().unwrap();
    for part in ["/pdf", "/figures/1.1"] {
        let none = poll(&gateway, &format!("{bare}{part}")).await;
        assert_eq!((none.status, none.json()["error"]["code"].is_string()), (404, true), "{}", none.text());
    }
    assert_eq!(poll(&gateway, &minted).await.json()["status"], "failed");
    let deleted = call(&gateway, 1, "DELETE", &minted).await;
    assert_eq!((deleted.status, deleted.body.is_empty()), (204, true));
    for method in ["GET", "DELETE"] {
        assert_no_operation(&call(&gateway, 1, method, &minted).await, 404, "OPERATION_NOT_FOUND");
    }
    assert_eq!(di.upstream.calls(), calls);
}

#[tokio::test]
async fn a_minted_operation_outlives_the_gateway_and_the_entry() {
    let di = AzureDi::start().await;
    let (mut gateway, live) = known(&di).await;
    let minted = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    gateway.signal("KILL");
    gateway.wait_exit(Duration::from_secs(10)).await;
    gateway.restart().await;
    assert_eq!(poll(&gateway, &minted).await.json()["error"], live["error"]);
    // who was promised an outcome gets it, whatever becomes of the entry
    assert_eq!(forget_all(&gateway).await, 1);
    assert_eq!(poll(&gateway, &minted).await.json()["error"], live["error"]);
    assert!(!submit(&gateway, ANALYZE, &DOC[..]).await.is_hit());
    assert_eq!(di.submits().len(), 2);
}
