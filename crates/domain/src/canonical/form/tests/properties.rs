//! What holds for every form: which changes leave the digest alone, which never do, and that both parsers agree.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

/// A part as a client means it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    name: String,
    file_name: Option<String>,
    /// Of other fields; the names are distinct.
    fields: std::collections::BTreeMap<String, String>,
    content: Vec<u8>,
}

/// A form as a client means it; the strings around it have their line ends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Meant {
    preamble: Vec<u8>,
    parts: Vec<Part>,
    epilogue: Vec<u8>,
}

/// What a client may choose freely.
#[derive(Clone, Debug)]
struct Manner {
    boundary: String,
    upper: Vec<bool>,
    blanks: Vec<&'static str>,
    rotate: Vec<Index>,
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    // Pieces that look like the framing, and no boundary of `manner`.
    let pieces: Vec<&[u8]> =
        vec![b"\r\n", b"\r", b"\n", b"--", b"-", b"a", b"\0", b"\xff", b"Content-Type: x", b"\r\n\r\n"];
    vec(select(pieces), 0..8).prop_map(|pieces| pieces.concat())
}

prop_compose! {
    fn part()(
        name in "[a-z\u{e9} ;]{0,5}", file_name in proptest::option::of("[a-z%\u{e9} .;]{0,8}(\\.[a-zA-Z]{1,4})?"),
        fields in proptest::collection::btree_map("content-type|x-[a-c]", "([!-~\u{e9}]([ -~\u{e9}]{0,6}[!-~])?)?", 0..4),
        content in text(),
    ) -> Part {
        Part { name, file_name, fields, content }
    }
}

prop_compose! {
    fn meant()(before in proptest::option::of(text()), parts in vec(part(), 0..4), after in proptest::option::of(text())) -> Meant {
        let around = |text: Option<Vec<u8>>| text.unwrap_or_default();
        let mut preamble = around(before.clone());
        if before.is_some() {
            preamble.extend_from_slice(b"\r\n");
        }
        let epilogue = after.map(|text| [b"\r\n", text.as_slice()].concat()).unwrap_or_default();
        Meant { preamble, parts, epilogue }
    }
}

prop_compose! {
    fn manner()(
        boundary in "[A-Z0-9'()+_,./:=? -]{0,30}[A-Z0-9]{12}", upper in vec(any::<bool>(), 7),
        blanks in vec(select(vec!["", " "]), 5), rotate in vec(any::<Index>(), 3),
    ) -> Manner {
        Manner { boundary, upper, blanks, rotate }
    }
}

