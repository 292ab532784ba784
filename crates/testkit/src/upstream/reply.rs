//! What the stub does with a call, as a list of steps on the connection.

use std::time::Duration;

use bytes::Bytes;

use super::Gate;
use crate::wire::{Headers, chunk, has_token, in_chunks, values};

/// One thing that the stub does on a connection.
#[derive(Clone, Debug)]
pub enum Step {
    /// Writes exactly these bytes.
    Write(Bytes),
    /// Writes these bytes as one chunk of a chunked body.
    Chunk(Bytes),
    /// Writes the last chunk, without trailers.
    LastChunk,
    /// Does nothing for a while.
    Pause(Duration),
    /// Goes on when the gate is open.
    WaitFor(Gate),
    /// Closes the connection; if bytes from the peer are unread the system makes it a reset.
    Close,
    /// Resets the connection (RST).
    Reset,
    /// Holds the connection open, silent, until the peer closes it.
    Stall,
}

impl Step {
    /// [`Step::Write`] from anything like bytes.
    pub fn write(bytes: impl Into<Bytes>) -> Self {
        Self::Write(bytes.into())
    }

    /// [`Step::Chunk`] from anything like bytes.
    pub fn chunk(bytes: impl Into<Bytes>) -> Self {
        Self::Chunk(bytes.into())
    }
}

#[derive(Clone, Debug)]
enum Payload {
    Body(Bytes),
    Chunked(Vec<Bytes>),
    Drip { body: Bytes, size: usize, pause: Duration },
    Steps(Vec<Step>),
}

/// How a call is answered. Nothing is added to what is said here but the framing field of the body.
#[derive(Clone, Debug)]
pub struct Reply {
    status: Option<u16>,
    reason: Option<String>,
    headers: Headers,
    trailers: Headers,
    before: Vec<Step>,
    payload: Payload,
    early: bool,
    slow: Option<(usize, Duration)>,
    close_after: bool,
}

impl Reply {
    /// An answer with this status and the usual reason phrase.
    pub fn status(status: u16) -> Self {
        Self {
            status: Some(status),
            reason: None,
            headers: Headers::new(),
            trailers: Headers::new(),
            before: Vec::new(),
            payload: Payload::Body(Bytes::new()),
            early: false,
            slow: None,
            close_after: false,
        }
    }

    /// Exactly these bytes in place of an answer; the connection stays open after them.
    pub fn raw(bytes: impl Into<Bytes>) -> Self {
        Self { status: None, ..Self::status(0) }.steps(vec![Step::write(bytes)])
    }

    /// Closes the connection without a byte.
    pub fn hang_up() -> Self {
        Self::raw(Bytes::new()).steps(vec![Step::Close])
    }

    /// Resets the connection without a byte.
    pub fn reset() -> Self {
        Self::raw(Bytes::new()).steps(vec![Step::Reset])
    }

    /// Never answers; holds the connection until the peer closes it.
    pub fn stall() -> Self {
        Self::raw(Bytes::new()).steps(vec![Step::Stall])
    }

    /// Another reason phrase.
    pub fn reason(mut self, reason: &str) -> Self {
        self.reason = Some(reason.to_owned());
        self
    }

    /// Adds a header line; the same name may come several times.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Adds a trailer line to a chunked body.
    pub fn trailer(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.trailers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// The body, with `Content-Length` unless a framing header is given.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.payload = Payload::Body(body.into());
        self
    }

    /// The body in these chunks, each written on its own; with `Transfer-Encoding` unless given.
    pub fn chunked<T: Into<Bytes>>(mut self, chunks: Vec<T>) -> Self {
        self.payload = Payload::Chunked(chunks.into_iter().map(Into::into).collect());
        self
    }

    /// The body in place of what follows the head, step by step. Adds `Transfer-Encoding: chunked` if a step is
    /// a chunk; without any framing the body ends with the connection, which is closed after the last step.
    pub fn steps(mut self, steps: Vec<Step>) -> Self {
        self.payload = Payload::Steps(steps);
        self
    }

    /// Writes the body (set before) in pieces of `size` bytes with a pause after each.
    pub fn drip(mut self, size: usize, pause: Duration) -> Self {
        let Payload::Body(body) = self.payload else {
            panic!("stub upstream: drip needs a plain body before it")
        };
        self.payload = Payload::Drip { body, size: size.max(1), pause };
        self
    }

    /// Waits before the head.
    pub fn delay(mut self, pause: Duration) -> Self {
        self.before.push(Step::Pause(pause));
        self
    }

    /// Holds the head back until the gate is open.
    pub fn wait_for(mut self, gate: &Gate) -> Self {
        self.before.push(Step::WaitFor(gate.clone()));
        self
    }

    /// Writes an interim answer (1xx, no fields) before the head.
    pub fn interim(mut self, status: u16) -> Self {
        self.before.push(Step::write(format!("HTTP/1.1 {status} {}\r\n\r\n", phrase(status))));
        self
    }

    /// Answers when the head is complete. The request body is read after the answer, or, with
    /// [`Reply::close_after`], not at all but for what comes while the connection closes.
    pub fn answer_early(mut self) -> Self {
        self.early = true;
        self
    }

    /// Reads the request body at most `bytes` at a time with a pause after each.
    pub fn read_slowly(mut self, bytes: usize, pause: Duration) -> Self {
        self.slow = Some((bytes.max(1), pause));
        self
    }

