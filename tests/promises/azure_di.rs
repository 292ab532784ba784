//! The facade of Azure Document Intelligence: operations are the gateway's own, work on every replica and after a restart, belong
//! to the tenant that submitted, and their addresses lead to the gateway and nowhere else.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test")]

mod doubts;
mod fleet;
mod links;
mod replays;
mod verdicts;

use std::time::Duration;

use bytes::Bytes;
use nevertwice_testkit::azure_di::{ANALYZE, ANALYZE_V2, ANALYZE_V3};
use nevertwice_testkit::{Answer, AzureDi, Client, DOC, DOC2, Fate, Gateway, Request, fault, sha256_hex};
use serde_json::Value;

use crate::bench::settle;
use crate::caller::assert_own;

/// Of a facade for this service at `/di`, with more lines in slots of the configuration: `DI` is in the facade's own upstream, and `BASE` is
/// its `base_url` where that is another one.
pub fn yaml(di: &AzureDi, slots: &[(&str, &str)]) -> String {
    let mut upstream = "- name: di\n  adapter: azuredi-facade\n".to_owned();
    if !slots.iter().any(|(slot, _)| *slot == "BASE") {
        upstream.push_str(&format!("  base_url: \"{}\"\n", di.url()));
    }
    for (slot, text) in slots {
        match *slot {
            "BASE" => {
                format!("base_url: {text}").lines().for_each(|line| upstream.push_str(&format!("  {line}\n")))
            }
            "DI" => text.lines().for_each(|line| upstream.push_str(&format!("  {line}\n"))),
            _ => {}
        }
    }
    let mut all = vec![("UPSTREAMS", upstream.as_str())];
    all.extend(slots.iter().filter(|(slot, _)| !["DI", "BASE"].contains(slot)));
    Gateway::simple_yaml(&di.url(), &all)
}

/// A gateway with the configuration of [`yaml`].
pub async fn facade(di: &AzureDi, slots: &[(&str, &str)]) -> Gateway {
    Gateway::start(&yaml(di, slots)).await
}

/// Any request, on a connection of its own.
pub async fn ask(gateway: &Gateway, request: Request) -> Answer {
    Client::connect(gateway.addr).await.request(request).await
}

/// The first tenant submits a document to this path of the facade.
pub async fn submit(gateway: &Gateway, path: &str, document: impl Into<Bytes>) -> Answer {
    submit_as(gateway, 1, path, "application/octet-stream", document).await
}

pub async fn submit_as(
    gateway: &Gateway,
    tenant: u8,
    path: &str,
    content_type: &str,
    document: impl Into<Bytes>,
) -> Answer {
    let request = Request::post(&format!("/di{path}")).bearer(&format!("tok-{tenant}"));
    ask(gateway, request.header("Content-Type", content_type).body(document)).await
}

/// Submits by JSON.
pub async fn submit_json(gateway: &Gateway, path: &str, body: &Value) -> Answer {
    submit_as(gateway, 1, path, "application/json", body.to_string()).await
}

/// The path and query of the operation that a submit was answered with. Its address is the gateway's own.
pub fn operation(gateway: &Gateway, submitted: &Answer) -> String {
    operation_below(submitted, &format!("http://{}", gateway.addr))
}

/// Like [`operation`], of an address that begins otherwise.
pub fn operation_below(submitted: &Answer, base: &str) -> String {
    assert_eq!(submitted.status, 202, "{:?}: {}", submitted.headers, submitted.text());
    assert!(submitted.body.is_empty(), "{}", submitted.text());
    assert_eq!(submitted.header("location"), None, "clients would fetch it as the result");
    let locations = submitted.headers_named("operation-location");
    let [location] = locations[..] else { panic!("one address: {:?}", submitted.headers) };
    let location = String::from_utf8(location.to_vec()).unwrap();
    let path = location.strip_prefix(base).unwrap_or_else(|| panic!("{location} is not below {base}"));
    let id = id_of(path);
    let is_guid = id.len() == 36 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    assert!(is_guid && id == id.to_ascii_lowercase(), "{id}");
    path.to_owned()
}

