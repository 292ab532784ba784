//! Profiles decide which refusals are verdicts on the document. The checks that hold for every upstream come first, in the
//! order of [`judge`]; then the profile speaks. One profile exists so far, [`StatusProfile`]; profiles by error code are
//! further implementations of [`Profile`].

mod pointer;
mod reduce;

use http::HeaderMap;

use crate::status::{RefusalStatus, StatusSet};

pub use pointer::{NotAPointer, Pointer};
pub use reduce::reduce;

/// An upstream's complete answer, as far as a judgement may look at it.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status.
    pub status: http::StatusCode,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The whole body.
    pub body: &'a [u8],
}

/// A refusal judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// A verdict on the document.
    Verdict(Verdict),
    /// A 200 that is no failed operation.
    Accepted,
    /// Not a verdict, for this reason.
    Not(NotRecorded),
}

/// Why a refusal counts as permanent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The status, proven to be off the rail.
    pub status: RefusalStatus,
    /// The rule of the profile that matched.
    pub rule: &'static str,
    /// What an operator should know about it.
    pub doubt: Option<Doubt>,
}

/// A verdict that an operator should look at, counted by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// The answer is an HTML page: it may come from a proxy in front of the upstream.
    Html,
    /// The answer has no body.
    Empty,
}

impl Doubt {
    /// The label value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Empty => "empty",
        }
    }
}

macro_rules! labelled {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The label value in `gateway_negative_cache_not_recorded_total{reason}`.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self { $(Self::$variant => $label),* }
            }
        }
    };
}

labelled! {
    /// Why a refusal with an allowed status is not remembered. The closed list behind the `reason` label.
    NotRecorded {
        /// The answer says when to try again.
        RetryAfter "retry_after",
        /// The answer says that it should be retried.
        ShouldRetry "should_retry",
        /// The answer forbids storing it.
        CacheControl "cache_control",
        /// The body is over `max_body_bytes`.
        BodyTooLarge "body_too_large",
        /// The answer was not complete, or not in time.
        Incomplete "incomplete",
        /// The profile does not know this refusal.
        Unclassified "unclassified",
        /// Too few refusals yet.
        Unconfirmed "unconfirmed",
        /// The mass-refusal guard is on.
        Guard "guard",
        /// A forget or an acceptance came in between.
        Fenced "fenced",
        /// The store could not take it.
        Store "store",
        /// A replay field is too large to keep.
        FieldsTooLarge "fields_too_large",
    }
}

/// Tells verdicts from other refusals of one kind of upstream. Pure and table-tested.
pub trait Profile: Send + Sync {
    /// The name in the configuration.
    fn name(&self) -> &'static str;

    /// Whether it knows what a 200 of an operation that failed looks like.
    fn judges_200(&self) -> bool {
        false
    }

    /// What may be left out of a body that is too long to keep.
    fn reduce(&self) -> &[Pointer] {
        &[]
    }

    /// Judges a refusal that passed the checks which hold for every upstream; or a 200, if it [judges](Self::judges_200) them.
    fn judge(&self, status: RefusalStatus, answer: &Answer<'_>) -> Judgement;
}

/// `profile: status`: every allowed status that passed the checks before is a verdict. The default of document facades.
#[derive(Debug)]
pub struct StatusProfile;

impl Profile for StatusProfile {
    fn name(&self) -> &'static str {
        "status"
    }

    fn judge(&self, status: RefusalStatus, answer: &Answer<'_>) -> Judgement {
        let html = answer.headers.get(http::header::CONTENT_TYPE).is_some_and(|v| {
            let value = v.as_bytes();
            value.len() >= 9 && value[..9].eq_ignore_ascii_case(b"text/html")
        });
        let doubt = match (answer.body.is_empty(), html) {
            (true, _) => Some(Doubt::Empty),
            (false, true) => Some(Doubt::Html),
            (false, false) => None,
        };
        Judgement::Verdict(Verdict { status, rule: "status", doubt })
    }
}

