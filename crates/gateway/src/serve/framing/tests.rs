//! Every vector is fed whole, byte by byte and cut at every position, and must come out the same.

use super::*;
use proptest::prelude::*;

mod vectors;

use vectors::{CHUNKED_HEAD, INVALID_BODIES, INVALID_HEADS, VALID};

const LIMITS: Limits = Limits { head_max_bytes: 512, head_max_fields: 8 };

/// Everything a caller can learn, with positions counted from the start of the connection.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    requests: u64,
    in_body: bool,
    between_messages: bool,
    violation: Option<ViolationKind>,
}

/// Feeds the pieces in order. `message_start` is where the offending message begins, if that is known: each piece
/// must then report exactly its own bytes before that point as valid.
fn drive<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, message_start: Option<usize>) -> Seen {
    let mut framing = Framing::new(LIMITS);
    let mut base = 0;
    let mut violation = None;
    for piece in pieces {
        if let Err(found) = framing.feed(piece) {
            assert_eq!(found.in_body, framing.in_body());
            assert!(found.valid_prefix < piece.len(), "the byte that broke the rule is in this piece");
            if let Some(start) = message_start {
                assert_eq!(found.valid_prefix, start.saturating_sub(base));
            }
            let again = framing.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(again, Err(Violation { valid_prefix: 0, ..found }));
            violation = Some(found.kind);
            break;
        }
        base += piece.len();
        assert!(framing.line.len() <= LIMITS.head_max_bytes.max(CHUNK_LINE_MAX));
        assert!(!framing.between_messages() || framing.line.capacity() == 0, "idle, yet keeps a buffer");
    }
    Seen {
        requests: framing.requests(),
        in_body: framing.in_body(),
        between_messages: framing.between_messages(),
        violation,
    }
}

/// The outcome of one feed, after comparing it with that of every other way to cut the bytes in two, and in all.
fn drive_all_ways(bytes: &[u8], message_start: Option<usize>) -> Seen {
    let whole = drive([bytes], message_start);
    assert_eq!(drive(bytes.chunks(1), message_start), whole, "byte by byte: {}", bytes.escape_ascii());
    for at in 0..=bytes.len() {
        let (first, second) = bytes.split_at(at);
        assert_eq!(drive([first, second], message_start), whole, "cut at {at}: {}", bytes.escape_ascii());
    }
    whole
}

#[test]
fn valid_vectors_are_accepted_however_they_are_cut() {
    for (name, requests, bytes) in VALID {
        let expected = Seen { requests: *requests, in_body: false, between_messages: true, violation: None };
        assert_eq!(drive_all_ways(bytes, None), expected, "{name}");
    }
}

struct Invalid {
    name: &'static str,
    kind: ViolationKind,
    in_body: bool,
    bytes: Vec<u8>,
}

fn invalid() -> impl Iterator<Item = Invalid> {
    let heads = INVALID_HEADS.iter().map(|(name, kind, bytes)| Invalid {
        name,
        kind: *kind,
        in_body: false,
        bytes: bytes.to_vec(),
    });
    let bodies = INVALID_BODIES.iter().map(|(name, kind, body)| Invalid {
        name,
        kind: *kind,
        in_body: true,
        bytes: chunked_with(body),
    });
    heads.chain(bodies)
}

#[test]
fn invalid_vectors_are_refused_however_they_are_cut() {
    for Invalid { name, kind, in_body, bytes } in invalid() {
        let expected =
            Seen { requests: u64::from(in_body), in_body, between_messages: false, violation: Some(kind) };
        assert_eq!(drive_all_ways(&bytes, Some(0)), expected, "{name}");
    }
}

#[test]
fn a_violation_after_pipelined_requests_leaves_them_valid() {
    for (valid_name, requests, earlier) in VALID {
        for Invalid { name, kind, in_body, bytes } in invalid() {
            let joined = [*earlier, &bytes].concat();
            let seen = drive([joined.as_slice()], Some(earlier.len()));
            assert_eq!(seen.violation, Some(kind), "{valid_name}, then {name}");
            assert_eq!(seen.requests, requests + u64::from(in_body), "{valid_name}, then {name}");
            assert_eq!(drive(joined.chunks(1), Some(earlier.len())), seen, "{valid_name}, then {name}");
        }
    }
}

