//! What lies between the socket and the HTTP implementation: strict framing on the way in, time-outs for silence and for a
//! client that does not read, and a lingering close, so that a client that is still sending sees the answer and not a reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use nevertwice_domain::outcome::OwnCode;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use super::framing::{Framing, Limits, Violation};
use crate::Shared;
use crate::exchange::connection::OnConnection;
use crate::exchange::reply::problem;

/// After the last answer the client's bytes are read and thrown away: for so long, so long at once, and so many.
const LINGER: Duration = Duration::from_secs(30);
const LINGER_IDLE: Duration = Duration::from_secs(3);
const LINGER_BYTES: usize = 256 << 20;

/// Time-outs of a connection.
#[derive(Clone, Copy)]
pub(super) struct Timing {
    pub(super) head: Duration,
    pub(super) keep_alive: Duration,
    pub(super) write_stall: Duration,
}

/// The other end of a connection.
pub(super) trait Peer {
    /// Whether it has closed the connection, even where what it sent before has not been read.
    fn has_closed(&self) -> bool;
}

impl Peer for TcpStream {
    fn has_closed(&self) -> bool {
        let known = self.ready(Interest::READABLE).now_or_never();
        known.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
    }
}

impl Peer for TlsStream<TcpStream> {
    fn has_closed(&self) -> bool {
        self.get_ref().0.has_closed()
    }
}

/// A client's connection.
pub(super) struct Wire<S> {
    stream: S,
    /// Bytes that were read before the protocol was known.
    first: Vec<u8>,
    first_at: usize,
    check: Option<Check>,
    timing: Timing,
    exchanges: OnConnection,
    read_sleep: Timer,
    write_sleep: Timer,
    /// Whether the last write was taken: then nothing of an earlier answer waits in hyper's buffer.
    flushed: bool,
    /// A refusal that waits for that.
    refusing: Option<Waker>,
    closing: Closing,
}

/// Strict framing of HTTP/1.
struct Check {
    gateway: Arc<Shared>,
    framing: Framing,
    /// When the head that is being read was first waited for.
    head_since: Option<Instant>,
    /// The unfinished line of a head, kept from hyper until it is judged.
    line: Vec<u8>,
    /// Judged bytes that hyper has not taken yet.
    judged: Vec<u8>,
    /// Reads and writes so far: what a timer looks at when it goes off, so that activity costs no timer.
    activity: u64,
    /// `activity` when the timer for silence was set.
    seen: u64,
    /// The gateway's own answer to a request that cannot be read, and how much of it is written. It waits for the answers to
    /// the requests before.
    refusal: Option<(Vec<u8>, usize)>,
}

enum Closing {
    No,
    Lingering { since: Instant, bytes: usize },
    Done,
}