/// The id in an operation's path.
pub fn id_of(path: &str) -> &str {
    path.split('?').next().unwrap().rsplit('/').next().unwrap()
}

/// What the first tenant gets for a poll.
pub async fn poll(gateway: &Gateway, operation: &str) -> Answer {
    call(gateway, 1, "GET", operation).await
}

pub async fn call(gateway: &Gateway, tenant: u8, method: &str, path: &str) -> Answer {
    ask(gateway, Request::new(method, path).bearer(&format!("tok-{tenant}"))).await
}

/// An error of the gateway's own about an operation: a problem document that SDKs can read too.
pub fn assert_no_operation(answer: &Answer, status: u16, code: &str) {
    assert_own(answer, status, code);
    let (status, error) = (&answer.json()["status"], &answer.json()["error"]);
    assert!(status.is_null(), "what clients read there is the word for an operation's state: {status}");
    assert_eq!(error["code"], code, "{}", answer.text());
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", answer.text());
}

/// A path with another id in place of its own.
fn with_id(path: &str, id: &str) -> String {
    path.replace(id_of(path), id)
}

fn refused() -> Fate {
    Fate::refused(400, fault("InvalidRequest", "InvalidContent"))
}

fn failing() -> Fate {
    Fate::fails(fault("InvalidRequest", "InvalidContent"))
}

#[tokio::test]
async fn di_01_the_address_of_an_operation_points_home() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("TOP", "public_base_url: \"https://gw.test:8443/base\"")]).await;
    let submitted = submit(&gateway, ANALYZE, &DOC[..]).await;
    let operation = operation_below(&submitted, "https://gw.test:8443/base");
    let shape =
        "/di/documentintelligence/documentModels/prebuilt-read/analyzeResults/@?api-version=2024-11-30";
    assert_eq!(operation, shape.replace('@', id_of(&operation)));
    assert_eq!(submitted.header("retry-after").as_deref(), Some("1"));
    assert!(submitted.header("apim-request-id").is_some());
    let done = poll(&gateway, &operation).await;
    assert_eq!((done.status, &done.json()["status"]), (200, &"succeeded".into()));
    assert!(done.text().contains(&sha256_hex(&[&DOC[..]])), "{}", done.text());
    // nothing of the upstream is to be read, not even its id
    let theirs = id_of(&di.polls()[0].target).to_owned();
    for text in [&submitted.head_raw, &done.head_raw, &done.body] {
        let text = String::from_utf8_lossy(text);
        assert!(!text.contains(&di.addr().to_string()) && !text.contains(&theirs), "{text}");
    }
    assert_eq!((di.submits().len(), di.polls().len()), (1, 1));
    let lines = settle(&gateway, 2).await;
    assert!(lines.iter().all(|line| line["code"] == "OK" && line["upstream"] == "di"), "{lines:#?}");
}

