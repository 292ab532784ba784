//! Bodies as real clients write them, and bodies that parsers disagree on.

use FileNameRule::{Keyed, Neutral};

use super::*;

const CURL: &[u8] = b"--------------------------d74496d66958873e\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.pdf\"\r\nContent-Type: application/pdf\r\n\r\n%PDF-1.7\n%\xe2\xe3\r\n--\r\nbinary\0\r\n--------------------------d74496d66958873e\r\nContent-Disposition: form-data; name=\"lang\"\r\n\r\nen\r\n--------------------------d74496d66958873e--\r\n";
const HTTPX: &[u8] = b"--9f1c0a5f2f0e4a61b0d6a4c7a1b2c3d4\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.pdf\"\r\nContent-Type: application/pdf\r\n\r\n%PDF-1.7\n%\xe2\xe3\r\n--\r\nbinary\0\r\n--9f1c0a5f2f0e4a61b0d6a4c7a1b2c3d4\r\nContent-Disposition: form-data; name=\"lang\"\r\n\r\nen\r\n--9f1c0a5f2f0e4a61b0d6a4c7a1b2c3d4--\r\n";
const REQUESTS: &[u8] = b"--4d7f2b1e\r\nContent-Disposition: form-data; name=\"lang\"\r\n\r\nen\r\n--4d7f2b1e\r\nContent-Disposition: form-data; name=\"file\"; filename=\"\xe3\x83\x95 %22x%22.pdf\"\r\n\r\n%PDF-1.7\r\n--4d7f2b1e--\r\n";
const AIOHTTP: &[u8] = b"--8a7b\r\nContent-Type: application/pdf\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%E3%83%95.pdf\"\r\n\r\n%PDF-1.7\r\n--8a7b--\r\n";
const NODE: &[u8] = b"------formdata-undici-0448128\r\nContent-Disposition: form-data; name=\"file\"; filename=\"\xe3\x83\x95 %22x%22.pdf\"\r\nContent-Type: application/octet-stream\r\n\r\n%PDF-1.7\r\n------formdata-undici-0448128--";

fn form(boundary: &str, body: &[u8]) -> Form {
    match read_every_way(boundary.as_bytes(), body, Keyed) {
        Ok(form) => form,
        Err(why) => unreachable!("{why}: {}", String::from_utf8_lossy(body)),
    }
}

fn refused(boundary: &str, body: &[u8]) -> &'static str {
    match read_every_way(boundary.as_bytes(), body, Keyed) {
        Ok(_) => unreachable!("read as a form: {}", String::from_utf8_lossy(body)),
        Err(NotAForm(why)) => why,
    }
}

/// A form of one part with boundary `b`.
fn one(head: &str, content: &str) -> Vec<u8> {
    format!("--b\r\n{head}\r\n\r\n{content}\r\n--b--\r\n").into_bytes()
}

