//! The body on its way to the upstream: a held one, rewritten where a form's file names are neutral, or a client's as it
//! comes in. Either tells how far it got, so that the time-outs know who is being waited for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use nevertwice_domain::outcome::OwnCode;
use tokio::time::Sleep;

use super::held::Held;
use crate::lock::Lock;
use crate::pool::Permit;

/// How far a body got. Shared with the one who waits for the answer.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    /// Milliseconds since `began` at which the last chunk went out.
    last_ms: AtomicU64,
    sent: AtomicU64,
    ended: AtomicBool,
}

impl Progress {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            last_ms: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        })
    }

    fn chunk(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(now, Ordering::Relaxed);
    }

    /// When the last chunk went out, and whether it was the end.
    pub(crate) fn state(&self) -> (Instant, bool) {
        let last = self.began + Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        (last, self.ended.load(Ordering::Relaxed))
    }

    /// Body bytes handed to the connection.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Why a client's body ended badly: becomes the gateway's own answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request body did not arrive: {}", .0.name())]
pub(crate) struct BodyFault(pub(crate) OwnCode);

/// The body of a request to an upstream.
pub(crate) struct Outbound {
    source: Source,
    progress: Arc<Progress>,
    /// An upload that goes on after its answer still takes its place.
    _place: Arc<Permit>,
}

enum Source {
    Held(HeldBody),
    Client(Coming),
    Nothing,
}

/// A client's body that has not been taken yet. It is taken when a connection asks for its first byte, so that a request
/// whose connection could not be made can be tried at another replica.
pub(crate) struct ClientBody {
    body: Arc<Lock<Option<Incoming>>>,
    hint: SizeHint,
    bounds: Bounds,
    empty: bool,
}

/// What a client's body may be.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// The most bytes.
    pub(crate) length: u64,
    /// The longest silence.
    pub(crate) idle: Duration,
    /// The least bytes per second of waiting for it, once `idle` has been waited.
    pub(crate) rate: u64,
}

impl Bounds {
    /// Whether a body of which `length` bytes came within `waited` comes too slowly.
    pub(crate) fn too_slow(&self, waited: Duration, length: u64) -> bool {
        waited > self.idle && (length as f64) < self.rate as f64 * waited.as_secs_f64()
    }
}

impl ClientBody {
    /// Of this body what `bounds` allow is passed on.
    pub(crate) fn new(body: Incoming, bounds: Bounds) -> Self {
        let (hint, empty) = (body.size_hint(), body.is_end_stream());
        Self { body: Arc::new(Lock::new(Some(body))), hint, bounds, empty }
    }
}

impl Outbound {
    pub(crate) fn held(body: Held, place: Arc<Permit>) -> Self {
        let source = Source::Held(HeldBody { body, at: 0, next_edit: 0, reading: None, sent: 0 });
        Self { source, progress: Progress::new(), _place: place }
    }

    /// A client's body, passed on as it comes.
    pub(crate) fn client(body: &ClientBody, place: Arc<Permit>) -> Self {
        let progress = Progress::new();
        progress.ended.store(body.empty, Ordering::Relaxed);
        let source = Source::Client(Coming {
            slot: Arc::clone(&body.body),
            body: None,
            hint: body.hint,
            ended: body.empty,
            bounds: body.bounds,
            length: 0,
            waited: Duration::ZERO,
            waiting_since: None,
            sleep: None,
        });
        Self { source, progress, _place: place }
    }

    /// No body.
    pub(crate) fn nothing(place: Arc<Permit>) -> Self {
        let progress = Progress::new();
        progress.ended.store(true, Ordering::Relaxed);
        Self { source: Source::Nothing, progress, _place: place }
    }

    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }
}

/// The longest piece that is handed to a connection at once, in bytes.
const AT_ONCE: usize = 256 << 10;

type Reading = Pin<Box<dyn Future<Output = io::Result<Option<Bytes>>> + Send>>;

struct HeldBody {
    body: Held,
    /// Position in the body as it arrived.
    at: u64,
    next_edit: usize,
    reading: Option<Reading>,
    /// Bytes that went up.
    sent: u64,
}

impl HeldBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let edit = self.body.edits().get(self.next_edit).cloned();
        if let Some(edit) = edit.as_ref().filter(|e| e.at == self.at && self.reading.is_none()) {
            self.at += edit.remove;
            self.next_edit += 1;
            if !edit.insert.is_empty() {
                return Poll::Ready(Some(Ok(Bytes::from(edit.insert.clone()))));
            }
            return self.poll(cx);
        }
        let result = match self.reading.as_mut() {
            Some(reading) => {
                let result = std::task::ready!(reading.as_mut().poll(cx));
                self.reading = None;
                result
            }
            None => match self.body.memory_chunk(self.at) {
                Some(chunk) => Ok(Some(chunk)),
                None if self.at >= self.body.length() => Ok(None),
                None => {
                    self.reading = Some(Box::pin(self.body.clone().chunk(self.at)));
                    return self.poll(cx);
                }
            },
        };
        Poll::Ready(match result {
            Ok(Some(mut chunk)) => {
                // a body at hand may be one piece: what counts as sent is what the connection has taken
                chunk.truncate(AT_ONCE);
                if let Some(edit) = edit {
                    chunk.truncate(usize::try_from(edit.at - self.at).unwrap_or(usize::MAX));
                }
                self.at += chunk.len() as u64;
                Some(Ok(chunk))
            }
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        })
    }
}