/// A timer that costs nothing until it is needed.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready when `until` has come.
    fn poll(&mut self, cx: &mut Context<'_>, until: Instant) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
        if sleep.deadline() != until.into() {
            sleep.as_mut().reset(until.into());
        }
        sleep.as_mut().poll(cx)
    }

    /// Ready when the time it was set to has come.
    fn poll_set(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.0.as_mut() {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    fn stop(&mut self) {
        self.0 = None;
    }
}

impl<S> Wire<S> {
    /// HTTP/1 with strict framing.
    pub(super) fn checked(
        gateway: &Arc<Shared>,
        stream: S,
        first: Vec<u8>,
        timing: Timing,
        exchanges: OnConnection,
    ) -> Self {
        let limits = Limits {
            head_max_bytes: gateway.http.header_max_bytes,
            head_max_fields: gateway.http.header_max_count,
        };
        let check = Check {
            gateway: Arc::clone(gateway),
            framing: Framing::new(limits),
            head_since: None,
            line: Vec::new(),
            judged: Vec::new(),
            activity: 0,
            seen: 0,
            refusal: None,
        };
        Self { check: Some(check), ..Self::opaque(stream, first, timing, exchanges) }
    }

    /// A protocol that frames itself.
    pub(super) fn opaque(stream: S, first: Vec<u8>, timing: Timing, exchanges: OnConnection) -> Self {
        Self {
            stream,
            first,
            first_at: 0,
            check: None,
            timing,
            exchanges,
            read_sleep: Timer::default(),
            write_sleep: Timer::default(),
            flushed: true,
            refusing: None,
            closing: Closing::No,
        }
    }
}

impl Check {
    /// Looks at bytes that were just read. `Err` = they must not be used.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        self.activity += 1;
        let heads = self.framing.requests();
        self.framing.feed(bytes)?;
        if !self.in_head() || self.framing.requests() > heads {
            self.head_since = None;
        }
        Ok(())
    }

    /// Takes what was just read, from `before` on, and leaves in `buf` what hyper may have of it. `Ok(false)` = nothing yet.
    fn pass_on(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> Result<bool, Violation> {
        let judged = self.bytes(&buf.filled()[before..]);
        let read = buf.filled().len() - before;
        let good = match &judged {
            Ok(()) => read - self.framing.unjudged().min(read),
            Err(violation) => violation.valid_prefix,
        };
        if self.line.is_empty() && good == read {
            return judged.map(|()| true);
        }
        let (passes, stays) = buf.filled()[before..].split_at(good);
        let stays = if judged.is_ok() { stays.to_vec() } else { Vec::new() };
        if good == 0 {
            // still the same line, or what is wrong with it
            self.line.extend_from_slice(&stays);
            buf.set_filled(before);
        } else if self.line.is_empty() {
            self.line = stays;
            buf.set_filled(before + good);
        } else {
            self.judged = std::mem::replace(&mut self.line, stays);
            self.judged.extend_from_slice(passes);
            buf.set_filled(before);
            self.take_judged(buf);
        }
        judged.map(|()| good > 0)
    }

    /// Hands judged bytes to hyper.
    fn take_judged(&mut self, buf: &mut ReadBuf<'_>) {
        let n = self.judged.len().min(buf.remaining());
        buf.put_slice(&self.judged[..n]);
        self.judged.drain(..n);
    }

    fn in_head(&self) -> bool {
        !self.framing.in_body() && !self.framing.between_messages()
    }

    /// Ready when a client that sends nothing has been silent for too long. While an exchange is under way, its own
    /// time-outs count instead.
    fn poll_silence(
        &mut self,
        cx: &mut Context<'_>,
        timer: &mut Timer,
        timing: Timing,
        exchanging: bool,
    ) -> Poll<()> {
        if self.in_head() {
            let since = *self.head_since.get_or_insert_with(Instant::now);
            return timer.poll(cx, since + timing.head);
        }
        // set during an exchange too: hyper does not read again when one has ended, it waits to be woken
        let allowed = if self.framing.requests() == 0 { timing.head } else { timing.keep_alive };
        loop {
            if timer.0.is_none() {
                self.seen = self.activity;
                ready!(timer.poll(cx, Instant::now() + allowed));
            }
            ready!(timer.poll_set(cx));
            if self.seen == self.activity && !exchanging {
                return Poll::Ready(());
            }
            timer.stop();
        }
    }

    fn refuse(&mut self, violation: &Violation) {
        let code = match violation.kind.status() {
            431 => OwnCode::HeadersTooLarge,
            501 | 505 => OwnCode::NotSupported,
            _ => OwnCode::BadRequest,
        };
        let body = problem(code, Some(violation.kind.detail()), false);
        let status = code.status_code();
        let mut answer = format!(
            "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\nx-gateway-error: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            status.as_u16(),
            status.canonical_reason().unwrap_or_default(),
            code.name(),
            body.len(),
        )
        .into_bytes();
        answer.extend_from_slice(&body);
        self.refusal = Some((answer, 0));
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Bytes from before the protocol was known, then from the socket.
    fn poll_raw(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = &self.first[self.first_at..];
        if left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let n = left.len().min(buf.remaining());
        buf.put_slice(&left[..n]);
        self.first_at += n;
        if self.first_at == self.first.len() {
            self.first = Vec::new();
            self.first_at = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Answers a request that could not be read, after the answers before it, and closes; to hyper the client has then ended.
    fn poll_refused(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // whoever ends the exchange, or writes the rest of its answer, wakes this task; the timer is for those who never do
        if self.exchanges.poll_idle(cx).is_pending() {
            return Poll::Pending;
        }
        if !self.flushed {
            self.refusing = Some(cx.waker().clone());
            return Poll::Pending;
        }
        ready!(self.poll_refusal(cx))?;
        self.poll_linger(cx)
    }

    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((answer, mut at)) = self.check.as_mut().and_then(|c| c.refusal.take()) else {
            return Poll::Ready(Ok(()));
        };
        let written = loop {
            if at == answer.len() {
                let flushed = Pin::new(&mut self.stream).poll_flush(cx);
                break self.stalled(cx, flushed);
            }
            let written = Pin::new(&mut self.stream).poll_write(cx, &answer[at..]);
            match self.stalled(cx, written) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => at += n,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        // kept, also when it is written: no more is read from this connection
        if let Some(check) = self.check.as_mut() {
            check.refusal = Some((answer, at));
        }
        written
    }

    /// Shuts the sending side, then reads what the client still sends, within bounds.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.closing {
                Closing::Done => return Poll::Ready(Ok(())),
                Closing::No => {
                    let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
                    ready!(self.stalled(cx, shut))?;
                    self.closing = Closing::Lingering { since: Instant::now(), bytes: 0 };
                    self.read_sleep.stop();
                }
                Closing::Lingering { since, bytes } => {
                    let mut scratch = [0_u8; 16 << 10];
                    let mut buf = ReadBuf::new(&mut scratch);
                    let until = (*since + LINGER).min(Instant::now() + LINGER_IDLE);
                    match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                        Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                            *bytes += buf.filled().len();
                            self.read_sleep.stop();
                            if *bytes > LINGER_BYTES || since.elapsed() > LINGER {
                                self.closing = Closing::Done;
                            }
                        }
                        Poll::Ready(_) => self.closing = Closing::Done,
                        Poll::Pending => {
                            let until = match &self.read_sleep.0 {
                                Some(sleep) => sleep.deadline().into(),
                                None => until,
                            };
                            ready!(self.read_sleep.poll(cx, until));
                            self.closing = Closing::Done;
                        }
                    }
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let exchanging = this.exchanges.any();
        if let Some(check) = &mut this.check {
            if !check.judged.is_empty() {
                check.take_judged(buf);
                return Poll::Ready(Ok(()));
            }
            if check.refusal.is_some() {
                return this.poll_refused(cx);
            }
        }
        loop {
            let before = buf.filled().len();
            let read = this.poll_raw(cx, buf);
            let Some(check) = &mut this.check else { return read };
            let was_in_body = check.framing.in_body();
            let violation = match read {
                Poll::Ready(Ok(())) if buf.filled().len() > before => match check.pass_on(buf, before) {
                    Ok(true) => return Poll::Ready(Ok(())),
                    Ok(false) => continue,
                    Err(violation) => violation,
                },
                Poll::Pending => {
                    ready!(check.poll_silence(cx, &mut this.read_sleep, this.timing, exchanging));
                    return Poll::Ready(Ok(()));
                }
                ended => return ended,
            };
            check.gateway.metrics.refused_framing(violation.kind.detail());
            if was_in_body && violation.in_body && violation.valid_prefix == 0 {
                // hyper is reading this body: the exchange answers
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
            }
            check.refuse(&violation);
            if buf.filled().len() > before {
                // the requests before it come first
                return Poll::Ready(Ok(()));
            }
            return this.poll_refused(cx);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// A client that takes no bytes for too long is given up.
    fn stalled<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Pending => {
                let until = match &self.write_sleep.0 {
                    Some(sleep) => sleep.deadline().into(),
                    None => Instant::now() + self.timing.write_stall,
                };
                ready!(self.write_sleep.poll(cx, until));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            ready => {
                self.write_sleep.stop();
                ready
            }
        }
    }

    /// Takes note of a write. A flush is no sign of life: hyper asks for one whenever it wakes.
    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.flushed = written.is_ready();
        if let Some(refusing) = self.refusing.take_if(|_| written.is_ready()) {
            refusing.wake();
        }
        if let Some(check) = self.check.as_mut().filter(|_| self.flushed) {
            check.activity += 1;
        }
        self.stalled(cx, written)
    }
}

impl<S: AsyncRead + AsyncWrite + Peer + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // asked for whenever the connection's task wakes, whether or not something is to be read
        if self.exchanges.asks() && self.stream.has_closed() {
            self.exchanges.leave();
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.stalled(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_linger(cx)
    }
}