/// The body with every `from` replaced.
fn replaced(body: &[u8], from: &str, to: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = body;
    while let Some(at) = memchr::memmem::find(rest, from.as_bytes()) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

const FILE: &str = "Content-Disposition: form-data; name=\"file\"; filename=\"a.pdf\"";

#[test]
fn bodies_of_real_clients_are_forms() {
    let document: &[u8] = b"%PDF-1.7\n%\xe2\xe3\r\n--\r\nbinary\0";
    let short: &[u8] = b"%PDF-1.7";
    for (boundary, body, parts, content) in [
        ("------------------------d74496d66958873e", CURL, 2, document),
        ("9f1c0a5f2f0e4a61b0d6a4c7a1b2c3d4", HTTPX, 2, document),
        ("4d7f2b1e", REQUESTS, 2, short),
        ("8a7b", AIOHTTP, 1, short),
        ("----formdata-undici-0448128", NODE, 1, short),
    ] {
        let form = form(boundary, body);
        assert_eq!(form.parts, parts);
        assert_eq!(file_contents(&form, body), [content]);
        assert!(!form.empty);
        assert!(form.edits.is_empty());
    }
}

#[test]
fn clients_that_send_the_same_parts_share_a_digest() {
    let curl = form("------------------------d74496d66958873e", CURL);
    assert_eq!(curl.digest, form("9f1c0a5f2f0e4a61b0d6a4c7a1b2c3d4", HTTPX).digest);
    assert_ne!(curl.digest, form("4d7f2b1e", REQUESTS).digest);
}

#[test]
fn the_recipe_of_version_1_does_not_change_unnoticed() {
    let digest = form("b", &one(FILE, "x")).digest;
    assert_eq!(
        blake3::Hash::from_bytes(digest).to_hex().as_str(),
        "dc95c09f4d16e0928d2b1da7a262dd813a106a15800c142382996cccdf6e4fb6"
    );
}

#[test]
fn boundaries_of_every_kind_and_length_count_for_nothing() {
    let expected = form("b", &one(FILE, "x\r\n--y")).digest;
    let longest = "x".repeat(70);
    for boundary in ["aaaa", "X9f", "bb bb", "-", "--", "'()+_,-./:=?", longest.as_str()] {
        let body = format!("--{boundary}\r\n{FILE}\r\n\r\nx\r\n--y\r\n--{boundary}--\r\n");
        let result = read_every_way(boundary.as_bytes(), body.as_bytes(), Keyed);
        if boundary == "-" || boundary == "--" {
            // `--y` holds no `---`.
            assert_eq!(result.as_ref().map(|f| f.parts), Ok(1));
        }
        assert_eq!(result.map(|f| f.digest), Ok(expected), "{boundary}");
    }
}

#[test]
fn an_impossible_boundary_makes_no_form() {
    let too_long = "x".repeat(71);
    for boundary in ["", " ", "a ", "a;b", "a\"b", "a\r\nb", "\u{e9}", too_long.as_str()] {
        let body = format!("--{boundary}\r\n{FILE}\r\n\r\nx\r\n--{boundary}--\r\n");
        assert_eq!(refused(boundary, body.as_bytes()), "boundary of an impossible form");
    }
}

#[test]
fn empty_forms() {
    let file = one(FILE, "");
    let read = form("b", &file);
    assert!(read.empty);
    assert_eq!(file_contents(&read, &file), [b""]);
    assert!(form("b", b"--b--").empty);
    assert!(form("b", b"--b--\r\n").empty);
    assert_eq!(form("b", b"--b--").parts, 0);
    // A form without a file may be one whose only field is empty on purpose.
    assert!(!form("b", &one("Content-Disposition: form-data; name=a", "")).empty);
    let two = format!("--b\r\n{FILE}\r\n\r\n\r\n--b\r\n{FILE}\r\n\r\nx\r\n--b--");
    assert!(!form("b", two.as_bytes()).empty);
    assert_eq!(refused("b", b""), "no delimiter");
}

#[test]
fn a_thousand_parts() {
    let mut body = Vec::new();
    for i in 0..1000 {
        let head =
            format!("--b\r\nContent-Disposition: form-data; name=\"f{i}\"; filename=\"{i}.bin\"\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(&[0, b'\r', b'\n', b'-', b'-'].repeat(i % 7));
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--b--\r\n");
    let read = form("b", &body);
    assert_eq!(read.parts, 1000);
    assert_eq!(read.files.len(), 1000);
    for (i, content) in file_contents(&read, &body).iter().enumerate() {
        assert_eq!(content.len(), i % 7 * 5);
    }
}

#[test]
fn ten_thousand_parts_and_no_more() {
    let part = "--b\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n";
    let body = part.repeat(10_000) + "--b--";
    assert_eq!(read_whole(b"b", body.as_bytes(), Keyed).map(|f| f.parts), Ok(10_000));
    let body = part.repeat(10_001) + "--b--";
    assert_eq!(read_whole(b"b", body.as_bytes(), Keyed), Err(NotAForm("more than 10000 parts")));
}

#[test]
fn preamble_and_epilogue_are_keyed() {
    let plain = one(FILE, "x");
    let digest = form("b", &plain).digest;
    for (before, after) in
        [("\r\n", ""), ("hello\r\n", ""), ("a\nb\r\n\r\n", ""), ("", "bye"), ("", "\r\n"), ("x\r\n", "y")]
    {
        let body = [before.as_bytes(), &plain, after.as_bytes()].concat();
        let read = form("b", &body);
        assert_ne!(read.digest, digest, "{before:?} {after:?}");
        assert_eq!(file_contents(&read, &body), [b"x"]);
    }
    let bare = plain.strip_suffix(b"\r\n").unwrap_or_default();
    assert_ne!(form("b", bare).digest, digest);
}

#[test]
fn a_nested_form_is_content() {
    let inner = "--inner\r\nContent-Disposition: file; filename=a\r\n\r\nx\r\n--inner--";
    let body =
        one("Content-Disposition: form-data; name=f\r\nContent-Type: multipart/mixed; boundary=inner", inner);
    let read = form("b", &body);
    assert_eq!((read.parts, read.files.len()), (1, 0));
    // Of the same boundary it is not: parsers differ in which parts they see.
    let inside = "boundary elsewhere than in a delimiter line";
    assert_eq!(refused("inner", &replaced(&body, "--b", b"--inner")), inside);
    let late = one(FILE, "x\r\n--b\r\nContent-Disposition: file; filename=a\r\n\r\nx\r\n--b--");
    assert_eq!(refused("b", &late), "content-disposition other than form-data");
    assert_eq!(refused("b", &one(FILE, "x\r\n--b--")), inside);
}

#[test]
fn every_truncation_is_refused() {
    let body = one(FILE, "x\r\n");
    let end = body.len() - 2;
    for cut in 0..body.len() {
        let result = read_whole(b"b", &body[..cut], Keyed);
        assert_eq!(result.is_ok(), cut == end, "cut at {cut}");
    }
}

#[test]
fn what_parsers_disagree_on_is_refused() {
    let good = one(FILE, "x");
    let inside = "boundary elsewhere than in a delimiter line";
    let padded = "delimiter followed by something else than a line end";
    let behind = "close delimiter followed by something else than a line end";
    for (why, body) in [
        ("no delimiter", b"nothing of the kind".to_vec()),
        (padded, replaced(&good, "\r\n", b"\n")),
        ("control byte in a header field of a part", one(&format!("A: b\n{FILE}"), "x")),
        ("control byte in a header field of a part", one(&format!("A: b\r{FILE}"), "x")),
        ("control byte in a header field of a part", one(&format!("{FILE}\0"), "x")),
        ("control byte in a header field of a part", one(&format!("A: \x7f\r\n{FILE}"), "x")),
        (inside, one(FILE, "x\n--b\r\ny")),
        (inside, one(FILE, "x--b")),
        (inside, one(FILE, "--b")),
        (inside, one(&format!("{FILE}\r\nX: --b"), "x")),
        (inside, format!("--b\r\n{FILE}\r\n--b--\r\n\r\n").into_bytes()),
        (inside, format!("--b\r\n{FILE}\r\n\r\n--b--\r\n").into_bytes()),
        (inside, format!("x--b\r\n{FILE}\r\n\r\n\r\n--b--\r\n").into_bytes()),
        (inside, format!("\n--b\r\n{FILE}\r\n\r\n\r\n--b--\r\n").into_bytes()),
        (inside, [good.as_slice(), b"--b\r\n"].concat()),
        (inside, [good.as_slice(), b"\r\nx--b"].concat()),
        (padded, one(FILE, "x\r\n--bX")),
        (padded, one(FILE, "x\r\n--b \r\ny")),
        (padded, one(FILE, "x\r\n--b-\r\ny")),
        (padded, one(FILE, "x\r\n--b\ny")),
        (padded, replaced(&good, "--b\r\n", b"--b \r\n")),
        (behind, replaced(&good, "--b--", b"--b--x")),
        (behind, replaced(&good, "--b--", b"--b-- ")),
        (behind, replaced(&good, "--b--\r\n", b"--b--\n")),
        (behind, replaced(&good, "--b--\r\n", b"--b--\r")),
        ("part without header fields", b"--b\r\n\r\nx\r\n--b--\r\n".to_vec()),
        ("part without content-disposition", one("Content-Type: a/b", "x")),
        ("content-disposition without a name", one("Content-Disposition: form-data; filename=a", "x")),
        ("content-disposition other than form-data", one("Content-Disposition: attachment; name=a", "x")),
        ("content-disposition other than form-data", one("Content-Disposition:", "x")),
        ("malformed header field name in a part", one(&format!("{FILE}\r\n a:b"), "x")),
        ("header line of a part without a colon", one(&format!("{FILE}\r\n folded"), "x")),
        ("malformed header field name in a part", one(&format!("{FILE}\r\n\tfolded: x"), "x")),
        (
            "more blanks around a field value of a part than one in front",
            one(&format!("{FILE}\r\nx-a:{}x", " ".repeat(12_000)), "x"),
        ),
        (
            "more blanks around a field value of a part than one in front",
            one(&format!("{FILE}\r\nx-a:\tx"), "x"),
        ),
        (
            "more blanks around a field value of a part than one in front",
            one(&format!("{FILE}\r\nx-a: x "), "x"),
        ),
        ("malformed header field name in a part", one("Content-Disposition : form-data; name=a", "x")),
        ("malformed header field name in a part", one(&format!(": x\r\n{FILE}"), "x")),
        ("header field twice in a part", one(&format!("{FILE}\r\n{FILE}"), "x")),
        ("header field twice in a part", one(&format!("X: 1\r\n{FILE}\r\nx: 1"), "x")),
        (
            "parameter twice in content-disposition",
            one("Content-Disposition: form-data; name=a; Name=a", "x"),
        ),
        ("parameter twice in content-disposition", one(&format!("{FILE}; filename=x"), "x")),
        ("parameter twice in content-disposition", one(&format!("{FILE}; name=x"), "x")),
    ] {
        assert_eq!(refused("b", &body), why, "{}", String::from_utf8_lossy(&body));
    }
}

#[test]
fn malformed_dispositions_are_refused() {
    for value in [
        "form-data;",
        "form-data; name",
        "form-data; name=",
        "form-data; name=a;",
        "form-data; name=\"a",
        "form-data; name=\"a\\\"",
        "form-data; name=\"a\"b",
        "form-data; name=a b",
        "form-data; name =a",
        "form-data; name= a",
        "form-data; =a; name=b",
        "form-data; name=a, filename=b",
        "form-data; name=a; filename=a/b",
        "form-data; name=a;; filename=b",
    ] {
        let body = one(&format!("Content-Disposition: {value}"), "x");
        assert_eq!(refused("b", &body), "malformed content-disposition", "{value}");
    }
}

#[test]
fn file_names_of_every_kind_are_read() {
    for (value, is_file) in [
        ("form-data; name=a", false),
        ("Form-Data;name=a", false),
        ("form-data ; name=\"a;b\" ; filename=\"c; d\\\" e.pdf\"", true),
        ("form-data; filename=a.pdf; name=\"\"", true),
        ("form-data; name=a; filename=\"\"", true),
        ("form-data; name=a; filename*=UTF-8''%E3%83%95", true),
        ("form-data; name=a; filename=\"x.pdf\"; filename*=UTF-8''%E3%83%95.pdf", true),
        ("form-data; name=a; filename=\"D:\\\\\u{30d5}.jpg\"", true),
        ("form-data; name=a; filename=\"D:\\\u{30d5}.jpg\"", true),
        ("form-data; name=a; filename=\"%22 %0D%0A.pdf\"", true),
        ("form-data; name=a; FileName=x", true),
        ("form-data; name=a; size=12", false),
        ("form-data; name=\"filename=x\"", false),
    ] {
        let body = one(&format!("Content-Disposition: {value}"), "x");
        let read = form("b", &body);
        assert_eq!(file_contents(&read, &body), if is_file { vec![b"x"] } else { vec![] }, "{value}");
    }
    let body =
        replaced(&one("Content-Disposition: form-data; name=a; filename=\"L\"", "x"), "L", b"\xe9\xff");
    assert_eq!(form("b", &body).files.len(), 1);
}

#[test]
fn a_boundary_that_another_begins_with() {
    // Read with the shorter one, the longer one is a delimiter with something behind it; the other way round it is content.
    let inner = one(FILE, "x\r\n--bb\r\ny");
    assert_eq!(refused("b", &inner), "delimiter followed by something else than a line end");
    let outer = format!("--bb\r\n{FILE}\r\n\r\nx\r\n--b\r\ny\r\n--bb--").into_bytes();
    let read = form("bb", &outer);
    assert_eq!(file_contents(&read, &outer), [b"x\r\n--b\r\ny"]);
}

#[test]
fn header_blocks_have_a_size() {
    let fixed = one(&format!("X: \r\n{FILE}"), "").len() - "--b\r\n\r\n--b--\r\n".len();
    let largest = one(&format!("X: {}\r\n{FILE}", "x".repeat(16 * 1024 - fixed)), "");
    assert_eq!(form("b", &largest).parts, 1);
    let larger = one(&format!("X: {}\r\n{FILE}", "x".repeat(16 * 1024 - fixed + 1)), "");
    assert_eq!(refused("b", &larger), "header block of a part over 16 KiB");
    let fields = |n: usize| (1..n).map(|i| format!("X-{i}: y\r\n")).collect::<String>() + FILE;
    assert_eq!(form("b", &one(&fields(32), "")).parts, 1);
    assert_eq!(refused("b", &one(&fields(33), "")), "more than 32 header fields in a part");
}

#[test]
fn nothing_is_kept_of_what_is_not_a_form() {
    let mut reader = FormReader::new(b"b", Neutral);
    reader.feed(&one(FILE, "x"));
    reader.feed(b"--b");
    assert_eq!((reader.files.capacity(), reader.edits.capacity(), reader.held.capacity()), (0, 0, 0));
    reader.feed(&one(FILE, "x"));
    assert!(reader.finish().is_err());
}

#[test]
fn what_is_held_is_the_start_of_a_delimiter_at_most() {
    let mut reader = FormReader::new(b"boundary", Keyed);
    reader.feed(format!("--boundary\r\n{FILE}\r\n\r\n").as_bytes());
    let before = reader.held.capacity();
    for (piece, held) in [
        (b"x".repeat(1 << 20), ""),
        (b"\r".repeat(1 << 20), "\r"),
        (b"\n--bound".to_vec(), "\r\n--bound"),
        (b"xary".to_vec(), ""),
        (b"--".to_vec(), "--"),
        (b"-".to_vec(), "--"),
        (b"\r\r\n".to_vec(), "\r\n"),
    ] {
        reader.feed(&piece);
        assert_eq!(reader.held, held.as_bytes());
    }
    assert!(reader.held.capacity() <= before.max(64));
}
