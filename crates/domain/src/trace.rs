//! W3C Trace Context: the trace that a request belongs to. A client's `traceparent` is read strictly or replaced; the one
//! that goes upstream is always the gateway's own writing.

use std::fmt;

/// The trace of one exchange: the caller's trace id, and a span of the gateway's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    id: u128,
    span: u64,
    sampled: bool,
    continues: bool,
}

impl Trace {
    /// The trace named by a `traceparent` value (Trace Context, section 3.2), or a new one when there is none or it is
    /// malformed. `random` is the source of new ids.
    #[must_use]
    pub fn from_header(value: Option<&[u8]>, mut random: impl FnMut() -> u64) -> Self {
        let span = random() | 1;
        match value.and_then(parse) {
            Some((id, sampled)) => Self { id, span, sampled, continues: true },
            None => Self {
                id: (u128::from(random()) << 64) | u128::from(random()) | 1,
                span,
                sampled: false,
                continues: false,
            },
        }
    }

    /// The trace id: 32 hex digits in the audit.
    #[must_use]
    pub fn id(&self) -> TraceId {
        TraceId(self.id)
    }

    /// Whether it goes on from the caller's own trace.
    #[must_use]
    pub fn continues(&self) -> bool {
        self.continues
    }

    /// The `traceparent` for the upstream: same trace, the gateway's span as the parent.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let span: [u8; 16] = crate::fingerprint::hex(&self.span.to_be_bytes());
        let mut out = Vec::with_capacity(55);
        for piece in [&b"00-"[..], &self.id().to_hex(), b"-", &span, b"-0"] {
            out.extend_from_slice(piece);
        }
        out.push(b'0' + u8::from(self.sampled));
        out
    }
}

/// A trace id; prints as 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

impl TraceId {
    /// As 32 lower-case hex digits.
    #[must_use]
    pub fn to_hex(&self) -> [u8; 32] {
        crate::fingerprint::hex(&self.0.to_be_bytes())
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// `version-traceid-parentid-flags`, lower-case hex; version `ff` and all-zero ids are invalid; a future version may go on.
fn parse(value: &[u8]) -> Option<(u128, bool)> {
    let text = std::str::from_utf8(value).ok()?;
    let version = text.get(..2)?;
    let fits =
        if version == "00" { text.len() == 55 } else { text.len() == 55 || text.get(55..56) == Some("-") };
    let hex = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let (id, parent, flags) = (text.get(3..35)?, text.get(36..52)?, text.get(53..55)?);
    let dashes = [2, 35, 52].iter().all(|&i| text.as_bytes().get(i) == Some(&b'-'));
    if !fits || !dashes || version == "ff" || ![version, id, parent, flags].iter().all(|p| hex(p)) {
        return None;
    }
    let id = u128::from_str_radix(id, 16).ok().filter(|id| *id != 0)?;
    u64::from_str_radix(parent, 16).ok().filter(|parent| *parent != 0)?;
    Some((id, u8::from_str_radix(flags, 16).ok()? & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_traceparent_keeps_its_trace() {
        let value = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = Trace::from_header(Some(value), || 7);
        assert_eq!(trace.id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(trace.header(), b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01");
        assert!(parse(&trace.header()).is_some());
    }

    #[test]
    fn a_malformed_one_is_replaced() {
        for bad in [
            &b""[..],
            b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01".as_bytes(),
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
            let trace = Trace::from_header(Some(bad), || 0);
            assert!(parse(&trace.header()).is_some(), "a new one is valid");
        }
        assert!(parse(b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some());
    }
}
