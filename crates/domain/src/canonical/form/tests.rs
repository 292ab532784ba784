//! How the tests read forms: whole, cut anywhere, and against a second parser.

mod naive;
mod neutral;
mod properties;
mod vectors;

use super::{Edit, FileNameRule, Form, FormReader, NotAForm};

/// Reads a body that arrives in pieces that end at `cuts`.
fn read_cut(
    boundary: &[u8],
    body: &[u8],
    rule: FileNameRule,
    cuts: impl IntoIterator<Item = usize>,
) -> Result<Form, NotAForm> {
    let mut reader = FormReader::new(boundary, rule);
    let mut at = 0;
    for cut in cuts {
        let cut = cut.clamp(at, body.len());
        reader.feed(&body[at..cut]);
        at = cut;
    }
    reader.feed(&body[at..]);
    reader.finish()
}

/// Reads a body that arrives in one piece.
fn read_whole(boundary: &[u8], body: &[u8], rule: FileNameRule) -> Result<Form, NotAForm> {
    read_cut(boundary, body, rule, [])
}

/// Reads a body whole, byte by byte, and in two pieces cut at every place, and checks that it makes no difference. A body
/// over 8 KiB is cut at a sample of places.
fn read_every_way(boundary: &[u8], body: &[u8], rule: FileNameRule) -> Result<Form, NotAForm> {
    let whole = read_whole(boundary, body, rule);
    assert_eq!(read_cut(boundary, body, rule, 0..body.len()), whole, "byte by byte");
    for cut in (0..body.len()).step_by(if body.len() > 8192 { 1009 } else { 1 }) {
        assert_eq!(read_cut(boundary, body, rule, [cut]), whole, "cut at {cut}");
    }
    whole
}

/// The body that the edits make.
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

/// The contents of the file parts.
fn file_contents<'b>(form: &Form, body: &'b [u8]) -> Vec<&'b [u8]> {
    form.files.iter().map(|file| &body[file.start as usize..file.end as usize]).collect()
}
