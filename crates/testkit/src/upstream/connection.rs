//! One connection of the stub: reads requests one after another and does what the replies say.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::record::{Choice, Intake, Shared};
use super::reply::bytes_of;
use super::{Reply, Seen, Step};
use crate::wire::{Decoder, HEAD_MAX, Piece, has_token, head_end, values};

/// The longest that any single wait on a connection lasts.
const HOLD: Duration = Duration::from_secs(600);
/// How long a connection that is closed in good order goes on taking what the peer still sends.
const LINGER: Duration = Duration::from_secs(5);
/// How much is taken in beyond the present request while an answer waits, bytes.
const AHEAD_MAX: usize = 8 << 20;

/// Why a connection ended.
enum End {
    /// The peer closed or reset it.
    Peer,
    /// The stub closed it.
    Ours,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected => Self::Peer,
            _ => Self::Ours,
        }
    }
}

pub(super) struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
    number: u64,
    shared: Arc<Shared>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::SeqCst);
        self.shared.tell();
    }
}

impl Connection {
    pub(super) fn accepted(stream: TcpStream, shared: Arc<Shared>) -> Self {
        // Pieces that are written apart should go out apart; without it they only come later.
        let _ = stream.set_nodelay(true);
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst) + 1;
        shared.open.fetch_add(1, Ordering::SeqCst);
        shared.tell();
        Self { stream, buffer: BytesMut::new(), number, shared }
    }

    pub(super) async fn serve(mut self) {
        let mut first = true;
        let end = loop {
            let step = async {
                let seen = self.read_head(first).await?;
                self.exchange(seen).await
            };
            if let Err(end) = step.await {
                break end;
            }
            first = false;
        };
        if matches!(end, End::Peer) {
            self.shared.peer_closed.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn read_head(&mut self, first: bool) -> Result<Seen, End> {
        loop {
            // RFC 9112, section 2.2: empty lines before a request line are passed over.
            while self.buffer.starts_with(b"\r\n") {
                self.buffer.advance(2);
            }
            if let Some(end) = head_end(&self.buffer) {
                return Ok(Seen::from_head(self.buffer.split_to(end).freeze(), self.number));
            }
            if self.buffer.len() > HEAD_MAX {
                return Err(End::Ours);
            }
            let idle = self.shared.settings().idle_close.filter(|_| !first && self.buffer.is_empty());
            match timeout(idle.unwrap_or(HOLD), self.read_more(64 << 10)).await {
                Ok(read) => read?,
                Err(_) => {
                    self.stream.shutdown().await?;
                    return Err(End::Ours);
                }
            }
        }
    }

    /// Reads at most `most` bytes into the buffer; the end of the stream is the peer's end.
    async fn read_more(&mut self, most: usize) -> Result<(), End> {
        self.buffer.reserve(most.min(64 << 10));
        let mut limited = (&mut self.stream).take(most as u64);
        match limited.read_buf(&mut self.buffer).await? {
            0 => Err(End::Peer),
            _ => Ok(()),
        }
    }

    async fn exchange(&mut self, seen: Seen) -> Result<(), End> {
        let persistent = seen.version == "HTTP/1.1" && !has_token(&seen.headers, "connection", "close");
        let (mut intake, choice) = self.shared.begin(seen);
        let mut decoder = Decoder::new(intake.framing());
        let closing = match choice {
            Choice::Reply(reply) if reply.is_early() => {
                let closing = self.answer(&reply, intake.seen(), true).await?;
                if closing || !persistent {
                    self.stream.shutdown().await?;
                    // A reset would take the answer away from a peer that is still sending.
                    let _ = timeout(LINGER, self.read_body(&mut intake, &mut decoder, None)).await;
                    return Err(End::Ours);
                }
                self.read_body(&mut intake, &mut decoder, reply.slow()).await?;
                false
            }
            choice => {
                let slow = if let Choice::Reply(reply) = &choice { reply.slow() } else { None };
                if values(&intake.seen().headers, "expect")
                    .iter()
                    .any(|v| v.eq_ignore_ascii_case(b"100-continue"))
                {
                    self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
                }
                self.read_body(&mut intake, &mut decoder, slow).await?;
                let reply = choice.decide(intake.seen());
                self.answer(&reply, intake.seen(), false).await?
            }
        };
        if closing || !persistent {
            if !self.buffer.is_empty() {
                intake.problem(format!("{} surplus bytes before the close", self.buffer.len()));
                intake.file();
            }
            self.stream.shutdown().await?;
            return Err(End::Ours);
        }
        Ok(())
    }

    async fn read_body(
        &mut self,
        intake: &mut Intake,
        decoder: &mut Decoder,
        slow: Option<(usize, Duration)>,
    ) -> Result<(), End> {
        loop {
            match decoder.next(&mut self.buffer) {
                Ok(Piece::Data(bytes)) => intake.content(&bytes),
                Ok(Piece::Frame(bytes)) => intake.frame(&bytes),
                Ok(Piece::Done) => {
                    intake.complete(decoder.trailers());
                    return Ok(());
                }
                Ok(Piece::More) => {
                    if let Some((_, pause)) = slow {
                        sleep(pause).await;
                    }
                    let most = slow.map_or(1 << 20, |(bytes, _)| bytes);
                    match timeout(HOLD, self.read_more(most)).await {
                        Ok(read) => read?,
                        Err(_) => return Err(End::Ours),
                    }
                }
                Err(problem) => {
                    intake.problem(problem);
                    return Err(End::Ours);
                }
            }
        }
    }

    /// Does the steps of a reply; tells whether the connection is to be closed after them.
    async fn answer(&mut self, reply: &Reply, seen: &Seen, early: bool) -> Result<bool, End> {
        let (steps, close) = reply.plan(&seen.method);
        for step in steps {
            match &step {
                Step::Write(_) | Step::Chunk(_) | Step::LastChunk => {
                    let bytes = bytes_of(&step).unwrap_or_default();
                    self.write(&bytes).await?;
                }
                Step::Pause(pause) => self.wait(sleep(*pause), early).await?,
                Step::WaitFor(gate) => self.wait(gate.opened(), early).await?,
                Step::Stall => {
                    self.wait(std::future::pending(), false).await?;
                    return Err(End::Ours);
                }
                Step::Close => return Err(End::Ours),
                Step::Reset => {
                    self.stream.set_zero_linger()?;
                    return Err(End::Ours);
                }
            }
        }
        Ok(close)
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), End> {
        match timeout(HOLD, self.stream.write_all(bytes)).await {
            Ok(written) => Ok(written?),
            Err(_) => Err(End::Ours),
        }
    }

    /// Waits, and notices meanwhile that the peer goes. An early answer must not read the body meanwhile, so
    /// there it goes unnoticed.
    async fn wait(&mut self, until: impl Future<Output = ()>, early: bool) -> Result<(), End> {
        let limit = sleep(HOLD);
        tokio::pin!(until, limit);
        loop {
            let ahead = self.buffer.len() < AHEAD_MAX;
            tokio::select! {
                () = &mut until => return Ok(()),
                () = &mut limit => return Err(End::Ours),
                read = self.read_more(64 << 10), if !early && ahead => read?,
            }
        }
    }
}
