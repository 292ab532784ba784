//! The form reader: how a body is cut, and which boundary it has, counts for nothing; what is sent is what is keyed.
//!
//! The first byte of the input picks how the body is cut, the rest is the body. Its boundary is what its first line says.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nevertwice_domain::canonical::form::{Edit, FileNameRule, Form, FormReader, NotAForm};

fn read(boundary: &[u8], body: &[u8], rule: FileNameRule, piece: usize) -> Result<Form, NotAForm> {
    let mut reader = FormReader::new(boundary, rule);
    for piece in body.chunks(piece.max(1)) {
        reader.feed(piece);
    }
    reader.finish()
}

fn apply(body: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    for edit in edits {
        let start = edit.at as usize;
        assert!(at <= start, "edits rise and do not overlap");
        out.extend_from_slice(&body[at..start]);
        out.extend_from_slice(&edit.insert);
        at = start + edit.remove as usize;
    }
    out.extend_from_slice(&body[at..]);
    out
}

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

fn replaced(body: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = body;
    while let Some(at) = find(rest, from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, body)) = data.split_first() else { return };
    let line = body.split(|b| *b == b'\r').next().unwrap_or_default();
    let boundary = line.strip_prefix(b"--").filter(|b| !b.is_empty()).unwrap_or(b"b");
    for rule in [FileNameRule::Keyed, FileNameRule::Neutral] {
        let whole = read(boundary, body, rule, body.len());
        assert_eq!(read(boundary, body, rule, usize::from(piece)), whole);
        let Ok(form) = whole else { continue };

        assert!(form.files.len() <= form.parts as usize);
        assert!(form.files.iter().all(|file| file.start <= file.end && file.end <= body.len() as u64));
        assert!(form.files.windows(2).all(|pair| pair[0].end < pair[1].start));

        let other = b"another-boundary";
        if find(body, other).is_none() {
            let renamed = replaced(body, &[b"--", boundary].concat(), &[b"--", other.as_slice()].concat());
            assert_eq!(read(other, &renamed, rule, renamed.len()).map(|f| f.digest), Ok(form.digest));
        }

        let sent = apply(body, &form.edits);
        assert_eq!(read(boundary, &sent, FileNameRule::Keyed, sent.len()).map(|f| f.digest), Ok(form.digest));
        match rule {
            FileNameRule::Keyed => assert!(form.edits.is_empty()),
            FileNameRule::Neutral => assert_eq!(
                read(boundary, &sent, rule, sent.len()).map(|f| (f.digest, f.edits)),
                Ok((form.digest, vec![]))
            ),
        }
    }
});
