//! Clients: they send documents, again and again, to any replica; some leave early, and some have documents forgotten.

use std::sync::Arc;
use std::time::Duration;

use nevertwice_testkit::{Client, Post, Request, sha256_hex};
use serde_json::{Value, json};
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fleet::{Addresses, REPLICAS};
use crate::history::{Forget, Kind, Recorder, SECOND, Said};

const CLASSIFY: &str = "/doc-classifier/classify";
/// How long a client waits that does not leave early: longer than anything may take.
const PATIENCE: Duration = Duration::from_secs(25);
const CLIENTS: usize = 8;
/// Documents that are sent at one time.
const ACTIVE: usize = 24;

/// What the clients share.
pub struct World {
    pub history: Arc<Recorder>,
    pub to: Addresses,
    seed: u64,
    active: Mutex<Vec<Active>>,
}

struct Active {
    document: usize,
    left: u32,
    /// As a replay told it.
    fingerprint: Option<String>,
}

impl World {
    pub fn new(history: Arc<Recorder>, to: Addresses, seed: u64) -> Self {
        Self { history, to, seed, active: Mutex::default() }
    }

    pub fn bytes(&self, document: usize) -> Vec<u8> {
        format!("document {document} of run {}", self.seed).into_bytes()
    }

    /// Sends a document and writes down what came of it.
    pub async fn submit(&self, document: usize, replica: usize, patience: Duration) {
        let op = self.history.invoked(document, replica);
        let request = Post::to(self.to.gateways[replica], CLASSIFY)
            .bearer("tok-1")
            .header("Content-Type", "application/octet-stream")
            .header("traceparent", format!("00-{:032x}-{:016x}-01", op + 1, 1))
            .body(self.bytes(document));
        let said = match tokio::time::timeout(patience, request.try_send()).await {
            Err(_) if patience == PATIENCE => Said::Failed("nothing within 25 s".to_owned()),
            Err(_) => Said::Left,
            Ok(Err(failure)) => Said::Failed(failure.to_string()),
            Ok(Ok(answer)) => {
                if let Some(fingerprint) = answer.header("x-negative-cache-entry") {
                    self.learn(document, fingerprint);
                }
                match answer.header("x-gateway-error") {
                    Some(code) => Said::Own(code),
                    None => {
                        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                        let attempt = body["attempt"].as_u64().and_then(|n| usize::try_from(n).ok());
                        Said::Answer { status: answer.status, hit: answer.is_hit(), attempt }
                    }
                }
            }
        };
        self.history.returned(op, said);
    }

    /// Has a document forgotten, by its fingerprint where that is known and `by_key` says so.
    pub async fn forget(&self, document: usize, replica: usize, by_key: bool) -> bool {
        let key = self.active().iter().find(|a| a.document == document).and_then(|a| a.fingerprint.clone());
        let request = match key.filter(|_| by_key) {
            Some(key) => Request::new("DELETE", &format!("/admin/v1/refusals/{key}")),
            None => Request::post("/admin/v1/refusals/forget")
                .header("Content-Type", "application/json")
                .body(json!({"document": sha256_hex(&[self.bytes(document)])}).to_string()),
        };
        let invoked = self.history.now();
        let answer = async {
            let client = Client::try_connect(self.to.admins[replica]).await.ok()?;
            client.patience(Duration::from_secs(20)).try_request(request).await.ok()
        };
        // nothing was there: it is noted all the same
        let done = answer.await.is_some_and(|answer| matches!(answer.status, 200 | 404));
        let ended = self.history.now();
        self.history.get().forgets.push(Forget { document, replica, invoked, ended, done });
        done
    }

    fn active(&self) -> std::sync::MutexGuard<'_, Vec<Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, document: usize, fingerprint: String) {
        if let Some(active) = self.active().iter_mut().find(|active| active.document == document) {
            active.fingerprint = Some(fingerprint);
        }
    }

    /// A document to send, and whether it is a new one.
    fn pick(&self, rng: &mut fastrand::Rng) -> (usize, bool) {
        let mut active = self.active();
        let at = rng.usize(0..ACTIVE);
        if let Some(known) = active.get_mut(at)
            && known.left > 0
        {
            known.left -= 1;
            return (known.document, false);
        }
        let kind = match rng.u32(0..10) {
            0..5 => Kind::Refused,
            5..6 => Kind::Accepted,
            6..8 => Kind::Shaky(rng.u32(1..4)),
            _ => Kind::Turning(self.history.now() + rng.u64(0..8 * SECOND)),
        };
        let document = self.history.document(kind, false);
        let new = Active { document, left: rng.u32(5..60), fingerprint: None };
        match active.get_mut(at) {
            Some(spent) => *spent = new,
            None => active.push(new),
        }
        (document, true)
    }

    async fn client(&self, mut rng: fastrand::Rng, stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let (document, new) = self.pick(&mut rng);
            if rng.u32(0..100) < 3 {
                self.forget(document, rng.usize(0..REPLICAS), rng.bool()).await;
            } else if new || rng.u32(0..10) == 0 {
                // many at once
                let mut together = Vec::new();
                for _ in 0..rng.usize(2..6) {
                    together.push(self.submit(document, rng.usize(0..REPLICAS), patience(&mut rng)));
                }
                if rng.u32(0..4) == 0 {
                    // while the first attempt is under way, or just after it
                    let (after, by) = (Duration::from_millis(rng.u64(0..500)), rng.usize(0..REPLICAS));
                    let forgetting = async move {
                        tokio::time::sleep(after).await;
                        self.forget(document, by, true).await;
                    };
                    tokio::join!(forgetting, futures_join(together));
                } else {
                    futures_join(together).await;
                }
            } else {
                self.submit(document, rng.usize(0..REPLICAS), patience(&mut rng)).await;
            }
            tokio::time::sleep(Duration::from_millis(rng.u64(0..100))).await;
        }
    }
}

fn patience(rng: &mut fastrand::Rng) -> Duration {
    if rng.u32(0..100) < 7 { Duration::from_millis(rng.u64(1..400)) } else { PATIENCE }
}

async fn futures_join(all: Vec<impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// The clients, until they are told to stop.
pub fn clients(world: &Arc<World>, seed: u64, stop: &watch::Receiver<bool>) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let (world, stop) = (Arc::clone(world), stop.clone());
        let rng = fastrand::Rng::with_seed(seed.wrapping_add(n as u64 + 1));
        clients.spawn(async move { world.client(rng, stop).await });
    }
    clients
}

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    Well,
    /// The checker says what was wrong with it.
    TooManyCalls,
    NotForgotten,
}

/// A fresh document in the healed fleet: one call, however often and wherever it is sent; and one more after a forget.
pub async fn probe(world: &Arc<World>, rng: &mut fastrand::Rng) -> Probed {
    let document = world.history.document(Kind::Refused, true);
    let send = async || {
        let all = (0..2 * REPLICAS).map(|n| world.submit(document, n % REPLICAS, PATIENCE)).collect();
        futures_join(all).await;
        for replica in 0..REPLICAS {
            world.submit(document, replica, PATIENCE).await;
        }
    };
    send().await;
    if !world.forget(document, rng.usize(0..REPLICAS), false).await {
        return Probed::NotForgotten;
    }
    // other replicas hear of it within a second
    tokio::time::sleep(Duration::from_secs(1)).await;
    send().await;
    match world.history.get().documents[document].attempts {
        2 => Probed::Well,
        _ => Probed::TooManyCalls,
    }
}
