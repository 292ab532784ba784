//! The address of an upstream. Its text is never shown: people write passwords into URLs.

use std::net::Ipv6Addr;

use http::Uri;
use http::uri::Authority;

use super::path;
use crate::problem::{Findings, Place};

/// The URL in its one spelling: scheme and host in lower case, without the scheme's own port and without a slash at its end.
pub(super) fn base_url(text: &str, place: &Place, found: &mut Findings) -> Option<Uri> {
    match parse(text) {
        Ok(uri) => Some(uri),
        Err((cause, cure)) => {
            found.error(place, cause, cure);
            None
        }
    }
}

/// The address by which callers know this gateway, in the same spelling.
pub(super) fn public(text: &str, place: &Place, found: &mut Findings) -> Option<Uri> {
    match parse(text) {
        Ok(uri) => Some(uri),
        Err((cause, cure)) => {
            found.error(place, cause, if (cause, cure) == USER { "remove it" } else { cure });
            None
        }
    }
}

/// A host, perhaps with a port: host in lower case.
pub(super) fn authority(text: &str) -> Result<Authority, Wrong> {
    const FORM: Wrong = ("this is not a host", "write it as in westeurope.api.example or 127.0.0.1:9001");
    if text.contains("://") {
        return Err(("this is a URL", "write the host alone, or HOST:PORT"));
    }
    if text.contains('*') {
        return Err(("hosts are compared exactly; there are no wildcards", "list every host"));
    }
    if text.contains('@') {
        return Err(("a host has no user name or password", "remove it"));
    }
    if text.contains(['/', '?', '#', '\\']) || !text.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
        return Err(FORM);
    }
    let (host, port) = host_and_port(text)?;
    let text = port.map_or(host.clone(), |port| format!("{host}:{port}"));
    text.parse().map_err(|_| FORM)
}

type Wrong = (&'static str, &'static str);

fn parse(text: &str) -> Result<Uri, Wrong> {
    let (scheme, rest) = match text.split_once("://") {
        Some(parts) => parts,
        None if text.parse::<Ipv6Addr>().is_ok() => return Err(BARE_IPV6),
        None => return Err(("the URL has no scheme", "begin with http:// or https://")),
    };
    let scheme = scheme.to_ascii_lowercase();
    if scheme != "http" && scheme != "https" {
        return Err(("the scheme is neither http nor https", "begin with http:// or https://"));
    }
    if rest.contains('\\') || !rest.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
        return Err(("the URL holds blanks or characters that a URL cannot have", FORM));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    if authority.contains('@') {
        return Err(USER);
    }
    if tail.contains(['?', '#']) {
        return Err(("a base URL has no query or fragment", "remove the `?` or `#` and what follows"));
    }
    let (host, port) = host_and_port(authority)?;
    let port = match port {
        Some(80) if scheme == "http" => String::new(),
        Some(443) if scheme == "https" => String::new(),
        Some(port) => format!(":{port}"),
        None => String::new(),
    };
    let prefix = path::prefix(tail)?;
    format!("{scheme}://{host}{port}{prefix}").parse().map_err(|_| ("this is not a URL", FORM))
}

/// The host in lower case, an IPv6 address in brackets; and the port.
fn host_and_port(authority: &str) -> Result<(String, Option<u16>), Wrong> {
    let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
        let (address, after) =
            inner.split_once(']').ok_or(("the bracket is not closed", "write it as in http://[::1]:9001"))?;
        if address.contains('%') {
            return Err(("zone ids are not supported", "use an address without `%`"));
        }
        let address: Ipv6Addr =
            address.parse().map_err(|_| ("there is no IPv6 address in the brackets", FORM))?;
        (
            format!("[{address}]"),
            after
                .strip_prefix(':')
                .or(after.is_empty().then_some(""))
                .ok_or(("only a port may follow the bracket", FORM))?,
        )
    } else if authority.matches(':').count() > 1 {
        return Err(BARE_IPV6);
    } else {
        let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
        if authority.ends_with(':') {
            return Err(("there is no port after the `:`", FORM));
        }
        (host.to_ascii_lowercase(), port)
    };
    if host.is_empty() {
        return Err(("the URL has no host", FORM));
    }
    let name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if !host.starts_with('[') && !host.bytes().all(name) {
        return Err(("the host holds characters that a host name cannot have", FORM));
    }
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    match port.parse::<u16>() {
        _ if port.is_empty() => Ok((host, None)),
        Ok(port) if digits && port > 0 => Ok((host, Some(port))),
        _ => Err(PORT),
    }
}

const FORM: &str = "write it as in http://127.0.0.1:9001";
const USER: Wrong = ("a URL here has no user name or password", "remove it, and give `credential` instead");
const BARE_IPV6: Wrong = ("an IPv6 address in a URL needs brackets", "write it as in http://[::1]:9001");
const PORT: Wrong = ("the port is not a number from 1 to 65535", "write it as in http://127.0.0.1:9001");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling() {
        for (text, same) in [
            ("http://127.0.0.1:9001", "http://127.0.0.1:9001/"),
            ("HTTP://Example.COM:80/", "http://example.com/"),
            ("https://example.com:443/v1/", "https://example.com/v1"),
            ("https://example.com:8443/a%20b/c", "https://example.com:8443/a%20b/c"),
            ("http://[::1]:9001", "http://[::1]:9001/"),
            ("http://[::1]", "http://[::1]/"),
            ("http://[2001:DB8:0::1]/x", "http://[2001:db8::1]/x"),
            ("http://[::ffff:127.0.0.1]:1", "http://[::ffff:127.0.0.1]:1/"),
            ("http://ocr_1.internal", "http://ocr_1.internal/"),
        ] {
            assert_eq!(parse(text).map(|u| u.to_string()), Ok(same.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_no_base_url() {
        for (text, word) in [
            ("127.0.0.1:9001", "scheme"),
            ("localhost", "scheme"),
            ("ftp://a", "scheme"),
            ("::1", "brackets"),
            ("http://::1", "brackets"),
            ("http://fe80::1:9001", "brackets"),
            ("http://[fe80::1%25lo]:9001", "zone ids"),
            ("http://[::1", "not closed"),
            ("http://[x]", "no IPv6 address"),
            ("http://[::1]9001", "may follow the bracket"),
            ("http://user:hunter2@a", "user name"),
            ("http://a?x=1", "query"),
            ("http://a/b#c", "fragment"),
            ("http://", "no host"),
            ("http:///x", "no host"),
            ("http://:80", "no host"),
            ("http://a:0", "port"),
            ("http://a:65536", "port"),
            ("http://a:x", "port"),
            ("http://a:", "port"),
            ("http://a:+80", "port"),
            ("http://a b", "blanks"),
            ("http://a\\b", "blanks"),
            ("http://bücher.example", "blanks"),
            ("http://a^b", "host name"),
            ("http://a/b//c", "empty segments"),
            ("http://a/../b", "segments"),
            ("http://a/%2E%2e/b", "segments"),
            ("http://a/b|c", "a path cannot have"),
            ("", "scheme"),
        ] {
            match parse(text) {
                Err((cause, cure)) => {
                    assert!(cause.contains(word), "{text}: {cause}");
                    assert!(!cause.contains("hunter2") && !cure.contains("hunter2"));
                }
                Ok(uri) => unreachable!("{text} became {uri}"),
            }
        }
    }
}
