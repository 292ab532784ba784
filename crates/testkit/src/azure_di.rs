//! A scripted Document Intelligence service on top of the stub upstream: submits, polls, parts of results, and what becomes of
//! each document. It speaks v4.0, v3.x and v2.1, at any prefix.

mod fate;
mod path;
mod service;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::upstream::{Seen, Upstream};
use crate::wire::hex;
use path::Target;
use service::{DigestOf, Service};
use sha2::{Digest, Sha256};

pub use fate::{Fate, fault};

/// Where a v4.0 client submits a document.
pub const ANALYZE: &str = "/documentintelligence/documentModels/prebuilt-read:analyze?api-version=2024-11-30";
/// Where a v3.1 client does.
pub const ANALYZE_V3: &str = "/formrecognizer/documentModels/prebuilt-read:analyze?api-version=2023-07-31";
/// Where a v2.1 client does.
pub const ANALYZE_V2: &str = "/formrecognizer/v2.1/layout/analyze";

/// The service, on a port of its own. A document that nothing was said of succeeds at the first poll.
pub struct AzureDi {
    /// The stub that it answers through: its log, its connections, stopping it.
    pub upstream: Upstream,
    service: Arc<Mutex<Service>>,
}

impl fmt::Debug for AzureDi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AzureDi").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

impl AzureDi {
    /// Starts one on a free port of 127.0.0.1.
    pub async fn start() -> Self {
        Self::answering(Arc::new(Mutex::new(Service::default()))).await
    }

    /// Another address of the same service: it knows the same documents and operations, and has a log of its own.
    pub async fn beside(other: &Self) -> Self {
        Self::answering(other.service.clone()).await
    }

    async fn answering(service: Arc<Mutex<Service>>) -> Self {
        let upstream = Upstream::start().await;
        let (own, shared) = (upstream.addr().to_string(), service.clone());
        upstream.by(move |seen, _| lock(&shared).answer(seen, &own));
        Self { upstream, service }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.upstream.addr()
    }

    /// Its base URL, without a slash at the end.
    pub fn url(&self) -> String {
        self.upstream.url()
    }

    // What it answers.

    /// What becomes of a document from now on, however it is sent: as the body, or in `base64Source`. Input by reference is known
    /// by the whole JSON body.
    pub fn on(&self, document: impl AsRef<[u8]>, fate: Fate) {
        lock(&self.service).fates.insert(DigestOf::bytes(document.as_ref()), fate);
    }

    /// The `Operation-Location` of submits from now on; `@AUTHORITY@` and `@PATH@` stand for what it would have been.
    pub fn locate(&self, template: &str) {
        template.clone_into(&mut lock(&self.service).location);
    }

    /// Forgets all operations, as the service does when their time is up.
    pub fn expire_all(&self) {
        lock(&self.service).forget_operations();
    }

    // What it saw.

    /// The submits, in the order in which they arrived.
    pub fn submits(&self) -> Vec<Seen> {
        self.seen(|seen, target| seen.method == "POST" && matches!(target, Some(Target::Submit(_))))
    }

    /// The submits of this document, sent as the body.
    pub fn submits_of(&self, document: impl AsRef<[u8]>) -> usize {
        let digest = hex(&Sha256::digest(document));
        self.submits().iter().filter(|seen| seen.body_sha256 == digest).count()
    }

    /// The polls of operations, without those of parts of a result.
    pub fn polls(&self) -> Vec<Seen> {
        self.seen(|seen, target| {
            seen.method == "GET" && matches!(target, Some(Target::Operation { part: "", .. }))
        })
    }

    /// What was sent to this path of the service, with its query, by any method.
    pub fn calls_to(&self, target: &str) -> Vec<Seen> {
        self.seen(|seen, _| seen.target == target)
    }

    /// How many connections it accepted.
    pub fn connections(&self) -> u64 {
        self.upstream.connections()
    }

    fn seen(&self, wanted: impl Fn(&Seen, Option<Target<'_>>) -> bool) -> Vec<Seen> {
        let mut all = self.upstream.requests();
        all.retain(|seen| wanted(seen, Target::of(seen.path())));
        all
    }
}

fn lock(service: &Mutex<Service>) -> std::sync::MutexGuard<'_, Service> {
    service.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Answer, Client, Request};
    use serde_json::json;

    async fn ask(service: &AzureDi, request: Request) -> Answer {
        Client::connect(service.addr()).await.request(request).await
    }

    #[tokio::test]
    async fn an_operation_runs_ends_and_goes_in_every_version() {
        let service = AzureDi::start().await;
        service.on("good", Fate::succeeds().after(1));
        for path in [ANALYZE, ANALYZE_V3, ANALYZE_V2] {
            let submitted = ask(&service, Request::post(path).body("good")).await;
            let location = submitted.header("operation-location").unwrap_or_default();
            let poll = location.strip_prefix(&service.url()).unwrap_or_default().to_owned();
            assert_eq!((submitted.status, poll.is_empty()), (202, false), "{location}");
            let asked = path.split_once('?').map(|(_, query)| query);
            assert_eq!(poll.split_once('?').map(|(_, query)| query), asked);
            let running = ask(&service, Request::get(&poll)).await;
            assert_eq!(
                (running.json()["status"].clone(), running.header("retry-after").is_some()),
                ("running".into(), true)
            );
            let end = ask(&service, Request::get(&poll)).await;
            assert_eq!(end.json()["status"], "succeeded");
            assert!(end.text().contains(&hex(&Sha256::digest("good"))), "{}", end.text());
            assert_eq!(ask(&service, Request::new("DELETE", &poll)).await.status, 204);
            let gone = ask(&service, Request::get(&poll)).await;
            assert_eq!(
                (gone.status, gone.json()["error"]["innererror"]["code"].clone()),
                (404, "OperationNotFound".into())
            );
        }
        assert_eq!((service.submits().len(), service.polls().len(), service.submits_of("good")), (3, 9, 3));
    }

    #[tokio::test]
    async fn a_document_has_one_fate_however_it_is_sent() {
        let service = AzureDi::start().await;
        service.on("bad", Fate::refused(400, fault("InvalidRequest", "InvalidContent")));
        service.on("late", Fate::fails(fault("InvalidRequest", "InvalidContent")).spelt("Failed"));
        let inline = Request::post(ANALYZE).body(json!({ "base64Source": "YmFk" }).to_string());
        for request in [Request::post(ANALYZE).body("bad"), inline] {
            let refused = ask(&service, request).await;
            assert_eq!(
                (refused.status, refused.json()["error"]["innererror"]["code"].clone()),
                (400, "InvalidContent".into())
            );
        }
        let at_other = AzureDi::beside(&service).await;
        service.locate(&format!("{}@PATH@", at_other.url()));
        for (path, pointer) in [(ANALYZE, "/error/code"), (ANALYZE_V2, "/analyzeResult/errors/0/code")] {
            let submitted = ask(&service, Request::post(path).body("late")).await;
            let location = submitted.header("operation-location").unwrap_or_default();
            let poll = location.strip_prefix(&at_other.url()).unwrap_or_default().to_owned();
            let failed = ask(&at_other, Request::get(&poll)).await.json();
            assert_eq!(failed["status"], "Failed");
            assert_eq!(failed.pointer(pointer), Some(&"InvalidRequest".into()));
        }
        assert_eq!((service.polls().len(), at_other.polls().len()), (0, 2));
    }
}
