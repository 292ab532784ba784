//! The body of an answer. The record and the place in the pool ride in it, and end with it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::exchange::account::Record;
use crate::lock::Lock;
use crate::pool::Permit;

/// The body of an answer.
pub(crate) enum Reply {
    /// In one piece, or none.
    Whole(Option<Bytes>, Box<Record>),
    /// As the upstream sends it.
    Relay(Box<Relay>),
}

/// An upstream's body on its way through, frame by frame and without a buffer.
pub(crate) struct Relay {
    begun: VecDeque<Bytes>,
    flow: Arc<Lock<Option<Flow>>>,
    idle: Duration,
    /// When a live stream ends at the latest.
    until: Option<Instant>,
    quiet_since: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
    ended: bool,
    /// Why it breaks off, while what came before is still on its way out.
    broken: Option<BrokenOff>,
}

/// What a relay holds of the upstream. On HTTP/2 a client that grants no window is not noticed by whoever writes, since
/// then nobody asks for the next frame: [`let_go`] takes it away.
struct Flow {
    rest: Incoming,
    /// Held until the upstream has sent all, then given up at once, however slowly the client reads.
    permit: Option<Arc<Permit>>,
    /// Since when the client could have taken the next frame; `None` while the upstream is waited for.
    untaken_since: Option<Instant>,
    record: Box<Record>,
}

/// Ends a relay whose client takes nothing for `stall`.
async fn let_go(flow: Weak<Lock<Option<Flow>>>, stall: Duration) {
    let mut next = stall;
    loop {
        tokio::time::sleep(next).await;
        let Some(flow) = flow.upgrade() else { return };
        let mut flow = flow.hold();
        let Some(untaken) = flow.as_ref().map(|f| f.untaken_since) else { return };
        next = untaken.map_or(stall, |since| stall.saturating_sub(since.elapsed()));
        if next.is_zero() {
            *flow = None;
            return;
        }
    }
}

/// Why a body breaks off. The client sees an aborted transfer, never a made-up end.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BrokenOff(&'static str);

impl Reply {
    pub(crate) fn whole(body: Bytes, record: Box<Record>) -> Self {
        Self::Whole(Some(body).filter(|b| !b.is_empty()), record)
    }

    /// Nobody takes it: it was not answered with, however short it is.
    pub(crate) fn abandon(mut self) {
        self.with_record(|record, _| record.abandoned = true);
    }

    /// The record, as long as the exchange is not over, and whether all of the body was handed on.
    fn with_record(&mut self, act: impl FnOnce(&mut Record, bool)) {
        match self {
            Self::Whole(body, record) => act(record, body.is_none()),
            Self::Relay(relay) => {
                let all = relay.is_end();
                if let Some(flow) = relay.flow.hold().as_mut() {
                    act(&mut flow.record, all);
                }
            }
        }
    }

    pub(crate) fn relay(
        begun: Vec<Bytes>,
        rest: Incoming,
        idle: Duration,
        total: Option<Duration>,
        permit: Arc<Permit>,
        record: Box<Record>,
    ) -> Self {
        let now = Instant::now();
        let ended = rest.is_end_stream();
        let permit = Some(permit).filter(|_| !ended);
        let (version, stall) = (record.version, record.write_stall());
        let flow = Arc::new(Lock::new(None));
        if version == http::Version::HTTP_2 {
            record.watch_beside(let_go(Arc::downgrade(&flow), stall));
        }
        *flow.hold() = Some(Flow { rest, permit, untaken_since: Some(now), record });
        let relay = Relay {
            begun: begun.into(),
            flow,
            idle,
            until: total.map(|t| now + t),
            quiet_since: now,
            sleep: None,
            ended,
            broken: None,
        };
        Self::Relay(Box::new(relay))
    }
}

impl Relay {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        let polled = self.poll_chunk(cx);
        let all = self.is_end();
        if let (Poll::Ready(polled), Some(flow)) = (&polled, self.flow.hold().as_mut()) {
            match polled {
                Some(Ok(chunk)) => flow.record.bytes_out += chunk.len() as u64,
                Some(Err(broken)) => flow.record.end = Some(broken.0),
                None => {}
            }
            flow.record.complete |= all;
        }
        polled
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        if let Some(chunk) = self.begun.pop_front() {
            return Poll::Ready(Some(Ok(chunk)));
        }
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(Some(Err(broken)));
        }
        loop {
            let mut flow = self.flow.hold();
            let Some(flow) = flow.as_mut() else { return Poll::Ready(Some(Err(BrokenOff("write_stall")))) };
            let polled = Pin::new(&mut flow.rest).poll_frame(cx);
            flow.untaken_since = None;
            match polled {
                Poll::Ready(Some(Ok(frame))) => {
                    self.quiet_since = Instant::now();
                    flow.untaken_since = Some(self.quiet_since);
                    if flow.rest.is_end_stream() {
                        flow.permit = None;
                        self.ended = true;
                    }
                    // trailers end here, and so does the field that announced them
                    let Ok(chunk) = frame.into_data() else { continue };
                    return Poll::Ready(Some(Ok(chunk)));
                }
                Poll::Ready(Some(Err(_))) => {
                    // a body that fails takes with it what was not flushed yet: the client gets that first
                    self.broken = Some(BrokenOff("upstream_aborted"));
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    flow.permit = None;
                    self.ended = true;
                    return Poll::Ready(None);
                }
                Poll::Pending => {}
            }
            let now = Instant::now();
            let quiet = self.quiet_since + self.idle;
            if self.until.is_some_and(|until| now >= until) {
                return Poll::Ready(Some(Err(BrokenOff("stream_max"))));
            }
            if now >= quiet {
                return Poll::Ready(Some(Err(BrokenOff("idle_timeout"))));
            }
            let next = self.until.map_or(quiet, |until| until.min(quiet)).into();
            match self.sleep.as_mut() {
                // looked at when it goes off: a frame in between costs no timer
                Some(sleep) if !sleep.is_elapsed() && sleep.deadline() <= next => {}
                Some(sleep) => sleep.as_mut().reset(next),
                None => self.sleep = Some(Box::pin(tokio::time::sleep_until(next))),
            }
            if let Some(sleep) = self.sleep.as_mut() {
                std::task::ready!(sleep.as_mut().poll(cx));
            }
        }
    }

    fn is_end(&self) -> bool {
        self.begun.is_empty() && self.ended
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match &mut *self {
            Self::Whole(body, record) => {
                let chunk = body.take();
                record.bytes_out += chunk.as_ref().map_or(0, Bytes::len) as u64;
                record.complete = true;
                Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
            }
            Self::Relay(relay) => relay.poll(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body, _) => body.is_none(),
            Self::Relay(relay) => relay.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body, _) => SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64),
            Self::Relay(relay) => {
                let begun: u64 = relay.begun.iter().map(|c| c.len() as u64).sum();
                match relay.flow.hold().as_ref().and_then(|flow| flow.rest.size_hint().exact()) {
                    Some(rest) => SizeHint::with_exact(begun + rest),
                    None => SizeHint::default(),
                }
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // an answer without a body, or to HEAD, is complete without ever being asked for a frame
        self.with_record(|record, all| {
            let whole = record.complete || all || record.method == http::Method::HEAD;
            record.complete = whole && !record.abandoned;
        });
    }
}