    /// Says `Connection: close` and closes in good order after the answer.
    pub fn close_after(mut self) -> Self {
        self.close_after = true;
        self
    }

    pub(super) fn is_early(&self) -> bool {
        self.early
    }

    pub(super) fn slow(&self) -> Option<(usize, Duration)> {
        self.slow
    }

    /// The steps on the wire, and whether the connection ends with them.
    pub(super) fn plan(&self, method: &str) -> (Vec<Step>, bool) {
        let mut steps = self.before.clone();
        let mut close = self.close_after || has_token(&self.headers, "connection", "close");
        let Some(status) = self.status else {
            steps.extend(self.payload_steps());
            return (steps, close);
        };
        let reason = self.reason.clone().unwrap_or_else(|| phrase(status).to_owned());
        let mut head = format!("HTTP/1.1 {status} {reason}\r\n").into_bytes();
        let mut line = |name: &str, value: &[u8]| {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        };
        for (name, value) in &self.headers {
            line(name, value);
        }
        let framed = ["content-length", "transfer-encoding"]
            .iter()
            .any(|name| !values(&self.headers, name).is_empty());
        let bodiless = status < 200 || status == 204 || status == 304;
        if !framed && !bodiless {
            match &self.payload {
                Payload::Body(body) | Payload::Drip { body, .. } => {
                    line("Content-Length", body.len().to_string().as_bytes());
                }
                Payload::Chunked(_) => line("Transfer-Encoding", b"chunked"),
                Payload::Steps(steps) if steps.iter().any(|step| matches!(step, Step::Chunk(_))) => {
                    line("Transfer-Encoding", b"chunked");
                }
                Payload::Steps(_) => close = true,
            }
        }
        if close && !has_token(&self.headers, "connection", "close") {
            line("Connection", b"close");
        }
        head.extend_from_slice(b"\r\n");
        let content = if method == "HEAD" || bodiless { Vec::new() } else { self.payload_steps() };
        // One write for head and plain body, as most servers do.
        let mut content = content.into_iter();
        match (content.next(), &self.payload) {
            (Some(Step::Write(body)), Payload::Body(_)) => {
                head.extend_from_slice(&body);
                steps.push(Step::write(head));
            }
            (first, _) => {
                steps.push(Step::write(head));
                steps.extend(first);
            }
        }
        steps.extend(content);
        (steps, close)
    }

    fn payload_steps(&self) -> Vec<Step> {
        match &self.payload {
            Payload::Body(body) => vec![Step::Write(body.clone())],
            Payload::Chunked(chunks) => {
                let mut last = b"0\r\n".to_vec();
                for (name, value) in &self.trailers {
                    last.extend_from_slice(name.as_bytes());
                    last.extend_from_slice(b": ");
                    last.extend_from_slice(value);
                    last.extend_from_slice(b"\r\n");
                }
                last.extend_from_slice(b"\r\n");
                chunks.iter().cloned().map(Step::Chunk).chain([Step::write(last)]).collect()
            }
            Payload::Drip { body, size, pause } => body
                .chunks(*size)
                .flat_map(|piece| [Step::Write(body.slice_ref(piece)), Step::Pause(*pause)])
                .collect(),
            Payload::Steps(steps) => steps.clone(),
        }
    }
}

/// The bytes that a writing step puts on the wire.
pub(super) fn bytes_of(step: &Step) -> Option<Bytes> {
    match step {
        Step::Write(bytes) => Some(bytes.clone()),
        Step::Chunk(bytes) => Some(chunk(bytes).into()),
        Step::LastChunk => Some(in_chunks(b"", 1).into()),
        _ => None,
    }
}

fn phrase(status: u16) -> &'static str {
    hyper::StatusCode::from_u16(status).ok().and_then(|code| code.canonical_reason()).unwrap_or("Unnamed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(reply: &Reply, method: &str) -> String {
        let bytes: Vec<u8> = reply.plan(method).0.iter().filter_map(bytes_of).flatten().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn a_plain_reply_is_what_was_said_and_a_length() {
        let reply = Reply::status(400).header("Content-Type", "application/json").body("{}");
        assert_eq!(
            wire(&reply, "POST"),
            "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        );
        assert!(!wire(&reply, "HEAD").ends_with("{}"));
        assert!(wire(&Reply::status(204), "GET").ends_with("No Content\r\n\r\n"));
        assert_eq!(wire(&Reply::raw("HTTP/1.1 4000\r\n\r\n"), "GET"), "HTTP/1.1 4000\r\n\r\n");
    }

    #[test]
    fn framing_fits_the_payload() {
        let chunked = Reply::status(200).chunked(vec!["ab", "c"]).trailer("X-Sum", "1");
        assert!(wire(&chunked, "GET").ends_with("chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nX-Sum: 1\r\n\r\n"));
        let stream = Reply::status(200).steps(vec![Step::chunk("x"), Step::LastChunk]);
        assert!(wire(&stream, "GET").ends_with("chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"));
        assert!(!stream.plan("GET").1);
        let short =
            Reply::status(200).header("Content-Length", "9").steps(vec![Step::write("abc"), Step::Reset]);
        assert!(wire(&short, "GET").ends_with("Content-Length: 9\r\n\r\nabc"));
        let endless = Reply::status(200).steps(vec![Step::write("abc")]);
        assert!(endless.plan("GET").1 && wire(&endless, "GET").contains("Connection: close"));
    }
}