/// A client's body on its way.
struct Coming {
    slot: Arc<Lock<Option<Incoming>>>,
    body: Option<Incoming>,
    /// What the client said of its length, less what has passed.
    hint: SizeHint,
    ended: bool,
    bounds: Bounds,
    length: u64,
    /// How long the client was waited for, in all; what the upstream takes its time for does not count.
    waited: Duration,
    waiting_since: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Coming {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyFault>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.body.is_none() {
            self.body = self.slot.hold().take();
        }
        loop {
            // taken before: this request was sent already, and is not sent again
            let Some(body) = self.body.as_mut() else {
                return Poll::Ready(Some(Err(BodyFault(OwnCode::Internal))));
            };
            let polled = Pin::new(&mut *body).poll_frame(cx);
            self.hint = body.size_hint();
            self.ended = body.is_end_stream();
            if polled.is_ready()
                && let Some(since) = self.waiting_since.take()
            {
                self.waited += since.elapsed();
            }
            match polled {
                Poll::Ready(Some(Ok(frame))) => {
                    // a request's trailers are not passed on: nothing announced them to the upstream
                    let Ok(data) = frame.into_data() else { continue };
                    self.length += data.len() as u64;
                    if self.length > self.bounds.length {
                        return Poll::Ready(Some(Err(BodyFault(OwnCode::BodyTooLarge))));
                    }
                    if self.bounds.too_slow(self.waited, self.length) {
                        return Poll::Ready(Some(Err(BodyFault(OwnCode::BodyTimeout))));
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(BodyFault(body_fault(&error)))));
                }
                Poll::Ready(None) => {
                    self.ended = true;
                    return Poll::Ready(None);
                }
                Poll::Pending => {}
            }
            let until = *self.waiting_since.get_or_insert_with(Instant::now) + self.bounds.idle;
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
            if sleep.deadline() != until.into() {
                sleep.as_mut().reset(until.into());
            }
            std::task::ready!(sleep.as_mut().poll(cx));
            return Poll::Ready(Some(Err(BodyFault(OwnCode::BodyTimeout))));
        }
    }
}

/// What a failed read of a client's body means: broken framing is the client's fault, anything else its leaving.
pub(crate) fn body_fault(error: &hyper::Error) -> OwnCode {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<io::Error>()
            && [io::ErrorKind::InvalidInput, io::ErrorKind::InvalidData].contains(&io.kind())
        {
            return OwnCode::BadRequest;
        }
        source = inner.source();
    }
    OwnCode::ClientAborted
}

impl Body for Outbound {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let chunk = match &mut self.source {
            Source::Held(body) => {
                let chunk = std::task::ready!(body.poll(cx));
                if let Some(Ok(chunk)) = &chunk {
                    body.sent += chunk.len() as u64;
                }
                chunk.map(|c| c.map_err(|_| BodyFault(OwnCode::SpillFailed)))
            }
            Source::Client(body) => std::task::ready!(body.poll(cx)),
            Source::Nothing => None,
        };
        Poll::Ready(match chunk {
            Some(Ok(chunk)) => {
                self.progress.chunk(chunk.len());
                if self.is_end_stream() {
                    self.progress.ended.store(true, Ordering::Relaxed);
                }
                Some(Ok(Frame::data(chunk)))
            }
            Some(Err(fault)) => Some(Err(fault.into())),
            None => {
                self.progress.chunk(0);
                self.progress.ended.store(true, Ordering::Relaxed);
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Held(body) => body.sent >= body.body.outbound_length(),
            Source::Client(body) => body.ended,
            Source::Nothing => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Held(body) => SizeHint::with_exact(body.body.outbound_length() - body.sent),
            Source::Client(body) => body.hint,
            Source::Nothing => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_bodies_are_told_after_the_grace() {
        let bounds = Bounds { length: u64::MAX, idle: Duration::from_secs(30), rate: 256 };
        assert!(!bounds.too_slow(Duration::from_secs(29), 0));
        assert!(bounds.too_slow(Duration::from_secs(31), 256 * 30));
        assert!(!bounds.too_slow(Duration::from_secs(31), 256 * 32));
        assert!(!Bounds { rate: 0, ..bounds }.too_slow(Duration::from_secs(3100), 0));
    }
}