#[tokio::test]
async fn every_version_submits_polls_reads_parts_and_deletes() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    di.on(&DOC[..], Fate::succeeds().after(1));
    let classify =
        "/documentintelligence/documentClassifiers/my.classes~1:analyze?split=auto&api-version=2024-11-30";
    let custom = "/formrecognizer/v2.1/custom/models/0a1b2c3d-0000-4000-8000-00000000000f/analyze?includeTextDetails=true";
    let exact = "/documentintelligence/documentModels/m:analyze?_overload=analyzeDocument&pages=1-3,%205&locale=de%2DAT\
                 &features=a,b&output=pdf,figures&queryFields=&api-version=2024-11-30";
    let receipt = "/formrecognizer/v2.1/prebuilt/receipt/analyze?locale=en-US&pages=1";
    let all =
        [ANALYZE, ANALYZE_V3, ANALYZE_V2, classify, custom, receipt, exact, &ANALYZE.replacen('/', "//", 1)];
    for path in all {
        let operation = operation(&gateway, &submit(&gateway, path, &DOC[..]).await);
        let sent = di.submits().pop().unwrap();
        assert_eq!(sent.target, path, "as it was asked");
        assert_eq!(sent.header("content-type").as_deref(), Some("application/octet-stream"));
        let before = path.split([':', '?']).next().unwrap().trim_end_matches("/analyze");
        assert!(operation.starts_with(&format!("/di{before}/analyze")), "{operation} of {path}");
        let running = poll(&gateway, &operation).await;
        assert_eq!((running.status, &running.json()["status"]), (200, &"running".into()), "{path}");
        assert_eq!(running.header("retry-after").as_deref(), Some("1"));
        // clients poll with the query, with more of it, or with none
        let bare = operation.split('?').next().unwrap();
        for asked in [&operation, &format!("{bare}?api-version=2023-07-31"), bare] {
            let done = poll(&gateway, asked).await;
            assert_eq!((done.status, &done.json()["status"]), (200, &"succeeded".into()), "{asked}");
        }
        for (part, kind) in [("/pdf", "application/pdf"), ("/figures/1.1", "image/png")] {
            let read = poll(&gateway, &operation.replacen(bare, &format!("{bare}{part}"), 1)).await;
            assert_eq!((read.status, read.header("content-type").as_deref()), (200, Some(kind)), "{path}");
            assert_eq!(read.text(), format!("{part} of {}", sha256_hex(&[&DOC[..]])));
        }
        let deleted = call(&gateway, 1, "DELETE", &operation).await;
        assert_eq!((deleted.status, deleted.body.is_empty()), (204, true));
        let gone = poll(&gateway, &operation).await;
        assert_eq!((gone.status, gone.json()["error"]["code"].is_string()), (404, true), "{}", gone.text());
    }
    assert_eq!(di.submits().len(), all.len());
    settle(&gateway, all.len() * 9).await;
}

#[tokio::test]
async fn an_upstream_behind_a_prefix_keeps_it_to_itself() {
    let di = AzureDi::start().await;
    let base = format!("\"{}/behind/a/prefix\"", di.url());
    let gateway = facade(&di, &[("BASE", &base)]).await;
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    assert!(operation.starts_with("/di/documentintelligence/documentModels/prebuilt-read/"), "{operation}");
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "succeeded");
    assert_eq!(di.submits()[0].target, format!("/behind/a/prefix{ANALYZE}"));
    assert!(di.polls()[0].target.starts_with("/behind/a/prefix/documentintelligence/"));
    // one path of the API, mounted where clients expect it
    let base = format!("\"{}/documentintelligence\"\nmount: /documentintelligence", di.url());
    let gateway = facade(&di, &[("BASE", &base)]).await;
    let asked = Request::post(ANALYZE).bearer("tok-1").body(&DOC2[..]);
    let submitted = ask(&gateway, asked).await;
    let operation = operation_below(&submitted, &format!("http://{}", gateway.addr));
    assert_eq!(operation.replace(id_of(&operation), "@"), ANALYZE.replace(":analyze", "/analyzeResults/@"));
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "succeeded");
    assert_eq!(di.submits()[1].target, ANALYZE);
}

