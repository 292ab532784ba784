//! What the measurements share: an upstream and a client on plain threads, which take little of the machine themselves. Whatever
//! fails here stops the measurement.
#![expect(clippy::unwrap_used, reason = "what fails here should stop it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Nothing here waits longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// An upstream that answers 200 after a while, and reads at its own pace: so many bytes at most, then a pause.
///
/// # Panics
/// When there is no port for it.
pub fn upstream(takes: Duration, pace: Option<(usize, Duration)>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // ends when its peer does
            thread::spawn(move || serve(stream, takes, pace));
        }
    });
    addr
}

fn serve(mut stream: TcpStream, takes: Duration, pace: Option<(usize, Duration)>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (most, pause) = pace.unwrap_or((16 << 10, Duration::ZERO));
    let mut buffer = vec![0; most];
    let mut held = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            held.extend_from_slice(&buffer[..read]);
        };
        let mut left = (end + content_length(&held[..end])).saturating_sub(held.len());
        while left > 0 {
            let read = stream.read(&mut buffer)?;
            left = left.saturating_sub(read.max(1));
            thread::sleep(pause);
        }
        held.clear();
        thread::sleep(takes);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")?;
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    head.lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .map_or(0, |n| n.trim().parse().unwrap())
}

/// A connection that waits for nothing without an end.
///
/// # Panics
/// When it cannot be made.
pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The head of a request with this body.
pub fn head(path: &str, content_type: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer tok-1\r\nContent-Type: {content_type}\r\n\
         Content-Length: {length}\r\n\r\n"
    )
}

/// Reads an answer.
///
/// # Panics
/// When it does not come, or is no 200.
pub fn read_200(stream: &mut TcpStream) {
    let (status, body) = read(stream);
    assert!(status == 200, "{status}: {}", String::from_utf8_lossy(&body));
}

/// Reads an answer with a `Content-Length`: its status and its body.
///
/// # Panics
/// When it does not come.
pub fn read(stream: &mut TcpStream) -> (u16, Vec<u8>) {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).unwrap();
        answer.extend_from_slice(&buffer[..read]);
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        if answer.len() >= end + 4 + content_length(head.as_bytes()) {
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
            return (status.unwrap_or_else(|| panic!("no status: {head}")), answer.split_off(end + 4));
        }
    }
}