/// The profile of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Profile> {
    match name {
        "status" => Some(&StatusProfile),
        _ => None,
    }
}

/// Names of all profiles.
pub const NAMES: &[&str] = &["status"];

/// Whether an answer with this head can become a verdict at all; asked before its body is read. `None` = its status is not
/// one that the operator opted in to, which needs no counting.
#[must_use]
pub fn may_be_verdict(
    statuses: &StatusSet,
    honor_cache_control: bool,
    status: http::StatusCode,
    headers: &HeaderMap,
) -> Option<Result<RefusalStatus, NotRecorded>> {
    let refusal = statuses.get(status)?;
    Some(check_head(honor_cache_control, headers).map(|()| refusal))
}

/// Whether the answer's own words allow to remember it.
///
/// # Errors
/// What forbids it.
pub fn check_head(honor_cache_control: bool, headers: &HeaderMap) -> Result<(), NotRecorded> {
    // RFC 9110 section 15.5.14: a refusal with Retry-After is temporary by its own words; vendors use it on any status
    if headers.contains_key(http::header::RETRY_AFTER)
        || ["retry-after-ms", "x-ms-retry-after-ms"].iter().any(|name| headers.contains_key(*name))
    {
        return Err(NotRecorded::RetryAfter);
    }
    let says = |name: &str, word: &str| {
        headers.get_all(name).iter().any(|v| v.as_bytes().trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    if says("x-should-retry", "true") {
        return Err(NotRecorded::ShouldRetry);
    }
    let forbids = |value: &[u8]| {
        value.split(|b| *b == b',').any(|directive| {
            let name = directive.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii();
            [&b"no-store"[..], b"private"].iter().any(|d| name.eq_ignore_ascii_case(d))
        })
    };
    let control = headers.get_all(http::header::CACHE_CONTROL);
    if honor_cache_control && control.iter().any(|v| forbids(v.as_bytes())) {
        return Err(NotRecorded::CacheControl);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, StatusCode};

    use super::*;

    fn check(name: &'static str, value: &'static str) -> Option<Result<RefusalStatus, NotRecorded>> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        may_be_verdict(&StatusSet::default(), true, StatusCode::BAD_REQUEST, &headers)
    }

    #[test]
    fn what_says_later_is_no_verdict() {
        for value in ["60", "", "soon", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(check("retry-after", value), Some(Err(NotRecorded::RetryAfter)));
        }
        assert_eq!(check("x-should-retry", " True "), Some(Err(NotRecorded::ShouldRetry)));
        assert_eq!(check("cache-control", "max-age=1, No-Store"), Some(Err(NotRecorded::CacheControl)));
        assert_eq!(check("cache-control", "private=\"x\""), Some(Err(NotRecorded::CacheControl)));
        assert!(matches!(check("cache-control", "max-age=60"), Some(Ok(_))));
        assert!(matches!(check("x-should-retry", "false"), Some(Ok(_))));
    }

    #[test]
    fn statuses_outside_the_set_are_not_even_counted() {
        for status in [200, 401, 404, 418, 429, 500, 503] {
            let status = StatusCode::from_u16(status).unwrap_or_default();
            assert_eq!(may_be_verdict(&StatusSet::default(), true, status, &HeaderMap::new()), None);
        }
    }

    #[test]
    fn odd_answers_are_verdicts_of_the_status_profile_with_a_doubt() {
        let status = RefusalStatus::new(413).unwrap_or_else(|e| unreachable!("{e}"));
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("Text/HTML; charset=utf-8"));
        let answer = |body| Answer { status: StatusCode::PAYLOAD_TOO_LARGE, headers: &headers, body };
        let doubt = |body| match StatusProfile.judge(status, &answer(body)) {
            Judgement::Verdict(v) => v.doubt,
            Judgement::Accepted | Judgement::Not(_) => unreachable!(),
        };
        assert_eq!(doubt(b"<html>"), Some(Doubt::Html));
        assert_eq!(doubt(b""), Some(Doubt::Empty));
    }
}