#[test]
fn pipelined_requests_are_counted_one_by_one() {
    let all: Vec<u8> = VALID.iter().flat_map(|(_, _, bytes)| bytes.iter().copied()).collect();
    let requests = VALID.iter().map(|(_, requests, _)| requests).sum();
    let expected = Seen { requests, in_body: false, between_messages: true, violation: None };
    assert_eq!(drive_all_ways(&all, None), expected);
}

#[test]
fn the_state_is_told_at_every_step() {
    let mut framing = Framing::new(LIMITS);
    let steps: &[(&[u8], u64, bool, bool)] = &[
        (b"", 0, false, true),
        (b"\r\n", 0, false, true),
        (b"\r", 0, false, false),
        (b"\nP", 0, false, false),
        (b"OST / HTTP/1.1\r\n", 0, false, false),
        (b"Host: a\r\nContent-Length: 3\r\n", 0, false, false),
        (b"\r\n", 1, true, false),
        (b"ab", 1, true, false),
        (b"c", 1, false, true),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 2, true, false),
        (b"1\r\n", 2, true, false),
        (b"x\r\n0", 2, true, false),
        (b"\r\n", 2, true, false),
        (b"Digest: y\r\n", 2, true, false),
        (b"\r\n", 2, false, true),
    ];
    for (bytes, requests, in_body, between_messages) in steps {
        assert_eq!(framing.feed(bytes), Ok(()));
        let state = (framing.requests(), framing.in_body(), framing.between_messages());
        assert_eq!(state, (*requests, *in_body, *between_messages), "after {}", bytes.escape_ascii());
    }
}

#[test]
fn valid_prefix_counts_only_bytes_before_the_offending_message() {
    let mut framing = Framing::new(LIMITS);
    let good = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let bad = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX";
    let (head, tail) = bad.split_at(20);
    assert_eq!(framing.feed(&[good.as_slice(), head].concat()), Ok(()));
    let expected = Violation { kind: ViolationKind::MissingChunkEnd, in_body: true, valid_prefix: 0 };
    assert_eq!(framing.feed(tail), Err(expected));

    let mut framing = Framing::new(LIMITS);
    let expected = Violation { valid_prefix: good.len(), ..expected };
    assert_eq!(framing.feed(&[good.as_slice(), bad].concat()), Err(expected));
}

fn get_with(fields: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: a\r\n", fields, b"\r\n"].concat()
}

fn chunked_with(body: &[u8]) -> Vec<u8> {
    [CHUNKED_HEAD, body].concat()
}

#[test]
fn a_head_may_fill_its_limits_and_not_exceed_them() {
    let fixed = get_with(b"X: \r\n").len();
    let head_of = |length: usize| get_with(format!("X: {}\r\n", "v".repeat(length - fixed)).as_bytes());
    assert_eq!(drive_all_ways(&head_of(LIMITS.head_max_bytes), None).violation, None);
    let over = drive_all_ways(&head_of(LIMITS.head_max_bytes + 1), Some(0));
    assert_eq!(over.violation, Some(ViolationKind::HeadTooLarge));

    let endless = [b"GET /".as_slice(), &b"a".repeat(LIMITS.head_max_bytes)].concat();
    assert_eq!(drive_all_ways(&endless, Some(0)).violation, Some(ViolationKind::HeadTooLarge));

    let fields = |count: usize| get_with(&b"X: y\r\n".repeat(count - 1));
    assert_eq!(drive_all_ways(&fields(LIMITS.head_max_fields), None).violation, None);
    let over = drive_all_ways(&fields(LIMITS.head_max_fields + 1), Some(0));
    assert_eq!(over.violation, Some(ViolationKind::TooManyFields));
}

#[test]
fn a_trailer_section_has_the_limits_of_a_head() {
    let trailers = |fields: &[u8]| chunked_with(&[b"0\r\n", fields, b"\r\n"].concat());
    let value = |length: usize| format!("X: {}\r\n", "v".repeat(length - "X: \r\n\r\n".len())).into_bytes();
    assert_eq!(drive_all_ways(&trailers(&value(LIMITS.head_max_bytes)), None).violation, None);
    let over = drive_all_ways(&trailers(&value(LIMITS.head_max_bytes + 1)), Some(0));
    assert_eq!((over.violation, over.in_body), (Some(ViolationKind::HeadTooLarge), true));

    assert_eq!(drive_all_ways(&trailers(&b"X: y\r\n".repeat(LIMITS.head_max_fields)), None).violation, None);
    let over = drive_all_ways(&trailers(&b"X: y\r\n".repeat(LIMITS.head_max_fields + 1)), Some(0));
    assert_eq!((over.violation, over.in_body), (Some(ViolationKind::TooManyFields), true));
}

