//! A scripted HTTP/1.1 upstream that counts what reaches it, keeps the raw bytes and misbehaves on request.
//!
//! It counts a call as soon as its head is complete, also when its body never completes. It takes bytes after a
//! request for the next request, which is how a smuggled request shows. The end of the peer's stream counts as
//! the peer's going, also while an answer waits; half-closed connections are not for it. It runs on its own thread, so a test that
//! blocks does not stop it.

mod connection;
mod gate;
mod record;
mod reply;
mod seen;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

pub use gate::Gate;
pub use reply::{Reply, Step};
pub use seen::Seen;

use connection::Connection;
use record::{Behaviour, Shared};

/// How many connections it holds at once; those beyond are dropped as they come.
const CONNECTIONS_MAX: usize = 4096;
/// How long a waiting test relies on being told of changes.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A stub upstream on a port of its own. It is gone, with all its connections, when dropped.
pub struct Upstream {
    addr: SocketAddr,
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
    runtime: Option<Runtime>,
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("addr", &self.addr)
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}

impl Upstream {
    /// Starts one on a free port of 127.0.0.1. Until told otherwise it answers 200 with an empty body.
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    /// Starts one on an address, such as `[::1]:0`.
    pub async fn start_at(address: &str) -> Self {
        let wanted =
            address.parse().unwrap_or_else(|error| panic!("stub upstream: address {address:?}: {error}"));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("stub-upstream")
            .enable_all()
            .build()
            .unwrap_or_else(|error| panic!("stub upstream: no runtime: {error}"));
        let mut upstream = Self {
            addr: wanted,
            shared: Arc::new(Shared::new()),
            running: Mutex::new(None),
            runtime: Some(runtime),
        };
        upstream.addr = upstream.listen(wanted).await;
        upstream
    }

