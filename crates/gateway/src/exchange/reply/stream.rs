//! The body of an answer. The record and the place in the pool ride in it, and end with it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::exchange::account::Record;
use crate::pool::Permit;

/// The body of an answer.
pub(crate) struct Reply {
    source: Source,
    record: Box<Record>,
}

enum Source {
    Whole(Option<Bytes>),
    Relay(Box<Relay>),
}

/// An upstream's body on its way through, frame by frame and without a buffer.
struct Relay {
    begun: VecDeque<Bytes>,
    rest: Incoming,
    idle: Duration,
    /// When a live stream ends at the latest.
    until: Option<Instant>,
    quiet_since: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
    ended: bool,
    /// Why it breaks off, while what came before is still on its way out.
    broken: Option<BrokenOff>,
    /// Held until the upstream has sent all, then given up at once, however slowly the client reads.
    permit: Option<Permit>,
}

/// Why a body breaks off. The client sees an aborted transfer, never a made-up end.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BrokenOff(&'static str);

impl Reply {
    pub(crate) fn whole(body: Bytes, record: Box<Record>) -> Self {
        Self { source: Source::Whole(Some(body).filter(|b| !b.is_empty())), record }
    }

    /// Nobody takes it: it was not answered with, however short it is.
    pub(crate) fn abandon(mut self) {
        self.record.abandoned = true;
    }

    pub(crate) fn relay(
        begun: Vec<Bytes>,
        rest: Incoming,
        idle: Duration,
        total: Option<Duration>,
        permit: Permit,
        record: Box<Record>,
    ) -> Self {
        let now = Instant::now();
        let relay = Relay {
            begun: begun.into(),
            rest,
            idle,
            until: total.map(|t| now + t),
            quiet_since: now,
            sleep: None,
            ended: false,
            broken: None,
            permit: Some(permit),
        };
        Self { source: Source::Relay(Box::new(relay)), record }
    }
}

impl Relay {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        if let Some(chunk) = self.begun.pop_front() {
            return Poll::Ready(Some(Ok(chunk)));
        }
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(Some(Err(broken)));
        }
        loop {
            match Pin::new(&mut self.rest).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.quiet_since = Instant::now();
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
                Poll::Ready(None) => return Poll::Ready(None),
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
        self.ended || (self.begun.is_empty() && self.rest.is_end_stream())
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let this = &mut *self;
        let chunk = match &mut this.source {
            Source::Whole(body) => body.take().map(Ok),
            Source::Relay(relay) => {
                let chunk = std::task::ready!(relay.poll(cx));
                relay.ended |= chunk.is_none();
                if relay.is_end() {
                    relay.permit = None;
                }
                chunk
            }
        };
        match chunk {
            Some(Ok(chunk)) => {
                this.record.bytes_out += chunk.len() as u64;
                this.record.complete = this.is_end_stream();
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            Some(Err(broken)) => {
                this.record.end = Some(broken.0);
                Poll::Ready(Some(Err(broken)))
            }
            None => {
                this.record.complete = true;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Whole(body) => body.is_none(),
            Source::Relay(relay) => relay.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64),
            Source::Relay(relay) => {
                let begun: u64 = relay.begun.iter().map(|c| c.len() as u64).sum();
                match relay.rest.size_hint().exact() {
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
        let whole = self.is_end_stream() || self.record.method == http::Method::HEAD;
        self.record.complete = (self.record.complete || whole) && !self.record.abandoned;
    }
}