#[tokio::test]
async fn an_operation_is_its_tenants_and_nobody_elses() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    poll(&gateway, &operation).await;
    let theirs = id_of(&di.polls()[0].target).to_owned();
    let calls = di.upstream.calls();
    let bare = operation.split('?').next().unwrap();
    let mut asked = 0;
    // foreign, whatever is wanted of it
    for (method, path) in [
        ("GET", operation.clone()),
        ("GET", format!("{bare}/pdf")),
        ("GET", format!("{bare}/figures/1.1")),
        ("DELETE", operation.clone()),
    ] {
        assert_no_operation(&call(&gateway, 2, method, &path).await, 404, "OPERATION_NOT_FOUND");
        asked += 1;
    }
    // forged: the upstream's own id, one that nobody has, and what is no id
    let forged = [theirs.as_str(), "00000000-0000-4000-8000-000000000000", "7f", "..", "%2e%2e", "*"];
    for id in forged {
        for method in ["GET", "DELETE"] {
            let answer = call(&gateway, 1, method, &with_id(&operation, id)).await;
            assert!([400, 404].contains(&answer.status), "{id}: {}", answer.status);
            if id.len() == 36 {
                assert_no_operation(&answer, 404, "OPERATION_NOT_FOUND");
            }
            asked += 1;
        }
    }
    // one that is another's and one that is nobody's cannot be told apart
    let unknown = with_id(&operation, "00000000-0000-4000-8000-000000000000");
    let (foreign, unknown) =
        (call(&gateway, 2, "GET", &operation).await, call(&gateway, 2, "GET", &unknown).await);
    let plain = |answer: &Answer| {
        let mut body = answer.json();
        body.as_object_mut().unwrap().retain(|name, _| !["instance", "trace_id"].contains(&name.as_str()));
        body
    };
    assert_eq!(plain(&foreign), plain(&unknown));
    assert_eq!(di.upstream.calls(), calls, "the upstream was asked nothing");
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "succeeded");
    let lines = settle(&gateway, asked + 5).await;
    let refused = lines.iter().filter(|line| line["code"] == "OPERATION_NOT_FOUND").count();
    assert!(refused >= 4 + 4 + 2, "{lines:#?}");
}

#[tokio::test]
async fn what_the_upstream_forgot_is_a_404_that_clients_can_read() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    di.expire_all();
    for _ in 0..2 {
        let gone = poll(&gateway, &operation).await;
        assert_eq!((gone.status, gone.json()["error"]["code"].is_string()), (404, true), "{}", gone.text());
        assert!(!gone.is_hit());
    }
}

#[tokio::test]
async fn operations_outlive_the_gateway() {
    let di = AzureDi::start().await;
    let mut gateway = facade(&di, &[]).await;
    di.on(&DOC[..], Fate::succeeds().after(2));
    di.on(&DOC2[..], failing().after(2));
    let mut operations = Vec::new();
    for document in [&DOC[..], &DOC2] {
        operations.push(operation(&gateway, &submit(&gateway, ANALYZE, document).await));
        // what was promised was kept before it was promised
        gateway.signal("KILL");
        gateway.wait_exit(Duration::from_secs(10)).await;
        gateway.restart().await;
    }
    for operation in &operations {
        assert_eq!(poll(&gateway, operation).await.json()["status"], "running");
    }
    gateway.restart().await;
    for operation in &operations {
        assert_eq!(poll(&gateway, operation).await.json()["status"], "running");
    }
    gateway.signal("KILL");
    gateway.wait_exit(Duration::from_secs(10)).await;
    gateway.restart().await;
    let ends: Vec<_> = [poll(&gateway, &operations[0]).await, poll(&gateway, &operations[1]).await]
        .iter()
        .map(|answer| answer.json()["status"].clone())
        .collect();
    assert_eq!(ends, ["succeeded", "failed"]);
    // the verdict of an attempt that another process began
    let replay = submit(&gateway, ANALYZE, &DOC2[..]).await;
    assert!(replay.status == 202 && replay.is_hit(), "{:?}", replay.headers);
    assert_eq!((di.submits().len(), di.polls().len()), (2, 6));
}