#[test]
fn a_chunk_line_is_bounded() {
    let line = |length: usize| {
        chunked_with(format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(length - "1;\r\n".len())).as_bytes())
    };
    let ends =
        |bytes: &[u8]| [drive([bytes], None), drive(bytes.chunks(1), None), drive(bytes.chunks(7), None)];
    for seen in ends(&line(CHUNK_LINE_MAX)) {
        assert_eq!((seen.violation, seen.between_messages), (None, true));
    }
    for seen in ends(&line(CHUNK_LINE_MAX + 1)) {
        assert_eq!(seen.violation, Some(ViolationKind::ChunkLineTooLong));
    }
}

#[test]
fn a_few_empty_lines_come_before_a_request_and_not_more() {
    let after_empty_lines = |count: u32| {
        let empty_lines = "\r\n".repeat(usize::try_from(count).unwrap_or_default());
        format!("{empty_lines}GET / HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
    };
    assert_eq!(drive_all_ways(&after_empty_lines(EMPTY_LINES_MAX), None).violation, None);
    let one_too_many = after_empty_lines(EMPTY_LINES_MAX + 1);
    let seen = drive_all_ways(&one_too_many, offending_start(&one_too_many));
    assert_eq!(seen.violation, Some(ViolationKind::TooManyEmptyLines));

    // Counted anew for every request.
    let twice = after_empty_lines(EMPTY_LINES_MAX).repeat(2);
    assert_eq!(drive_all_ways(&twice, None).requests, 2);
}

#[test]
fn a_tls_hello_is_refused_at_its_first_byte() {
    let expected = Violation { kind: ViolationKind::MalformedRequestLine, in_body: false, valid_prefix: 0 };
    assert_eq!(Framing::new(LIMITS).feed(b"\x16"), Err(expected));
}

#[test]
fn every_control_byte_is_refused_in_every_line() {
    for control in (0..0x20_u8).chain([0x7f]).filter(|byte| *byte != b'\t') {
        let at = |template: &str| template.replace('@', &char::from(control).to_string()).into_bytes();
        for bytes in [
            at("GET /@ HTTP/1.1\r\nHost: a\r\n\r\n"),
            at("GET / HTTP/1.1@\r\nHost: a\r\n\r\n"),
            at("GET / HTTP/1.1\r\nHost: a\r\nX@: y\r\n\r\n"),
            at("GET / HTTP/1.1\r\nHost: a\r\nX: y@z\r\n\r\n"),
            at("GET / HTTP/1.1\r\nHost: a\r\nX: y@\r\n\r\n"),
            at("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;@\r\nx\r\n0\r\n\r\n"),
            at("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: @\r\n\r\n"),
        ] {
            let kind = match control {
                b'\n' => ViolationKind::BareLineFeed,
                b'\r' => ViolationKind::BareCarriageReturn,
                _ => ViolationKind::ControlByte,
            };
            assert_eq!(drive_all_ways(&bytes, Some(0)).violation, Some(kind), "{}", bytes.escape_ascii());
        }
    }
}

#[test]
fn a_method_and_a_field_name_are_tokens() {
    for byte in (0x21..=0xff_u8).filter(|byte| *byte != 0x7f) {
        let is_token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let method = [b"G", [byte].as_slice(), b" / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        let expected = (!is_token).then_some(ViolationKind::MalformedRequestLine);
        assert_eq!(drive([method.as_slice()], None).violation, expected, "method with {byte:#x}");

        // A colon ends the name, and what follows it is a value.
        let name = get_with(&[b"X", [byte].as_slice(), b": y\r\n"].concat());
        let expected = (!is_token && byte != b':').then_some(ViolationKind::MalformedFieldLine);
        assert_eq!(drive([name.as_slice()], None).violation, expected, "field name with {byte:#x}");
    }
}

#[test]
fn every_kind_has_a_vector_or_a_limit_test() {
    let in_limit_tests = [
        ViolationKind::HeadTooLarge,
        ViolationKind::TooManyFields,
        ViolationKind::TooManyEmptyLines,
        ViolationKind::ChunkLineTooLong,
    ];
    let kinds: std::collections::HashSet<_> =
        invalid().map(|vector| vector.kind).chain(in_limit_tests).collect();
    assert_eq!(kinds.len(), 26);
    let details: std::collections::HashSet<_> = kinds.iter().map(|kind| kind.detail()).collect();
    assert_eq!(details.len(), kinds.len(), "each kind has a text of its own");
}

#[test]
fn statuses_are_those_of_the_rules() {
    let status_of = |bytes: &[u8]| drive([bytes], None).violation.map(ViolationKind::status);
    assert_eq!(status_of(b"GET / HTTP/2.0\r\n\r\n"), Some(505));
    assert_eq!(status_of(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"), Some(501));
    assert_eq!(status_of(&get_with(b"Transfer-Encoding: JUNK, chunked\r\n")), Some(501));
    assert_eq!(status_of(&get_with(b"Transfer-Encoding: chunked, chunked\r\n")), Some(400));
    assert_eq!(status_of(&get_with(b"Content-Length: 5, 5\r\n")), Some(400));
    assert_eq!(status_of(&get_with(&b"X: y\r\n".repeat(9))), Some(431));
    assert_eq!(status_of(&b"A".repeat(600)), Some(431));
}

/// Pieces of messages, so that random joins reach the deeper states.
const FRAGMENTS: &[&[u8]] = &[
    b"GET / HTTP/1.1\r\n",
    b"POST / HTTP/1.0\r\n",
    b"Host: a\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"X: y\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b"5\r\nhello\r\n",
    b"hello",
    b"0\r\n",
    b"0\r\n\r\n",
    b" ",
    b":",
    b"\0",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
];

fn near_http() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        12 => prop::sample::select(FRAGMENTS).prop_map(<[u8]>::to_vec),
        6 => prop::sample::select(VALID).prop_map(|(_, _, bytes)| bytes.to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    let joined = prop::collection::vec(fragment, 0..12).prop_map(|fragments| fragments.concat());
    // At most one byte is changed, so that most messages stay valid up to there.
    (joined, prop::option::of((any::<prop::sample::Index>(), any::<u8>()))).prop_map(|(mut bytes, change)| {
        if let Some((at, byte)) = change
            && !bytes.is_empty()
        {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

/// The bytes cut at the given places, in order; some pieces may be empty.
fn cut<'a>(bytes: &'a [u8], places: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = places.iter().map(|place| place.index(bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let mut start = 0;
    ends.into_iter()
        .map(|end| {
            let piece = &bytes[start..end];
            start = end;
            piece
        })
        .collect()
}

/// Where the offending message begins, learnt from one feed of everything.
fn offending_start(bytes: &[u8]) -> Option<usize> {
    Framing::new(LIMITS).feed(bytes).err().map(|violation| violation.valid_prefix)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn cutting_never_changes_the_outcome(
        bytes in near_http(),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let start = offending_start(&bytes);
        let whole = drive([bytes.as_slice()], start);
        prop_assert_eq!(drive(cut(&bytes, &places), start), drive(bytes.chunks(1), start));
        prop_assert_eq!(drive(cut(&bytes, &places), start), whole);
    }

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..2048),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let start = offending_start(&bytes);
        prop_assert_eq!(drive(cut(&bytes, &places), start), drive([bytes.as_slice()], start));
    }

    #[test]
    fn random_bytes_in_a_head_or_a_chunked_body_never_panic(
        bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b"\r\n:;0 ".as_slice())],
            0..256,
        ),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        for bytes in [get_with(&bytes), chunked_with(&bytes)] {
            let start = offending_start(&bytes);
            prop_assert_eq!(drive(cut(&bytes, &places), start), drive([bytes.as_slice()], start));
        }
    }

    /// What a valid prefix holds is valid by itself and ends between messages.
    #[test]
    fn a_valid_prefix_is_valid(bytes in near_http()) {
        if let Some(start) = offending_start(&bytes) {
            let seen = drive([&bytes[..start]], None);
            prop_assert_eq!((seen.violation, seen.between_messages), (None, true));
        }
    }
}
