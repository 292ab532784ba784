//! An answer as somebody saved it.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// Heads of one answer: interim ones, those of proxies and of redirections.
const HEADS_MAX: usize = 32;
/// Header fields of one head.
const FIELDS_MAX: usize = 1000;

/// A saved answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Saved {
    /// `None` when only the body was saved.
    pub(super) status: Option<StatusCode>,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Saved {
    /// Reads a body, or what begins with `HTTP/` as `curl -i` writes it: heads, the last of which counts, and the body.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut saved = Self { status: None, headers: HeaderMap::new(), body: Vec::new() };
        let mut rest = bytes;
        for _ in 0..HEADS_MAX {
            if !rest.starts_with(b"HTTP/") {
                saved.body = rest.to_vec();
                return Ok(saved);
            }
            let mut lines = Lines(rest);
            let first = lines.next().unwrap_or_default();
            saved.status = Some(status(first)?);
            saved.headers = HeaderMap::new();
            loop {
                let line = lines.next().ok_or("its head does not end with an empty line")?;
                if line.is_empty() {
                    break;
                }
                if saved.headers.len() == FIELDS_MAX {
                    return Err(format!("its head has more than {FIELDS_MAX} fields"));
                }
                let (name, value) = field(line)?;
                saved.headers.append(name, value);
            }
            rest = lines.0;
        }
        Err(format!("it has more than {HEADS_MAX} heads"))
    }
}

/// Lines that end with LF, or with CRLF.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|b| *b == b'\n')?;
        let (line, rest) = (&self.0[..end], &self.0[end + 1..]);
        self.0 = rest;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

/// `HTTP/1.1 400 Bad Request`, `HTTP/2 400`.
fn status(line: &[u8]) -> Result<StatusCode, String> {
    let number = line.split(|b| *b == b' ').nth(1);
    let status = number.and_then(|number| StatusCode::from_bytes(number).ok());
    status.ok_or_else(|| "its first line begins with HTTP/ and has no status".to_owned())
}

fn field(line: &[u8]) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = || {
        format!("this is no header field: {:.60}", String::from_utf8_lossy(line).escape_debug().to_string())
    };
    let colon = line.iter().position(|b| *b == b':').ok_or_else(wrong)?;
    let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| wrong())?;
    let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).map_err(|_| wrong())?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use super::*;

    fn parse(text: &str) -> Saved {
        Saved::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_body_alone_has_no_status() {
        for body in ["", "{\"error\":1}", "<html>", "HTTP is a protocol"] {
            let saved = parse(body);
            assert_eq!(
                (saved.status, saved.headers.len(), saved.body.as_slice()),
                (None, 0, body.as_bytes())
            );
        }
    }

    #[test]
    fn the_last_head_counts() {
        let saved = parse(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 422 Unprocessable Entity\r\nContent-Type: application/json\r\nX-A:  b \r\n\r\n{}\r\n",
        );
        assert_eq!(saved.status.unwrap(), 422);
        assert_eq!(
            (&saved.headers["content-type"], &saved.headers["x-a"]),
            (&"application/json".parse().unwrap(), &"b".parse().unwrap())
        );
        assert_eq!(saved.body, b"{}\r\n");
        let saved = parse("HTTP/2 400\nretry-after: 5\n\n");
        assert_eq!((saved.status.unwrap().as_u16(), saved.headers.len(), saved.body.len()), (400, 1, 0));
    }

    #[test]
    fn what_is_broken_is_said() {
        for (text, part) in [
            ("HTTP/1.1\r\n\r\n", "no status"),
            ("HTTP/1.1 4x0 \r\n\r\n", "no status"),
            ("HTTP/1.1 400 x\r\nA: b\r\n", "does not end"),
            ("HTTP/1.1 400", "no status"),
            ("HTTP/1.1 400 x\r\nno field\u{1b}\r\n\r\n", "no header field: no field\\u{1b}"),
            (&"HTTP/1.1 100 x\r\n\r\n".repeat(40), "more than 32 heads"),
        ] {
            let told = Saved::parse(text.as_bytes()).unwrap_err();
            assert!(told.contains(part), "{text}: {told}");
        }
    }
}
