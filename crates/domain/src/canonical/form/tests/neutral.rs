//! Neutral file names: what is sent is what is keyed.

use super::*;

/// The disposition that goes upstream for this one, or why there is none.
fn rewritten(value: &str) -> Result<String, &'static str> {
    let body = format!("--b\r\nA: b\r\nContent-Disposition:{value}\r\nC: d\r\n\r\nx\r\n--b--\r\n");
    let form = read_every_way(b"b", body.as_bytes(), FileNameRule::Neutral).map_err(|NotAForm(why)| why)?;
    let sent = apply(body.as_bytes(), &form.edits);
    assert_eq!(read_whole(b"b", &sent, FileNameRule::Keyed).map(|f| f.digest), Ok(form.digest));
    let again = read_whole(b"b", &sent, FileNameRule::Neutral);
    assert_eq!(again.map(|f| (f.digest, f.edits)), Ok((form.digest, vec![])));
    let sent = String::from_utf8_lossy(&sent).into_owned();
    let (before, after) = sent.split_once("Content-Disposition:").unwrap_or_default();
    let (value, after) = after.split_once("\r\n").unwrap_or_default();
    assert_eq!((before, after), ("--b\r\nA: b\r\n", "C: d\r\n\r\nx\r\n--b--\r\n"));
    Ok(value.to_owned())
}

#[test]
fn the_extension_alone_is_left() {
    for (value, expected) in [
        (
            " form-data; name=\"f\"; filename=\"tmp81x.pdf\"",
            " form-data; name=\"f\"; filename=\"document.pdf\"",
        ),
        ("form-data; name=f; filename=a.tar.GZ", "form-data; name=f; filename=\"document.gz\""),
        (" form-data; name=f; filename=\"document.pdf\"", " form-data; name=f; filename=\"document.pdf\""),
        (
            " Form-Data ;filename=x.PDF;name=\"a\\\"b\"",
            " form-data; name=\"a\\\"b\"; filename=\"document.pdf\"",
        ),
        (" form-data; name=f; filename=\"scan\"", " form-data; name=f; filename=\"document\""),
        (" form-data; name=f; filename=\"a.b/c\"", " form-data; name=f; filename=\"document\""),
        (" form-data; name=f; filename=\"a.\"", " form-data; name=f; filename=\"document\""),
        (" form-data; name=f; filename=\".pdf\"", " form-data; name=f; filename=\"document.pdf\""),
        (
            " form-data; name=f; filename=\"a.abcdefghij\"",
            " form-data; name=f; filename=\"document.abcdefghij\"",
        ),
        (" form-data; name=f; filename=\"a.abcdefghijk\"", " form-data; name=f; filename=\"document\""),
        (" form-data; name=f; filename=\"a.p\u{e9}f\"", " form-data; name=f; filename=\"document\""),
        (" form-data; name=f; filename=\"a.p\\df\"", " form-data; name=f; filename=\"document\""),
        (
            " form-data; name=f; filename*=UTF-8''%E3%83%95%2Epd%66",
            " form-data; name=f; filename=\"document.pdf\"",
        ),
        (
            " form-data; name=f; filename=a.pdf; filename*=utf-8'en'b.PDF",
            " form-data; name=f; filename=\"document.pdf\"",
        ),
        (
            " form-data; name=f; filename*=ISO-8859-1'de'%E9.pdf",
            " form-data; name=f; filename=\"document.pdf\"",
        ),
        (" form-data; name=f; filename=\"\"", " form-data; name=f; filename=\"\""),
        (" form-data; name=f", " form-data; name=f"),
        (" FORM-DATA;name=f", " FORM-DATA;name=f"),
    ] {
        assert_eq!(rewritten(value).as_deref(), Ok(expected), "{value}");
    }
}

#[test]
fn what_cannot_be_rewritten_without_loss_is_left_alone() {
    let others = "content-disposition with parameters that a neutral one cannot keep";
    for (value, why) in [
        ("form-data; name=f; filename=a.pdf; size=12", others),
        ("form-data; name=f; name*=UTF-8''f", others),
        (
            "form-data; name=f; filename=a.pdf; filename*=UTF-8''a.exe",
            "filename and filename* with different extensions",
        ),
        ("form-data; name=f; filename*=a.pdf", "malformed filename*"),
        ("form-data; name=f; filename*=UTF-16''a.pdf", "malformed filename*"),
        ("form-data; name=f; filename*=UTF-8''%4", "malformed filename*"),
        ("form-data; name=f; filename*=UTF-8''%zz.pdf", "malformed filename*"),
    ] {
        assert_eq!(rewritten(value), Err(why), "{value}");
    }
}

#[test]
fn temporary_names_share_a_digest_and_extensions_do_not() {
    let digest = |name: &str| {
        let body =
            format!("--b\r\nContent-Disposition: form-data; name=f; filename=\"{name}\"\r\n\r\nx\r\n--b--");
        read_whole(b"b", body.as_bytes(), FileNameRule::Neutral).map(|form| form.digest)
    };
    assert_eq!(digest("tmp1.pdf"), digest("tmp2.PDF"));
    assert_ne!(digest("tmp1.pdf"), digest("tmp1.bin"));
    assert_ne!(digest("tmp1.pdf"), digest(""));
}

#[test]
fn an_edit_is_short_whatever_the_name_is() {
    let name = "n".repeat(10_000);
    let body =
        format!("--b\r\nContent-Disposition: form-data; filename=\"{name}.pdf\"; name=a\r\n\r\nx\r\n--b--");
    let form = read_whole(b"b", body.as_bytes(), FileNameRule::Neutral);
    assert!(
        form.is_ok_and(|form| form.edits.len() == 2 && form.edits.iter().all(|edit| edit.insert.len() < 40))
    );
}

#[test]
fn a_header_block_stays_within_its_size() {
    let head = "Content-Disposition: form-data; name=f; filename=a\r\nX: ";
    for (spare, fits) in [(0, false), (8, false), (9, true)] {
        let filler = "x".repeat(16 * 1024 - head.len() - 4 - spare);
        let body = format!("--b\r\n{head}{filler}\r\n\r\nx\r\n--b--");
        assert!(read_whole(b"b", body.as_bytes(), FileNameRule::Keyed).is_ok());
        let form = read_whole(b"b", body.as_bytes(), FileNameRule::Neutral);
        assert_eq!(form.is_ok(), fits, "{spare}");
    }
}
