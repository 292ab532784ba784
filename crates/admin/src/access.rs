//! Who may use the API.
//!
//! With a token, everything under `/admin` needs it, as `Authorization: Bearer`. Without one the listener is bound to
//! loopback, and what is left to fear is a web page in a browser on this machine: a page that posts to it (it sends
//! `Origin`), or one whose name was made to resolve to 127.0.0.1 (it sends a foreign `Host`). Both are refused.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Version};
use nevertwice_domain::tenant::KeyHash;

use crate::problem::{Code, Problem};

/// Failed attempts that are answered 401, per second; the others are answered 429.
const FAILURES_PER_SECOND: f64 = 10.0;

/// The rule of this listener.
pub(crate) struct Access {
    token: Option<KeyHash>,
    bound: IpAddr,
    failures: Bucket,
}

/// What a caller showed, for the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// The token.
    Token,
    /// That it is on this machine.
    Loopback,
    /// Nothing: probes and scrapers.
    Anyone,
}

impl Who {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Loopback => "loopback",
            Self::Anyone => "anyone",
        }
    }
}

impl Access {
    pub(crate) fn new(token: Option<KeyHash>, bound: IpAddr) -> Self {
        Self { token, bound: bound.to_canonical(), failures: Bucket::full() }
    }

    /// Whether this request may go on, and as whom.
    pub(crate) fn admit(&self, head: &Parts) -> Result<Who, Problem> {
        match &self.token {
            None => self.admit_local(head),
            Some(token) if head.uri.path().starts_with("/admin") => self.admit_bearer(token, &head.headers),
            Some(_) => Ok(Who::Anyone),
        }
    }

    fn admit_local(&self, head: &Parts) -> Result<Who, Problem> {
        if head.headers.contains_key(ORIGIN) {
            return Err(Problem::new(
                Code::ForbiddenOrigin,
                "requests of web pages (with `Origin`) are refused",
            ));
        }
        if self.is_addressed(head) {
            return Ok(Who::Loopback);
        }
        let detail =
            "without a token, `Host` has to be localhost or the address that the admin API listens on";
        Err(Problem::new(Code::ForbiddenOrigin, detail))
    }

    /// Whether the request names this listener, and not some name that merely resolves to it.
    fn is_addressed(&self, head: &Parts) -> bool {
        let mut hosts = head.headers.get_all(HOST).iter();
        let named = match (hosts.next(), hosts.next()) {
            // no browser leaves it out, old health checkers do
            (None, _) => head.version == Version::HTTP_10,
            (Some(host), None) => {
                host.to_str().is_ok_and(|text| text.parse().is_ok_and(|host| self.is_own_name(&host)))
            }
            (Some(_), Some(_)) => false,
        };
        named && head.uri.authority().is_none_or(|authority| self.is_own_name(authority))
    }

    fn is_own_name(&self, authority: &Authority) -> bool {
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host();
        let literal = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        match literal.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            Ok(ip) => ip.is_loopback() || ip == self.bound,
            Err(_) => host.eq_ignore_ascii_case("localhost"),
        }
    }

    /// One short answer for whatever is wrong with the credential: no oracle.
    fn admit_bearer(&self, token: &KeyHash, headers: &HeaderMap) -> Result<Who, Problem> {
        if bearer(headers).is_some_and(|shown| KeyHash::of(shown).matches(token)) {
            return Ok(Who::Token);
        }
        if !self.failures.take(Instant::now()) {
            return Err(Problem::new(Code::TooManyFailures, "wait a second"));
        }
        tracing::warn!(target: "nevertwice::audit", "admin request without a valid token refused");
        Err(Problem::new(Code::Unauthenticated, "send the token as `Authorization: Bearer`"))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let value = all.next().map(HeaderValue::as_bytes)?;
    if all.next().is_some() {
        return None;
    }
    let (scheme, shown) = value.split_at_checked(7)?;
    let shown = shown.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !shown.is_empty()).then_some(shown)
}

/// A token bucket.
struct Bucket(Mutex<(f64, Instant)>);

impl Bucket {
    fn full() -> Self {
        Self(Mutex::new((FAILURES_PER_SECOND, Instant::now())))
    }

