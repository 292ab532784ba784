//! Paths: mounts, which tenants see, and the paths of an upstream.

use crate::problem::{Findings, Place};

/// A path character of RFC 3986 section 3.3 that stands for itself.
fn plain(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&b)
}

/// The mount without its trailing slash: `/` becomes the empty text.
pub(super) fn mount(text: &str, place: &Place, found: &mut Findings) -> Option<String> {
    if text == "/" {
        return Some(String::new());
    }
    let (cause, cure) = if !text.starts_with('/') {
        ("a mount begins with `/`", "write it as in /ocr")
    } else if text.ends_with('/') {
        ("a mount has no `/` at its end", "remove the last `/`")
    } else if text.contains(['%', '?', '#']) {
        ("a mount has no `%`, `?` or `#`", "use plain letters and digits")
    } else if let Some(cause) = bad_segments(text) {
        (cause, "use plain letters and digits between the `/`")
    } else if !text.bytes().all(|b| plain(b) || b == b'/') {
        ("the mount holds characters that a path cannot have", "use plain letters and digits")
    } else {
        return Some(text.to_owned());
    };
    found.error(place, cause, cure);
    None
}

/// A path as the upstream knows it.
pub(super) fn upstream_path(text: &str, place: &Place, found: &mut Findings) -> Option<String> {
    let (cause, cure) = if !text.starts_with('/') {
        ("a path begins with `/`", "write it as in /classify")
    } else if text.contains(['?', '#']) {
        ("a path is compared without query and fragment", "remove the `?` or `#` and what follows")
    } else if text.contains('*') {
        ("paths are compared exactly; there are no wildcards", "list every path")
    } else if dotted(text) {
        ("a path has no `.` or `..` segments", "write the path that the upstream sees")
    } else if !text.bytes().all(|b| plain(b) || b"/%".contains(&b)) {
        ("the path holds characters that a path cannot have", "write it percent-encoded, as clients send it")
    } else {
        return Some(text.to_owned());
    };
    found.error(place, cause, cure);
    None
}

/// The path prefix of a base URL, without slashes at its end.
pub(super) fn prefix(text: &str) -> Result<&str, (&'static str, &'static str)> {
    let prefix = text.trim_end_matches('/');
    match bad_segments(prefix) {
        Some(cause) => Err((cause, "write the path that the upstream sees")),
        None if prefix.bytes().all(|b| plain(b) || b"/%".contains(&b)) => Ok(prefix),
        None => Err(("the path holds characters that a path cannot have", "write it percent-encoded")),
    }
}

fn dotted(path: &str) -> bool {
    path.split('/').any(|segment| {
        let segment = segment.to_ascii_lowercase().replace("%2e", ".");
        segment == "." || segment == ".."
    })
}

fn bad_segments(path: &str) -> Option<&'static str> {
    if dotted(path) {
        Some("a path has no `.` or `..` segments")
    } else if path.contains("//") {
        Some("a path has no empty segments")
    } else {
        None
    }
}