/// The body that a client with this manner writes.
fn write(meant: &Meant, manner: &Manner) -> Vec<u8> {
    let mut out = meant.preamble.clone();
    let mut blanks = manner.blanks.iter().cycle();
    let mut upper = manner.upper.iter().cycle();
    let mut rotate = manner.rotate.iter().cycle();
    for part in &meant.parts {
        out.extend_from_slice(format!("--{}\r\n", manner.boundary).as_bytes());
        let file_name =
            part.file_name.as_ref().map(|name| format!("; filename=\"{name}\"")).unwrap_or_default();
        let mut fields: Vec<(String, String)> = part.fields.clone().into_iter().collect();
        fields.push(("content-disposition".into(), format!("form-data; name=\"{}\"{file_name}", part.name)));
        if let Some(index) = rotate.next() {
            let by = index.index(fields.len());
            fields.rotate_left(by);
        }
        for (name, value) in fields {
            let name: String = name
                .chars()
                .map(|c| if upper.next() == Some(&true) { c.to_ascii_uppercase() } else { c })
                .collect();
            let before = blanks.next().unwrap_or(&"");
            out.extend_from_slice(format!("{name}:{before}{value}\r\n").as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&part.content);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("--{}--", manner.boundary).as_bytes());
    out.extend_from_slice(&meant.epilogue);
    out
}

fn read(meant: &Meant, manner: &Manner) -> Result<Form, NotAForm> {
    read_whole(manner.boundary.as_bytes(), &write(meant, manner), FileNameRule::Keyed)
}

/// One change that an upstream could see, or `None` where there is nothing to change.
fn change(meant: &Meant, kind: u8, at: Index, byte: u8) -> Option<Meant> {
    let mut out = meant.clone();
    if kind == 0 {
        out.preamble.splice(0..0, [byte]);
        if meant.preamble.is_empty() {
            out.preamble.extend_from_slice(b"\r\n");
        }
        return Some(out);
    }
    if kind == 1 {
        if meant.epilogue.is_empty() {
            out.epilogue.extend_from_slice(b"\r\n");
        } else {
            out.epilogue.push(byte);
        }
        return Some(out);
    }
    if meant.parts.is_empty() {
        return None;
    }
    let which = at.index(meant.parts.len());
    let part = &mut out.parts[which];
    match kind {
        2 => part.name.push('x'),
        3 => part.file_name = Some(part.file_name.as_ref().map_or(String::new(), |name| format!("{name}x"))),
        4 => part.file_name = None,
        5 => part.fields.entry("content-type".into()).or_default().push('x'),
        6 => {
            let _ = part.fields.pop_first();
        }
        7 => part.content.insert(at.index(part.content.len() + 1), byte),
        8 if !part.content.is_empty() => {
            let i = at.index(part.content.len());
            part.content[i] ^= byte;
        }
        9 if !part.content.is_empty() => {
            let i = at.index(part.content.len());
            let _ = part.content.remove(i);
        }
        10 => out.parts.swap(0, which),
        11 => {
            let _ = out.parts.remove(which);
        }
        12 => {
            let twin = part.clone();
            out.parts.push(twin);
        }
        _ => return None,
    }
    Some(out)
}

/// Delimiters of the boundary `b`, with a header block or without.
const FRAMING: &[&[u8]] = &[
    b"--b\r\n",
    b"\r\n--b\r\n",
    b"\r\n--b--",
    b"--b--",
    b"--b",
    b"\r\n--b\r\nContent-Disposition: form-data; name=n; filename=f.pdf\r\n\r\n",
    b"--b\r\nContent-Disposition: form-data; name=n\r\n\r\n",
    b"--b\r\nContent-Disposition: form-data; filename=\"a.\\\"b\"; name=n\r\nX: y\r\n\r\n",
];

/// What stands in lines, and what ends them.
const NOISE: &[&[u8]] = &[
    b"--",
    b"-",
    b"b",
    b"\r\n",
    b"\r",
    b"\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b"\0",
    b"x",
    b"X: y\r\n",
    b"z:\r\n",
    b"Content-Disposition: form-data; name=\"n\"",
    b"content-disposition:form-data;name=n",
];

/// What follows the type of a disposition.
const PARAMETERS: &[&[u8]] = &[
    b"; name=n",
    b";name=\"a\\\"b\"",
    b"; filename=\"f.PDF\"",
    b"; FileName=a.tar",
    b"; filename=\"\"",
    b"; filename=\"",
    b"; filename*=UTF-8''%2epdf",
    b"; filename*=utf-8'en'a.tar",
    b"; filename*=iso-8859-1''a'.%70d%66",
    b"; filename*=\"utf-8''f.pdf\"",
    b"; size=1",
    b";",
    b"=",
    b" ",
    b"\t",
    b"x",
    b".txt",
    b"\xe9",
    b"\\",
    b"\"",
    b"%",
    b"'",
];

fn any_of(lists: &[&[&'static [u8]]], most: usize) -> impl Strategy<Value = Vec<u8>> + use<> {
    vec(select(lists.concat()), 0..most).prop_map(|pieces| pieces.concat())
}

const FRAME: &str = "--b\r\nContent-Disposition: form-data; name=\"n\"; filename=\"f.pdf\"\r\nX: y\r\n\r\nx\r\n--b\r\ncontent-disposition:form-data;name=n\r\n\r\n\r\n--b--\r\n";

/// A small form with something amiss in up to two places.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let amiss = prop_oneof![4 => any_of(&[NOISE, PARAMETERS], 4), 1 => any_of(&[FRAMING], 2)];
    vec((amiss, 0..=FRAME.len(), prop_oneof![Just(0), 0..6usize]), 0..3).prop_map(|places| {
        let mut out = FRAME.as_bytes().to_vec();
        for (amiss, at, remove) in places {
            let at = at.min(out.len());
            let end = (at + remove).min(out.len());
            out.splice(at..end, amiss);
        }
        out
    })
}

fn both_parsers_agree(body: &[u8], cuts: &[usize]) -> Result<(), TestCaseError> {
    for rule in [FileNameRule::Keyed, FileNameRule::Neutral] {
        let whole = read_whole(b"b", body, rule);
        prop_assert_eq!(&read_cut(b"b", body, rule, 0..body.len()), &whole);
        prop_assert_eq!(&read_cut(b"b", body, rule, cuts.iter().copied()), &whole);
        let other = naive::parse("b", body, rule);
        prop_assert_eq!(whole.is_ok(), other.is_some(), "{:?}", whole);
        let (Ok(form), Some(other)) = (whole, other) else { continue };
        prop_assert_eq!(form.digest, other.digest);
        prop_assert_eq!(form.parts as usize, other.parts);
        prop_assert_eq!(file_contents(&form, body), other.file_contents);
        prop_assert_eq!(form.empty, other.empty);
        let sent = apply(body, &form.edits);
        prop_assert_eq!(read_whole(b"b", &sent, FileNameRule::Keyed).map(|f| f.digest), Ok(form.digest));
        let again = read_whole(b"b", &sent, FileNameRule::Neutral);
        if rule == FileNameRule::Neutral {
            prop_assert_eq!(again.map(|f| (f.digest, f.edits)), Ok((form.digest, vec![])));
        } else {
            prop_assert!(form.edits.is_empty());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_manner_of_writing_counts_for_nothing(meant in meant(), one in manner(), other in manner()) {
        let (one, other) = (read(&meant, &one), read(&meant, &other));
        prop_assert!(one.is_ok(), "{:?}", one);
        prop_assert_eq!(one.map(|form| (form.digest, form.parts)), other.map(|form| (form.digest, form.parts)));
    }

    #[test]
    fn a_form_says_what_was_meant(meant in meant(), manner in manner()) {
        let body = write(&meant, &manner);
        let form = read_whole(manner.boundary.as_bytes(), &body, FileNameRule::Keyed);
        prop_assert!(form.is_ok(), "{:?}", form);
        if let Ok(form) = form {
            let files: Vec<&[u8]> =
                meant.parts.iter().filter(|p| p.file_name.is_some()).map(|p| p.content.as_slice()).collect();
            prop_assert_eq!(file_contents(&form, &body), files);
            prop_assert_eq!(form.parts as usize, meant.parts.len());
        }
    }

    #[test]
    fn any_change_that_an_upstream_could_see_changes_the_digest(
        meant in meant(), one in manner(), other in manner(), kind in 0..13u8, at in any::<Index>(), byte in any::<u8>(),
    ) {
        if let Some(changed) = change(&meant, kind, at, byte) {
            let (before, after) = (read(&meant, &one), read(&changed, &other));
            prop_assert!(before.is_ok() && after.is_ok(), "{:?} {:?}", before, after);
            let equal = before.map(|form| form.digest) == after.map(|form| form.digest);
            prop_assert_eq!(equal, meant == changed);
        }
    }

    #[test]
    fn two_forms_share_a_digest_only_if_they_mean_the_same(a in meant(), b in meant(), one in manner(), other in manner()) {
        let equal = read(&a, &one).map(|form| form.digest) == read(&b, &other).map(|form| form.digest);
        prop_assert_eq!(equal, a == b);
    }

    #[test]
    fn where_the_pieces_end_counts_for_nothing(
        meant in meant(), manner in manner(), neutral in any::<bool>(), cuts in vec(any::<Index>(), 0..6),
    ) {
        let body = write(&meant, &manner);
        let rule = if neutral { FileNameRule::Neutral } else { FileNameRule::Keyed };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len())).collect();
        cuts.sort_unstable();
        let boundary = manner.boundary.as_bytes();
        prop_assert_eq!(read_cut(boundary, &body, rule, cuts), read_whole(boundary, &body, rule));
    }

    #[test]
    fn the_rewritten_body_is_what_was_keyed(meant in meant(), manner in manner()) {
        let body = write(&meant, &manner);
        let boundary = manner.boundary.as_bytes();
        let form = read_whole(boundary, &body, FileNameRule::Neutral);
        prop_assert!(form.is_ok(), "{:?}", form);
        if let Ok(form) = form {
            let sent = apply(&body, &form.edits);
            let keyed = read_whole(boundary, &sent, FileNameRule::Keyed);
            prop_assert_eq!(keyed.map(|f| f.digest), Ok(form.digest));
            let again = read_whole(boundary, &sent, FileNameRule::Neutral);
            prop_assert_eq!(again.map(|f| (f.digest, f.edits)), Ok((form.digest, vec![])));
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(boundary in vec(any::<u8>(), 0..75), pieces in vec(vec(any::<u8>(), 0..90), 0..6)) {
        let mut reader = FormReader::new(&boundary, FileNameRule::Neutral);
        for piece in &pieces {
            reader.feed(piece);
        }
        let _ = reader.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn both_parsers_agree_on_bodies(body in any_of(&[FRAMING, FRAMING, NOISE, PARAMETERS], 8), cuts in vec(0..200usize, 0..4)) {
        both_parsers_agree(&body, &cuts)?;
    }

    #[test]
    fn both_parsers_agree_on_nearly_forms(body in nearly(), cuts in vec(0..200usize, 0..4)) {
        both_parsers_agree(&body, &cuts)?;
    }

    #[test]
    fn both_parsers_agree_on_dispositions(rest in any_of(&[PARAMETERS], 6), named in any::<bool>()) {
        let name = if named { "; name=f" } else { "" };
        let head = format!("--b\r\nContent-Disposition: form-data{name}");
        let body = [head.as_bytes(), &rest, b"\r\n\r\nx\r\n--b--"].concat();
        both_parsers_agree(&body, &[])?;
    }
}
