//! Profiles decide which refusals are verdicts on the document.
//!
//! The checks that hold for every upstream come first ([`may_be_verdict`]); then the profile of the upstream speaks: by
//! status alone, or by rules that are data ([`Rule`]). Pure, and bounded in time and memory by the length of the answer.

mod body;
mod json;
mod judge;
mod pointer;
mod reduce;
mod request;
mod rule;
mod saved;

use std::sync::Arc;

use http::HeaderMap;

use crate::status::{RefusalStatus, StatusSet};

pub(crate) use body::{Body, decode};
pub use judge::{Explanation, Rules, Terms};
pub use pointer::{NotAPointer, Pointer, Tree};
pub use reduce::reduce;
pub use request::{DocumentSearch, Phase, Reference, ReferenceSearch, RequestFacts};
pub use rule::{
    Class, Condition, Confidence, Dependency, Needle, Remember, Rule, RuleStatus, Source, Test, Wanted,
};
pub use saved::SavedRequest;

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

/// An answer judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// A verdict on the document.
    Verdict(Verdict),
    /// A 200 that is no failed operation.
    Accepted,
    /// Not a verdict, for this reason.
    Not(NotRecorded),
}

/// Why a refusal counts as permanent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rule of the profile that matched.
    pub rule: Arc<str>,
    /// It is remembered for a short time only.
    pub short: bool,
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
        /// A rule of the profile, or the upstream itself, says that it is no verdict.
        Rule "rule",
        /// The request names its input by reference.
        Reference "reference",
        /// Something between the gateway and the service wrote it.
        Intermediary "intermediary",
        /// It depends on more than the key holds.
        Keyed "keyed",
        /// The body cannot be decoded.
        Undecodable "undecodable",
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

/// Tells verdicts from other refusals of one kind of upstream.
#[derive(Debug)]
pub struct Profile {
    name: Arc<str>,
    rules: Option<Box<Rules>>,
}

impl Profile {
    /// The name of the profile without rules.
    pub const STATUS: &'static str = "status";

    /// `profile: status`: every allowed status that passed the checks before is a verdict. The default of document facades.
    #[must_use]
    pub fn status() -> Self {
        Self { name: Self::STATUS.into(), rules: None }
    }

    /// A profile with rules.
    #[must_use]
    pub fn new(name: &str, rules: Rules) -> Self {
        Self { name: name.into(), rules: Some(Box::new(rules)) }
    }

    /// The name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its rules; `None` = it judges by status alone.
    #[must_use]
    pub fn rules(&self) -> Option<&Rules> {
        self.rules.as_deref()
    }

    /// Whether it knows a 200 that is a failed operation.
    #[must_use]
    pub fn judges_200(&self) -> bool {
        self.rules().is_some_and(|rules| !rules.failures.is_empty())
    }

    /// The keys that name a request's input instead of carrying it.
    #[must_use]
    pub fn references(&self) -> &[Box<str>] {
        self.rules().map_or(&[], |rules| &rules.references)
    }

    /// The keys under which a JSON request holds the document in base64.
    #[must_use]
    pub fn documents(&self) -> &[Box<str>] {
        self.rules().map_or(&[], |rules| &rules.documents)
    }

    /// Where its error codes are, most exact first.
    #[must_use]
    pub fn codes(&self) -> &[Pointer] {
        self.rules().map_or(&[], |rules| &rules.codes)
    }

    /// What may be left out of a body that is too long to keep.
    #[must_use]
    pub fn reduce(&self) -> &[Pointer] {
        self.rules().map_or(&[], |rules| &rules.reduce)
    }

    /// What of it is part of the key. `None` where there are no rules that could change.
    #[must_use]
    pub fn revision(&self) -> Option<&[u8; 32]> {
        self.rules().map(|rules| &rules.revision)
    }
}

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
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("Text/HTML; charset=utf-8"));
        let answer = |body| Answer { status: StatusCode::PAYLOAD_TOO_LARGE, headers: &headers, body };
        let doubt = |body| match Profile::status().judge(
            &RequestFacts::default(),
            &answer(body),
            &Terms::default(),
        ) {
            Judgement::Verdict(v) => v.doubt,
            _ => unreachable!(),
        };
        assert_eq!(doubt(b"<html>"), Some(Doubt::Html));
        assert_eq!(doubt(b""), Some(Doubt::Empty));
    }
}
