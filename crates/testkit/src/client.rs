//! A raw HTTP/1.1 client: sends exactly what it is told and shows what came back, byte for byte.

mod answer;
mod form;
mod h2;
mod request;

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use std::{fmt, io};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub use answer::Answer;
pub use form::{Part, multipart};
pub use h2::h2_post;
pub use request::{Post, Request};

use crate::wire::{Decoder, Framing, HEAD_MAX, Piece, framing, head_end, parse_head};

/// How long the client waits for anything, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long it waits for `100 Continue` before it sends the body anyway (RFC 9110, section 10.1.1).
const CONTINUE_PATIENCE: Duration = Duration::from_secs(3);

/// Why there is no (whole) answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection could be made; the reason.
    Connect(String),
    /// The peer closed the connection before the head of an answer was complete.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// The connection ended inside the body.
    Cut,
    /// Nothing came within the time-out.
    TimedOut,
    /// The bytes are no HTTP; what is wrong with them.
    Malformed(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(reason) => write!(f, "no connection: {reason}"),
            Self::Closed => f.write_str("closed before an answer"),
            Self::Reset => f.write_str("reset"),
            Self::Cut => f.write_str("cut inside the body"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Malformed(what) => write!(f, "malformed answer: {what}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Reset,
            _ => Self::Malformed(error.to_string()),
        }
    }
}

/// Bytes of a stream and when they arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The bytes.
    pub bytes: Bytes,
    /// When they were read.
    pub at: Instant,
}

/// One connection. Requests go one after another; the connection is kept until it is dropped.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    buffer: BytesMut,
    decoder: Option<Decoder>,
    interim: Vec<u16>,
    head_only: bool,
    out_of_step: bool,
    patience: Duration,
}