    async fn listen(&self, address: SocketAddr) -> SocketAddr {
        let Some(runtime) = &self.runtime else { panic!("stub upstream: is gone") };
        let (stop, stopped) = oneshot::channel();
        let shared = self.shared.clone();
        // Bound inside its runtime: a socket belongs to the runtime that made it.
        let bound = runtime.spawn(async move { TcpListener::bind(address).await }).await;
        let listener = match bound {
            Ok(Ok(listener)) => listener,
            Ok(Err(error)) => panic!("stub upstream: cannot listen on {address}: {error}"),
            Err(error) => panic!("stub upstream: cannot listen on {address}: {error}"),
        };
        let addr = listener.local_addr().unwrap_or_else(|error| panic!("stub upstream: no address: {error}"));
        let task = runtime.spawn(accept(listener, shared, stopped));
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { stop, task });
        addr
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its base URL, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Stops listening and cuts all connections; new ones are refused. What it counted stays.
    pub async fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Running { stop, task }) = running {
            // The task may have ended with its listener; then there is nobody to tell.
            let _ = stop.send(());
            if let Err(error) = task.await {
                panic!("stub upstream: its listener failed: {error}");
            }
        }
    }

    /// Listens again on the same port; first stops if it still runs.
    pub async fn restart(&self) {
        self.stop().await;
        self.listen(self.addr).await;
    }

    // What it answers.

    /// Answers every call alike, from now on.
    pub fn always(&self, reply: Reply) {
        self.script(vec![reply]);
    }

    /// Answers the next calls by this list, in the order in which their heads arrive; the last one repeats.
    pub fn script(&self, replies: Vec<Reply>) {
        if replies.is_empty() {
            panic!("stub upstream: a script needs a reply");
        }
        self.shared.behave(Behaviour::List(replies));
    }

    /// Answers by a function of the request, asked when its body is complete, and of its number since this call
    /// (the first is 1). The reply cannot say how the body is read any more.
    pub fn by(&self, answer: impl FnMut(&Seen, u64) -> Reply + Send + 'static) {
        self.shared.behave(Behaviour::AfterBody(Arc::new(Mutex::new(answer))));
    }

    /// Like [`Upstream::by`], asked when the head is complete: the request has no body yet, and the reply may be
    /// early or say how the body is read.
    pub fn by_head(&self, answer: impl FnMut(&Seen, u64) -> Reply + Send + 'static) {
        self.shared.behave(Behaviour::AtHead(Arc::new(Mutex::new(answer))));
    }

    /// Closes a kept-alive connection that was idle this long after an answer.
    pub fn idle_close(&self, after: Duration) {
        self.shared.settings().idle_close = Some(after);
    }

    /// Keeps at most this many bytes of each body, and of all bodies together; beyond that only the length and
    /// the digest are kept. 32 MiB and 256 MiB unless set.
    pub fn keep(&self, each: usize, together: usize) {
        let mut settings = self.shared.settings();
        settings.keep_each = each;
        settings.keep_together = together;
    }

    /// How long the wait functions wait before they panic; 20 s unless set.
    pub fn patience(&self, limit: Duration) {
        self.shared.settings().patience = limit;
    }

    // What it saw.

    /// How many requests arrived: those whose head was complete, whatever became of their body.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// How many of the kept requests had a target that begins like this.
    pub fn calls_to(&self, path_prefix: &str) -> usize {
        self.shared.requests().iter().filter(|seen| seen.target.starts_with(path_prefix)).count()
    }

    /// The requests in the order in which their heads arrived, at most the first 100,000. One whose body is
    /// still arriving shows no body yet.
    pub fn requests(&self) -> Vec<Seen> {
        self.shared.requests().clone()
    }

    /// The latest request; panics when there was none.
    pub fn last_request(&self) -> Seen {
        self.shared.requests().last().cloned().unwrap_or_else(|| panic!("stub upstream: no request arrived"))
    }

    /// How many connections it accepted.
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> u64 {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// How many connections ended because the peer closed or reset them.
    pub fn peer_closed(&self) -> u64 {
        self.shared.peer_closed.load(Ordering::SeqCst)
    }

    /// How many body bytes arrived in all, without chunk framing; counts while a body is still arriving.
    pub fn body_bytes(&self) -> u64 {
        self.shared.body_bytes.load(Ordering::SeqCst)
    }

    // Waiting for it.

    /// Waits until at least `n` requests have arrived.
    pub async fn wait_calls(&self, n: u64) {
        self.wait_until(&format!("{n} calls"), |upstream| upstream.calls() >= n).await;
    }

    /// Waits until at least `n` requests have arrived with their whole body.
    pub async fn wait_complete(&self, n: usize) {
        self.wait_until(&format!("{n} complete requests"), |upstream| {
            upstream.shared.requests().iter().filter(|seen| seen.body_complete).count() >= n
        })
        .await;
    }

    /// Waits until a peer has closed a connection.
    pub async fn wait_closed(&self) {
        self.wait_peer_closed(1).await;
    }

    /// Waits until peers have closed at least `n` connections.
    pub async fn wait_peer_closed(&self, n: u64) {
        self.wait_until(&format!("{n} connections closed by peers"), |upstream| upstream.peer_closed() >= n)
            .await;
    }

    /// Waits until a condition holds; asked again whenever something arrives, completes or closes, and
    /// every 50 ms for what is not the upstream's own. Panics with `what` when it does not come about in time.
    pub async fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let limit = self.shared.settings().patience;
        let mut changes = self.shared.changes();
        let wait = async {
            loop {
                changes.borrow_and_update();
                if holds(self) {
                    return;
                }
                // Both outcomes mean the same: ask again.
                let _ = tokio::time::timeout(ASK_AGAIN, changes.changed()).await;
            }
        };
        if tokio::time::timeout(limit, wait).await.is_err() {
            panic!(
                "stub upstream: waited {limit:?} for {what}; calls {}, connections {} ({} open, {} closed by peers)",
                self.calls(),
                self.connections(),
                self.open_connections(),
                self.peer_closed()
            );
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime must not wait for its tasks inside another runtime.
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stop: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut stop => break,
            Some(_) = connections.join_next() => {}
            Ok((stream, _)) = listener.accept() => {
                let connection = Connection::accepted(stream, shared.clone());
                if connections.len() < CONNECTIONS_MAX {
                    connections.spawn(connection.serve());
                }
            }
        }
    }
    drop(listener);
    connections.shutdown().await;
}
