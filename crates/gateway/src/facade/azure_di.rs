//! The wire of Azure AI Document Intelligence, v2.1 to v4.0: a submit is answered with the address of an operation, which is polled.
//!
//! Addresses that callers get lead to the gateway, and the ids in them are its own; so a poll works at any replica of the gateway and
//! reaches the server that has the operation, and nobody's key is ever sent anywhere else.

use std::net::IpAddr;

use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Method, header};
use nevertwice_domain::operation::{OperationId, path};

use crate::Shared;
use crate::exchange::connection::Caller;

/// `Operation-Location`.
pub(crate) static OPERATION_LOCATION: HeaderName = HeaderName::from_static("operation-location");

static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What a request of this wire is about.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    /// It carries a document.
    Submit,
    /// It names an operation.
    Operation {
        /// `None` = it has no id that the gateway gives.
        id: Option<OperationId>,
        /// What of the operation is asked for: empty, or a sub-resource.
        rest: String,
    },
    /// Neither: models, and what else there is.
    Else,
}

impl Asked {
    /// `path` is the upstream's, in whatever spelling.
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        let read = path::as_read(path);
        if *method == Method::POST && path::is_submit(&read) {
            return Self::Submit;
        }
        let reads = [Method::GET, Method::HEAD, Method::DELETE].contains(method);
        let Some(told) = path::named(&read).filter(|_| reads) else { return Self::Else };
        // an operation has one spelling here; what comes behind it goes up as it is written
        match path::named(path).filter(|written| written.id == told.id) {
            Some(written) => Self::Operation { id: written.id.parse().ok(), rest: written.rest.to_owned() },
            None => Self::Operation { id: None, rest: String::new() },
        }
    }
}

/// Scheme, authority and path in front of the mounts, by which this caller reaches the gateway, without a trailing slash: what is
/// configured, else what the caller itself has written into its request, or what a proxy says that is trusted to.
pub(crate) fn origin(gateway: &Shared, head: &Parts, caller: Option<Caller>) -> Option<String> {
    if let Some(base) = &gateway.public_base_url {
        return Some(base.to_string().trim_end_matches('/').to_owned());
    }
    let trusted = caller.is_some_and(|caller| {
        let addr: IpAddr = caller.addr.ip().to_canonical();
        gateway.trusted_hops.iter().any(|hop| hop.contains(&addr))
    });
    let said = |name| if trusted { last(&head.headers, name) } else { None };
    let host = said(&FORWARDED_HOST)
        .or_else(|| head.headers.get(header::HOST).and_then(|host| host.to_str().ok()))
        .or_else(|| head.uri.authority().map(Authority::as_str))?;
    let host = host.parse::<Authority>().ok().filter(|host| !host.as_str().contains('@'))?;
    let scheme = match said(&FORWARDED_PROTO) {
        Some(scheme) if scheme.eq_ignore_ascii_case("https") => "https",
        Some(scheme) if scheme.eq_ignore_ascii_case("http") => "http",
        _ if caller.is_some_and(|caller| caller.tls) => "https",
        _ => "http",
    };
    Some(format!("{scheme}://{host}"))
}

/// The last value of a list: what the proxy that is connected has seen itself.
fn last<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let line = headers.get_all(name).iter().next_back()?.to_str().ok()?;
    line.rsplit(',').next().map(str::trim).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_by_method_and_path() {
        let id = OperationId::from_random([3; 16]);
        let path = format!("/documentintelligence/documentModels/m/analyzeResults/{id}");
        let asked = |method: Method, path: &str| Asked::of(&method, path);
        assert!(matches!(
            asked(Method::POST, "/documentintelligence/documentModels/m:analyze"),
            Asked::Submit
        ));
        assert!(matches!(asked(Method::POST, "/d/documentModels/m:analyzeBatch"), Asked::Else));
        assert!(matches!(asked(Method::GET, "/d/documentModels/m:analyze"), Asked::Else));
        assert!(matches!(asked(Method::POST, &path), Asked::Else));
        for method in [Method::GET, Method::HEAD, Method::DELETE] {
            let Asked::Operation { id: Some(found), rest } = asked(method, &format!("{path}/pdf")) else {
                unreachable!()
            };
            assert_eq!((found, rest.as_str()), (id, "/pdf"));
        }
        assert!(matches!(asked(Method::GET, "/d/analyzeResults/7f"), Asked::Operation { id: None, .. }));
    }

    #[test]
    fn of_a_list_the_nearest_proxy_s_word_counts() {
        let mut headers = HeaderMap::new();
        assert_eq!(last(&headers, &FORWARDED_HOST), None);
        headers.append(&FORWARDED_HOST, "a.test, b.test".parse().unwrap_or_else(|_| unreachable!()));
        assert_eq!(last(&headers, &FORWARDED_HOST), Some("b.test"));
        headers.append(&FORWARDED_HOST, "c.test".parse().unwrap_or_else(|_| unreachable!()));
        assert_eq!(last(&headers, &FORWARDED_HOST), Some("c.test"));
    }
}