/// Killed at any point, it has kept whatever it has promised.
#[tokio::test]
async fn no_operation_that_was_promised_is_lost_by_a_kill() {
    let di = AzureDi::start().await;
    let mut gateway = facade(&di, &[]).await;
    let mut promised = Vec::new();
    for round in 0..10_u64 {
        let mut submits = tokio::task::JoinSet::new();
        for n in 0..16 {
            let (addr, document) = (gateway.addr, format!("document {n} of round {round}"));
            let request = Request::post(&format!("/di{ANALYZE}")).bearer("tok-1").body(document.clone());
            submits.spawn(async move {
                let answer = Client::try_connect(addr).await?.try_request(request).await?;
                Ok::<_, nevertwice_testkit::Failure>((answer, document))
            });
        }
        // later and later, while others are under way
        let mut answers = Vec::new();
        for _ in 0..round {
            answers.extend(submits.join_next().await);
        }
        gateway.signal("KILL");
        gateway.wait_exit(Duration::from_secs(10)).await;
        while let Some(late) = submits.join_next().await {
            answers.push(late);
        }
        for submitted in answers.into_iter().flat_map(Result::unwrap) {
            promised.push((operation(&gateway, &submitted.0), sha256_hex(&[submitted.1])));
        }
        gateway.restart().await;
    }
    assert!(promised.len() >= 45, "{}", promised.len());
    for (operation, digest) in promised {
        let done = poll(&gateway, &operation).await;
        assert_eq!((done.status, done.text().contains(&digest)), (200, true), "{}", done.text());
    }
}

#[tokio::test]
async fn an_operation_outlives_the_upstreams_absence() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    di.upstream.stop().await;
    for _ in 0..2 {
        assert_no_operation(&poll(&gateway, &operation).await, 502, "UPSTREAM_UNREACHABLE");
    }
    di.upstream.restart().await;
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "succeeded");
}

#[tokio::test]
async fn an_operation_is_of_one_upstream() {
    let di = AzureDi::start().await;
    let other = format!("- name: other\n  adapter: azuredi-facade\n  base_url: \"{}\"", di.url());
    let gateway = facade(&di, &[("UPSTREAMS", &other)]).await;
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    let elsewhere = operation.replacen("/di/", "/other/", 1);
    assert_no_operation(&poll(&gateway, &elsewhere).await, 404, "OPERATION_NOT_FOUND");
    assert_eq!((poll(&gateway, &operation).await.status, di.polls().len()), (200, 1));
}

/// What stands behind the id goes up as it is, and stays below the operation.
#[tokio::test]
async fn a_part_is_a_part_of_its_operation() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let path = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    poll(&gateway, &path).await;
    let bare = path.split('?').next().unwrap();
    let calls = di.upstream.calls();
    for part in ["/..", "/../7f", "/figures/../../7f", "/%2e%2e/7f", "/./pdf", "/figures/%2E%2E"] {
        let answer = poll(&gateway, &format!("{bare}{part}")).await;
        assert_eq!(answer.status, 400, "{part}");
    }
    assert_eq!(di.upstream.calls(), calls);
    for part in ["/figures/1%2F1", "//pdf", "/pdf/", "/figures/a%20b;c=1"] {
        poll(&gateway, &format!("{bare}{part}")).await;
        let sent = di.upstream.last_request();
        let theirs = di.polls()[0].path().to_owned();
        assert_eq!(sent.path(), format!("{theirs}{part}"));
    }
}

/// Where the memory is off, and where it is off for this upstream, the facade is there all the same.
#[tokio::test]
async fn without_the_memory_the_facade_works_and_remembers_nothing() {
    let di = AzureDi::start().await;
    di.on(&DOC[..], refused());
    di.on(&DOC2[..], failing());
    let off = yaml(&di, &[]).replace("  enabled: true\n", "  enabled: false\n");
    let off_here = yaml(&di, &[("DI", "negative_cache: {enabled: false}")]);
    for (n, yaml) in [off, off_here].into_iter().enumerate() {
        let gateway = Gateway::start(&yaml).await;
        for _ in 0..2 {
            let live = submit(&gateway, ANALYZE, &DOC[..]).await;
            assert_eq!((live.status, live.is_hit(), live.header("operation-location")), (400, false, None));
            let submitted = submit(&gateway, ANALYZE, &DOC2[..]).await;
            assert!(!submitted.is_hit());
            let failed = poll(&gateway, &operation(&gateway, &submitted)).await;
            assert_eq!((failed.is_hit(), &failed.json()["status"]), (false, &"failed".into()));
        }
        assert_eq!(di.submits().len(), 4 * (n + 1));
        settle(&gateway, 6).await;
    }
}
