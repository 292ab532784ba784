//! Requests, and the short way to post a document.

use std::fmt;
use std::net::SocketAddr;

use bytes::Bytes;

use super::{Answer, Client, Failure};
use crate::wire::{Headers, in_chunks, values};

/// A request. What is added to what is said here is `Host` and the framing of the body, unless given.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    target: String,
    headers: Headers,
    /// One after another on the wire.
    body: Vec<Bytes>,
    chunk: Option<usize>,
    expect: bool,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.target)
    }
}

impl Request {
    /// A request with this method and target, which are sent as they are.
    pub fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Headers::new(),
            body: Vec::new(),
            chunk: None,
            expect: false,
        }
    }

    /// A `GET`.
    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// A `POST`.
    pub fn post(target: &str) -> Self {
        Self::new("POST", target)
    }

    /// Adds a header line; the same name may come several times.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Adds `Authorization: Bearer`.
    pub fn bearer(self, token: &str) -> Self {
        self.header("Authorization", format!("Bearer {token}"))
    }

    /// The body.
    pub fn body(self, body: impl Into<Bytes>) -> Self {
        self.pieces(vec![body.into()])
    }

    /// The body in pieces, which are written one after another and not copied: they may share memory, so that a body can be
    /// longer than what is there to hold it.
    pub fn pieces(mut self, pieces: Vec<Bytes>) -> Self {
        self.body = pieces;
        self
    }

    /// Sends the body in chunks of this many bytes.
    pub fn chunked(mut self, size: usize) -> Self {
        self.chunk = Some(size);
        self
    }

    /// Asks with `Expect: 100-continue` and waits up to 3 s before it sends the body.
    pub fn expect_continue(mut self) -> Self {
        self.expect = true;
        self.header("Expect", "100-continue")
    }

    /// The head and the body as they go out.
    pub(super) fn on_the_wire(&self, host: &str) -> (Vec<u8>, Vec<Bytes>) {
        let length: usize = self.body.iter().map(Bytes::len).sum();
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        let mut line = |name: &str, value: &[u8]| {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        };
        if values(&self.headers, "host").is_empty() {
            line("Host", host.as_bytes());
        }
        for (name, value) in &self.headers {
            line(name, value);
        }
        let framed = ["content-length", "transfer-encoding"]
            .iter()
            .any(|name| !values(&self.headers, name).is_empty());
        let wants_body = matches!(self.method.as_str(), "POST" | "PUT" | "PATCH");
        if !framed {
            if self.chunk.is_some() {
                line("Transfer-Encoding", b"chunked");
            } else if wants_body || length > 0 {
                line("Content-Length", length.to_string().as_bytes());
            }
        }
        head.extend_from_slice(b"\r\n");
        let body = match self.chunk {
            Some(size) => vec![in_chunks(&self.body.concat(), size).into()],
            None => self.body.clone(),
        };
        (head, body)
    }

    pub(super) fn expects_continue(&self) -> bool {
        self.expect
    }

    pub(super) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

/// A `POST` on a connection of its own.
#[derive(Clone, Debug)]
pub struct Post {
    addr: SocketAddr,
    request: Request,
}

impl Post {
    /// A post to this address and target.
    pub fn to(addr: SocketAddr, target: &str) -> Self {
        Self { addr, request: Request::post(target) }
    }

    /// Adds a header line; the same name may come several times.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    /// Adds `Authorization: Bearer`.
    pub fn bearer(mut self, token: &str) -> Self {
        self.request = self.request.bearer(token);
        self
    }

    /// The body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.request = self.request.body(body);
        self
    }

    /// Sends the body in chunks of this many bytes.
    pub fn chunked(mut self, size: usize) -> Self {
        self.request = self.request.chunked(size);
        self
    }

    /// Asks with `Expect: 100-continue` and waits up to 3 s before it sends the body.
    pub fn expect_continue(mut self) -> Self {
        self.request = self.request.expect_continue();
        self
    }

    /// Sends it and reads the answer; panics if there is none.
    pub async fn send(self) -> Answer {
        Client::connect(self.addr).await.request(self.request).await
    }

    /// Sends it and reads the answer.
    ///
    /// # Errors
    /// Why there is no answer; a body that was cut is an answer that is not complete.
    pub async fn try_send(self) -> Result<Answer, Failure> {
        Client::try_connect(self.addr).await?.try_request(self.request).await
    }
}
