//! What the exchanges of a connection and the connection itself tell each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;

/// How often an exchange that waits and reads nothing looks whether its client is there still.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) addr: SocketAddr,
    pub(crate) tls: bool,
}

/// The exchanges of one connection.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    /// `None` = the gateway itself.
    caller: Option<Caller>,
    under_way: AtomicUsize,
    begun: AtomicU64,
    /// Woken when the last one under way ends.
    idle: AtomicWaker,
    /// How many want to know whether the client has left.
    asking: AtomicUsize,
    left: AtomicBool,
}

/// The exchanges of one connection, shared with the connection.
pub(crate) type OnConnection = Arc<Exchanges>;

impl Exchanges {
    pub(crate) fn with(caller: Caller) -> Self {
        Self { caller: Some(caller), ..Self::default() }
    }

    /// Whether one is under way.
    pub(crate) fn any(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// How many have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Ready when none is under way.
    pub(crate) fn poll_idle(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.idle.register(cx.waker());
        if self.any() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Whether somebody wants to know whether the client has left.
    pub(crate) fn asks(&self) -> bool {
        self.asking.load(Ordering::Relaxed) > 0
    }

    /// The client has closed the connection.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }
}

/// Counts one exchange on its connection, from the request's head to the end of its answer.
pub(super) struct Exchanging(OnConnection);

impl Exchanging {
    pub(super) fn new(on: &OnConnection) -> Self {
        on.under_way.fetch_add(1, Ordering::AcqRel);
        on.begun.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(on))
    }

    /// Who is at the other end.
    pub(super) fn caller(&self) -> Option<Caller> {
        self.0.caller
    }

    /// Ends when the client has left. For an exchange on HTTP/1 that does not read its body: the HTTP library sees a client's
    /// leaving only where it reads. On HTTP/1 an exchange runs in its connection's task, so each look here wakes the connection.
    pub(super) async fn left(&self) {
        let asking = Asking::new(&self.0);
        while !asking.0.left.load(Ordering::Relaxed) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Exchanging {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.wake();
        }
    }
}

/// One who asks, until it is dropped.
struct Asking<'a>(&'a Exchanges);

impl<'a> Asking<'a> {
    fn new(exchanges: &'a Exchanges) -> Self {
        exchanges.asking.fetch_add(1, Ordering::Relaxed);
        Self(exchanges)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}