    fn take(&self, now: Instant) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, last) = *state;
        let refilled = now.saturating_duration_since(last).as_secs_f64() * FAILURES_PER_SECOND;
        let left = (left + refilled).min(FAILURES_PER_SECOND);
        let taken = left >= 1.0;
        *state = (if taken { left - 1.0 } else { left }, now);
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Request;

    use super::*;

    fn head(version: Version, uri: &str, headers: &[(&str, &[u8])]) -> Parts {
        let mut request = Request::builder().version(version).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap_or_else(|e| unreachable!("{e}")).into_parts().0
    }

    fn open() -> Access {
        Access::new(None, IpAddr::from([127, 0, 0, 5]))
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_served() {
        let served = |uri: &str, headers: &[(&str, &[u8])]| {
            open().admit(&head(Version::HTTP_11, uri, headers)).is_ok()
        };
        for host in [
            "localhost",
            "LocalHost:9090",
            "127.0.0.1:9090",
            "127.0.0.5",
            "[::1]:9090",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(served("/readyz", &[("host", host.as_bytes())]), "{host}");
        }
        for host in [
            "evil.test",
            "localhost.evil.test",
            "10.0.0.1",
            "127.0.0.1.nip.io:9090",
            "x@localhost",
            "",
            "a b",
            "[::2]",
        ] {
            assert!(!served("/readyz", &[("host", host.as_bytes())]), "{host}");
        }
        assert!(!served("/readyz", &[]), "HTTP/1.1 has a host");
        assert!(open().admit(&head(Version::HTTP_10, "/readyz", &[])).is_ok());
        assert!(!served("/readyz", &[("host", b"localhost"), ("host", b"localhost")]));
        assert!(!served("http://evil.test/readyz", &[("host", b"localhost")]));
        for origin in [&b"http://evil.test"[..], b"null", b"http://localhost", b""] {
            assert!(!served("/admin/v1/version", &[("host", b"localhost"), ("origin", origin)]));
        }
    }

    #[test]
    fn a_token_is_asked_for_in_one_form_alone() {
        let access = Access::new(Some(KeyHash::of(b"s3cret")), IpAddr::from([0, 0, 0, 0]));
        let admit = |values: &[&[u8]]| {
            let headers: Vec<_> = values.iter().map(|v| ("authorization", *v)).collect();
            access.admit(&head(Version::HTTP_11, "/admin/v1/version", &headers)).map_err(|p| p.code)
        };
        assert_eq!(admit(&[b"Bearer s3cret"]), Ok(Who::Token));
        assert_eq!(admit(&[b"bearer  s3cret"]), Ok(Who::Token));
        let wrong: [&[&[u8]]; 9] = [
            &[],
            &[b""],
            &[b"Bearer"],
            &[b"Bearer "],
            &[b"s3cret"],
            &[b"Basic s3cret"],
            &[b"Bearer s3cre"],
            &[b"Bearer s3cret\xff"],
            &[b"Bearer s3cret", b"Bearer s3cret"],
        ];
        for values in wrong {
            assert_eq!(admit(values), Err(Code::Unauthenticated), "{values:?}");
        }
        let probe = head(Version::HTTP_11, "/healthz", &[]);
        assert!(access.admit(&probe).is_ok(), "probes and scrapers need no token");
    }

    #[test]
    fn failures_are_limited_and_a_right_token_is_not() {
        let access = Access::new(Some(KeyHash::of(b"s3cret")), IpAddr::from([0, 0, 0, 0]));
        let wrong = head(Version::HTTP_11, "/admin", &[("authorization", b"Bearer x")]);
        let codes: Vec<_> = (0..200).filter_map(|_| access.admit(&wrong).err()).map(|p| p.code).collect();
        assert_eq!(codes.len(), 200);
        assert!(codes.contains(&Code::TooManyFailures));
        let right = head(Version::HTTP_11, "/admin", &[("authorization", b"Bearer s3cret")]);
        assert!(access.admit(&right).is_ok());
    }

    #[test]
    fn the_bucket_refills() {
        let bucket = Bucket::full();
        let now = Instant::now();
        assert_eq!((0..100).filter(|_| bucket.take(now)).count(), 10);
        assert_eq!((0..100).filter(|_| bucket.take(now + Duration::from_secs(60))).count(), 10);
        assert_eq!((0..100).filter(|_| bucket.take(now + Duration::from_millis(60_500))).count(), 5);
    }
}
