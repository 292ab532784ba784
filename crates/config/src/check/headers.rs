//! Which header fields a configuration may name, and for what.

use http::HeaderName;

use crate::problem::{Findings, Place};

/// RFC 9110 section 7.6.1 and RFC 9112 section 9.6: they speak of one connection.
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    "http2-settings",
];
const CREDENTIALS: [&str; 5] =
    ["authorization", "api-key", "x-api-key", "ocp-apim-subscription-key", "cookie"];
/// Always part of the key.
const KEYED: [&str; 4] = ["accept", "content-type", "content-encoding", "content-language"];

/// What a header is named for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A client header that goes upstream and is keyed.
    Key,
    /// The credential that the gateway presents.
    Credential,
    /// The header in which a proxy names the tenant.
    Tenant,
}

/// The header of this name, if it may be used so. The text is never shown: a whole credential may stand there by mistake.
pub(super) fn header(text: &str, used: Use, place: &Place, found: &mut Findings) -> Option<HeaderName> {
    let Ok(name) = HeaderName::from_bytes(text.as_bytes()) else {
        let cure = "write the name of a header alone, without `:` and value";
        found.error(place, "this is not the name of a header", cure);
        return None;
    };
    match barred(name.as_str(), used) {
        None => Some(name),
        Some(cause) => {
            let cure = match used {
                Use::Key => "leave it out",
                Use::Credential | Use::Tenant => "use another header",
            };
            found.error(place, format!("`{name}` cannot be used here: {cause}"), cure);
            None
        }
    }
}

fn barred(name: &str, used: Use) -> Option<&'static str> {
    if HOP_BY_HOP.contains(&name) {
        return Some("it speaks of one connection and is not forwarded");
    }
    if ["host", "content-length"].contains(&name) {
        return Some("the gateway writes it itself");
    }
    if name.starts_with("x-negative-cache") || name == "x-gateway-error" {
        return Some("it is a marker of the gateway and is removed from requests");
    }
    if ["traceparent", "tracestate"].contains(&name) {
        return Some("it differs from request to request and the gateway writes it itself");
    }
    match used {
        Use::Credential if KEYED.contains(&name) => Some("it describes the document"),
        Use::Credential => None,
        Use::Key | Use::Tenant if CREDENTIALS.contains(&name) => {
            Some("it carries credentials, which never go upstream")
        }
        Use::Key if KEYED.contains(&name) => Some("it is part of the key anyway"),
        Use::Tenant if KEYED.contains(&name) => Some("it describes the document"),
        Use::Key if name == "accept-encoding" => Some("the gateway always asks for `identity`"),
        Use::Key | Use::Tenant => None,
    }
}