impl Client {
    /// Connects; panics if that fails.
    pub async fn connect(addr: SocketAddr) -> Self {
        Self::try_connect(addr).await.unwrap_or_else(|failure| panic!("client: {addr}: {failure}"))
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Failure::Connect`] with the reason.
    pub async fn try_connect(addr: SocketAddr) -> Result<Self, Failure> {
        let connected = timeout(PATIENCE, TcpStream::connect(addr)).await.map_err(|_| Failure::TimedOut)?;
        let stream = connected.map_err(|error| Failure::Connect(error.to_string()))?;
        // Pieces that are sent apart should arrive apart; without it they only come later.
        let _ = stream.set_nodelay(true);
        Ok(Self {
            stream,
            buffer: BytesMut::new(),
            decoder: None,
            interim: Vec::new(),
            head_only: false,
            out_of_step: false,
            patience: PATIENCE,
        })
    }

    /// Another time-out for each wait; 20 s unless set.
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// The client's own address.
    pub fn local_addr(&self) -> SocketAddr {
        self.stream.local_addr().unwrap_or_else(|error| panic!("client: no address: {error}"))
    }

    /// Sends exactly these bytes; does not read meanwhile.
    ///
    /// # Errors
    /// [`Failure::Reset`] if the peer is gone, [`Failure::TimedOut`] if it does not take them.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
        let bytes = bytes.as_ref();
        self.head_only = bytes.starts_with(b"HEAD ");
        timeout(self.patience, self.stream.write_all(bytes)).await.map_err(|_| Failure::TimedOut)??;
        Ok(())
    }

    /// Sends a request and reads its answer; panics if there is none.
    pub async fn request(&mut self, request: Request) -> Answer {
        let what = request.to_string();
        self.try_request(request).await.unwrap_or_else(|failure| panic!("client: {what}: {failure}"))
    }

    /// Sends a request and reads its answer. Stops sending when the answer comes before the body is out; the
    /// connection takes no further request then.
    ///
    /// # Errors
    /// Why there is no answer; a body that was cut is an answer that is not complete.
    pub async fn try_request(&mut self, request: Request) -> Result<Answer, Failure> {
        self.try_send_request(request).await?;
        self.try_read_answer().await
    }

    /// Sends a request without reading its answer, which [`Client::read_answer`] or [`Client::read_head`] does.
    ///
    /// # Errors
    /// [`Failure::TimedOut`] if the peer does not take it. A peer that is gone shows when the answer is read.
    pub async fn try_send_request(&mut self, request: Request) -> Result<(), Failure> {
        if self.out_of_step {
            panic!("client: an answer came before the last request was sent; use a new connection");
        }
        self.head_only = request.is_head();
        let host = self.stream.peer_addr().map_or_else(|_| "localhost".to_owned(), |addr| addr.to_string());
        let (mut head, body) = request.on_the_wire(&host);
        let mut body = body.into_iter();
        if request.expects_continue() {
            self.upload(&head).await?;
            if !self.wait_continue().await? {
                self.out_of_step = true;
                return Ok(());
            }
        } else {
            // one write for the head and a plain body, as most clients do
            body.next().iter().for_each(|first| head.extend_from_slice(first));
            self.upload(&head).await?;
        }
        for piece in body {
            if self.out_of_step {
                break;
            }
            self.upload(&piece).await?;
        }
        Ok(())
    }

    /// Whether the body may go out now; not if a final answer came.
    async fn wait_continue(&mut self) -> Result<bool, Failure> {
        let limit = tokio::time::Instant::now() + CONTINUE_PATIENCE;
        loop {
            while let Some(status) = self.take_interim() {
                if status == 100 {
                    return Ok(true);
                }
            }
            if head_end(&self.buffer).is_some() {
                return Ok(false);
            }
            match tokio::time::timeout_at(limit, self.stream.read_buf(&mut self.buffer)).await {
                Ok(Ok(0)) => return Ok(false),
                Ok(read) => read?,
                Err(_) => return Ok(true),
            };
        }
    }

    /// Writes, and reads meanwhile: a peer that answers early may take no more, and its answer must not be lost.
    async fn upload(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let (mut reader, mut writer) = self.stream.split();
        let mut rest = bytes;
        while !rest.is_empty() {
            tokio::select! {
                written = writer.write(rest) => match written {
                    Ok(count) => rest = &rest[count..],
                    Err(_) => break,
                },
                read = reader.read_buf(&mut self.buffer) => {
                    if !matches!(read, Ok(1..)) || has_final_head(&self.buffer) {
                        break;
                    }
                }
                () = tokio::time::sleep(self.patience) => return Err(Failure::TimedOut),
            }
        }
        self.out_of_step = !rest.is_empty();
        Ok(())
    }

    /// Reads an answer; panics if there is none.
    pub async fn read_answer(&mut self) -> Answer {
        self.try_read_answer().await.unwrap_or_else(|failure| panic!("client: {failure}"))
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// Why there is no answer; a body that was cut is an answer that is not complete.
    pub async fn try_read_answer(&mut self) -> Result<Answer, Failure> {
        let mut answer = self.try_read_head().await?;
        let (mut body, mut raw) = (BytesMut::new(), BytesMut::new());
        answer.complete = loop {
            match self.next_piece().await {
                Ok(Some(Piece::Data(bytes))) => {
                    body.extend_from_slice(&bytes);
                    raw.extend_from_slice(&bytes);
                }
                Ok(Some(Piece::Frame(bytes))) => raw.extend_from_slice(&bytes),
                Ok(_) => break true,
                Err(Failure::Cut | Failure::Reset) => break false,
                Err(failure) => return Err(failure),
            }
        };
        if let Some(decoder) = &self.decoder {
            answer.trailers = decoder.trailers().clone();
        }
        (answer.body, answer.raw_body) = (body.freeze(), raw.freeze());
        Ok(answer)
    }

    /// Reads the head of an answer, the body of which [`Client::read_some`] reads; panics if there is none.
    pub async fn read_head(&mut self) -> Answer {
        self.try_read_head().await.unwrap_or_else(|failure| panic!("client: {failure}"))
    }

    /// Reads the head of an answer; interim answers before it are noted in it.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn try_read_head(&mut self) -> Result<Answer, Failure> {
        self.decoder = None;
        let head = loop {
            while self.take_interim().is_some() {}
            if let Some(end) = head_end(&self.buffer) {
                break self.buffer.split_to(end).freeze();
            }
            if self.buffer.len() > HEAD_MAX {
                return Err(Failure::Malformed("head without an end".to_owned()));
            }
            match self.read_more().await {
                Ok(0) if self.buffer.is_empty() => return Err(Failure::Closed),
                Ok(0) => return Err(Failure::Malformed(format!("closed inside a head: {:?}", self.buffer))),
                Ok(_) => {}
                Err(failure) => return Err(failure),
            }
        };
        let (start, headers, mut problems) = parse_head(&head);
        let Some(status) = status_of(&start) else {
            return Err(Failure::Malformed(format!("status line {:?}", String::from_utf8_lossy(&start))));
        };
        let declared = framing(&headers, &mut problems);
        if let Some(problem) = problems.into_iter().next() {
            return Err(Failure::Malformed(problem));
        }
        let bodiless = self.head_only || matches!(status, 101 | 204 | 304);
        let framing = if bodiless { Framing::Length(0) } else { declared.unwrap_or(Framing::UntilClose) };
        self.decoder = Some(Decoder::new(framing));
        Ok(Answer::from_head(status, &start, head, headers, std::mem::take(&mut self.interim)))
    }

    /// The next bytes of the body whose head was read, without chunk framing; `None` at its end.
    ///
    /// # Errors
    /// [`Failure::Cut`] or [`Failure::Reset`] if it has no proper end, [`Failure::TimedOut`].
    pub async fn read_some(&mut self) -> Result<Option<Arrived>, Failure> {
        loop {
            match self.next_piece().await? {
                Some(Piece::Data(bytes)) => return Ok(Some(Arrived { bytes, at: Instant::now() })),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next bytes as they are on the wire; `None` when the peer closed.
    ///
    /// # Errors
    /// [`Failure::Reset`] or [`Failure::TimedOut`].
    pub async fn read_raw(&mut self) -> Result<Option<Arrived>, Failure> {
        if self.buffer.is_empty() && self.read_more().await? == 0 {
            return Ok(None);
        }
        Ok(Some(Arrived { bytes: self.buffer.split().freeze(), at: Instant::now() }))
    }

    /// Waits until the peer closes the connection and says whether it did so without sending a byte more.
    pub async fn closed_by_peer(&mut self) -> bool {
        match self.read_raw().await {
            Ok(None) | Err(Failure::Reset) => true,
            Ok(Some(_)) | Err(_) => false,
        }
    }

    /// Says that nothing more will be sent, and goes on reading.
    pub async fn half_close(&mut self) {
        // A peer that is gone already needs no telling.
        let _ = self.stream.shutdown().await;
    }

    /// Closes the connection.
    pub async fn close(mut self) {
        self.half_close().await;
    }

    /// Resets the connection (RST).
    pub fn reset(self) {
        if let Err(error) = self.stream.set_zero_linger() {
            panic!("client: cannot reset: {error}");
        }
    }

    async fn next_piece(&mut self) -> Result<Option<Piece>, Failure> {
        loop {
            let Some(decoder) = &mut self.decoder else {
                panic!("client: no head was read, so there is no body")
            };
            match decoder.next(&mut self.buffer).map_err(Failure::Malformed)? {
                Piece::Done => return Ok(None),
                Piece::More => {
                    let may_end = decoder.ends_with_connection();
                    if self.read_more().await? == 0 {
                        return if may_end { Ok(None) } else { Err(Failure::Cut) };
                    }
                }
                piece => return Ok(Some(piece)),
            }
        }
    }

    async fn read_more(&mut self) -> Result<usize, Failure> {
        self.buffer.reserve(64 << 10);
        let read = timeout(self.patience, self.stream.read_buf(&mut self.buffer)).await;
        Ok(read.map_err(|_| Failure::TimedOut)??)
    }

    /// Takes an interim answer off the buffer and notes it; 101 is final.
    fn take_interim(&mut self) -> Option<u16> {
        let end = head_end(&self.buffer)?;
        let status = status_of(&parse_head(&self.buffer[..end]).0)?;
        if !(100..200).contains(&status) || status == 101 {
            return None;
        }
        let _ = self.buffer.split_to(end);
        self.interim.push(status);
        Some(status)
    }
}

fn has_final_head(mut buffer: &[u8]) -> bool {
    while let Some(end) = head_end(buffer) {
        match status_of(&parse_head(&buffer[..end]).0) {
            Some(100..=199) => buffer = &buffer[end..],
            _ => return true,
        }
    }
    false
}

/// The status of a status line (RFC 9112, section 4).
fn status_of(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let (digits, after) = rest.split_at_checked(3)?;
    if !(after.is_empty() || after.starts_with(b" ")) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A `GET` on a connection of its own.
pub async fn get(addr: SocketAddr, path: &str) -> Answer {
    Client::connect(addr).await.request(Request::get(path)).await
}
