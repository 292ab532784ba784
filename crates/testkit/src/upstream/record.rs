//! What the stub knows: its behaviour, its counters and the requests it saw.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{Reply, Seen};
use crate::wire::{Framing, Headers, hex};

/// How many requests are kept; later ones are only counted.
const REQUESTS_MAX: usize = 100_000;

type Answer = Arc<Mutex<dyn FnMut(&Seen, u64) -> Reply + Send>>;

pub(super) enum Behaviour {
    List(Vec<Reply>),
    AtHead(Answer),
    AfterBody(Answer),
}

/// What to do with a call whose head is complete.
pub(super) enum Choice {
    Reply(Reply),
    AskAfterBody(Answer, u64),
}

impl Choice {
    /// The reply, now that the body is complete.
    pub(super) fn decide(self, seen: &Seen) -> Reply {
        match self {
            Self::Reply(reply) => reply,
            Self::AskAfterBody(answer, number) => {
                let reply = lock(&answer)(seen, number);
                if reply.is_early() || reply.slow().is_some() {
                    panic!(
                        "stub upstream: `by` decides after the body; early and slow replies need `by_head`"
                    );
                }
                reply
            }
        }
    }
}

pub(super) struct Settings {
    pub(super) idle_close: Option<Duration>,
    pub(super) keep_each: usize,
    pub(super) keep_together: usize,
    pub(super) patience: Duration,
}

pub(super) struct Shared {
    pub(super) calls: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) peer_closed: AtomicU64,
    pub(super) body_bytes: AtomicU64,
    kept: AtomicUsize,
    behaviour: Mutex<(Behaviour, u64)>,
    settings: Mutex<Settings>,
    requests: Mutex<Vec<Seen>>,
    changed: watch::Sender<()>,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            calls: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            open: AtomicU64::new(0),
            peer_closed: AtomicU64::new(0),
            body_bytes: AtomicU64::new(0),
            kept: AtomicUsize::new(0),
            behaviour: Mutex::new((Behaviour::List(vec![Reply::status(200)]), 0)),
            settings: Mutex::new(Settings {
                idle_close: None,
                keep_each: 32 << 20,
                keep_together: 256 << 20,
                patience: Duration::from_secs(20),
            }),
            requests: Mutex::new(Vec::new()),
            changed: watch::Sender::new(()),
        }
    }

    pub(super) fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    pub(super) fn requests(&self) -> MutexGuard<'_, Vec<Seen>> {
        lock(&self.requests)
    }

    pub(super) fn behave(&self, behaviour: Behaviour) {
        *lock(&self.behaviour) = (behaviour, 0);
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn tell(&self) {
        self.changed.send_replace(());
    }

    /// Counts a call whose head is complete, keeps it and says what to do with it.
    pub(super) fn begin(self: &Arc<Self>, mut seen: Seen) -> (Intake, Choice) {
        let mut requests = self.requests();
        seen.number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let kept = requests.len() < REQUESTS_MAX;
        let index = kept.then_some(requests.len());
        if kept {
            requests.push(seen.clone());
        }
        // Still under the lock of the requests, so that a script is dealt out in their order.
        let choice = {
            let mut behaviour = lock(&self.behaviour);
            behaviour.1 += 1;
            let number = behaviour.1;
            match &behaviour.0 {
                Behaviour::List(replies) => {
                    let at = usize::try_from(number - 1).unwrap_or(usize::MAX).min(replies.len() - 1);
                    Ok(replies[at].clone())
                }
                Behaviour::AtHead(answer) => Err((answer.clone(), number, true)),
                Behaviour::AfterBody(answer) => Err((answer.clone(), number, false)),
            }
        };
        drop(requests);
        self.tell();
        // A test's function runs outside all locks: it may ask the upstream.
        let choice = match choice {
            Ok(reply) => Choice::Reply(reply),
            Err((answer, number, true)) => Choice::Reply(lock(&answer)(&seen, number)),
            Err((answer, number, false)) => Choice::AskAfterBody(answer, number),
        };
        let keep_each = self.settings().keep_each;
        let intake = Intake {
            shared: self.clone(),
            seen,
            index,
            keep_each,
            body: BytesMut::new(),
            wire: None,
            digest: Sha256::new(),
        };
        (intake, choice)
    }

    /// Whether `more` bytes of bodies may be kept; if so they are counted.
    fn may_keep(&self, more: usize) -> bool {
        let most = self.settings().keep_together;
        self.kept
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |kept| {
                kept.checked_add(more).filter(|sum| *sum <= most)
            })
            .is_ok()
    }
}

/// A request whose body is arriving. However it ends, what arrived is on record when this is gone.
pub(super) struct Intake {
    shared: Arc<Shared>,
    seen: Seen,
    index: Option<usize>,
    /// Zero once something was refused: what is kept has no holes.
    keep_each: usize,
    body: BytesMut,
    wire: Option<BytesMut>,
    digest: Sha256,
}

impl Intake {
    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// The framing of the body, the oddities of which are noted.
    pub(super) fn framing(&mut self) -> Framing {
        let framing =
            crate::wire::framing(&self.seen.headers, &mut self.seen.problems).unwrap_or(Framing::Length(0));
        if framing == Framing::Chunked {
            self.wire = Some(BytesMut::new());
        }
        framing
    }

    pub(super) fn content(&mut self, bytes: &Bytes) {
        self.digest.update(bytes);
        self.seen.body_len += bytes.len() as u64;
        self.shared.body_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        if !keep(&self.shared, &mut self.body, bytes, self.keep_each) {
            self.keep_each = 0;
        }
        self.frame(bytes);
        self.shared.tell();
    }

    /// Bytes on the wire; only a chunked body differs from its content.
    pub(super) fn frame(&mut self, bytes: &Bytes) {
        if let Some(wire) = &mut self.wire
            && !keep(&self.shared, wire, bytes, self.keep_each)
        {
            self.keep_each = 0;
        }
    }

    pub(super) fn problem(&mut self, text: String) {
        self.seen.problems.push(text);
    }

    pub(super) fn complete(&mut self, trailers: &Headers) {
        self.seen.trailers = trailers.clone();
        self.seen.body_complete = true;
        self.file();
    }

    /// Puts what is known on record.
    pub(super) fn file(&mut self) {
        if !self.body.is_empty() {
            self.seen.body = std::mem::take(&mut self.body).freeze();
        }
        match self.wire.take() {
            Some(wire) => self.seen.wire_body = wire.freeze(),
            None if self.seen.wire_body.is_empty() => self.seen.wire_body = self.seen.body.clone(),
            None => {}
        }
        self.seen.body_sha256 = hex(&self.digest.clone().finalize());
        if let Some(index) = self.index {
            self.shared.requests()[index] = self.seen.clone();
        }
        self.shared.tell();
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        if !self.seen.body_complete {
            self.file();
        }
    }
}

/// Whether all of the bytes were kept.
fn keep(shared: &Shared, kept: &mut BytesMut, bytes: &[u8], most: usize) -> bool {
    let room = most.saturating_sub(kept.len()).min(bytes.len());
    if room > 0 && shared.may_keep(room) {
        kept.extend_from_slice(&bytes[..room]);
        return room == bytes.len();
    }
    bytes.is_empty()
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test's function that panicked fails its test by itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
