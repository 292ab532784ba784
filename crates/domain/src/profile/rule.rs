//! A profile's rules: conditions on an answer, and what follows when they hold.

use std::fmt;
use std::sync::Arc;

use super::body::Body;
use super::json::Json;
use super::pointer::{Pointer, Tree};
use super::request::{Phase, RequestFacts};
use crate::status::RefusalStatus;
use http::{HeaderMap, HeaderName};
use memchr::memmem::Finder;

/// Makes a closed list of words from an enum.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The word in profiles and reports.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }

            /// The one with this word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// What a refusal speaks about.
    Class {
        /// The bytes of the document: the same bytes are refused again by the same route.
        Content "content",
        /// Parameters or header fields of the request.
        Request "request",
        /// Credential, account, quota, billing, entitlement or region.
        Caller "caller",
        /// Something that is fetched from elsewhere.
        Reference "reference",
        /// The model, deployment or endpoint, or an intermediary in front of it.
        Route "route",
        /// Time: overload, throttling, an internal fault, an interrupted upload.
        Transient "transient",
        /// The answer does not tell these apart, or depends on a policy that changes.
        Ambiguous "ambiguous",
    }
}

words! {
    /// What is done with a refusal.
    Remember {
        /// It is remembered for the full time.
        Full "full",
        /// It is remembered for `short_ttl_s`.
        Short "short",
        /// It is remembered only where that is switched on and the key holds all that it depends on.
        Keyed "keyed",
        /// It is not remembered.
        Never "never",
    }
}

words! {
    /// What a refusal depends on.
    Dependency {
        /// The bytes sent.
        Body "body",
        /// `Content-Type` and `Content-Encoding` of the request.
        ContentType "content_type",
        /// Parameters in query and body.
        Params "params",
        /// The version of the API.
        ApiVersion "api_version",
        /// Upstream, operation, model or deployment.
        Route "route",
        /// The tier of the upstream account.
        Tier "tier",
        /// Launch flags or build of a self-hosted server or proxy.
        ServerConfig "server_config",
        /// The operator's content filter or access policy.
        Policy "policy",
        /// Credential, account, egress address.
        Caller "caller",
        /// The state of another resource.
        Remote "remote",
        /// The moment.
        Time "time",
    }
}

words! {
    /// How a rule is known.
    Confidence {
        /// From the vendor's documentation, service model or SDK.
        Documented "documented",
        /// From answers that were seen.
        Observed "observed",
        /// By inference.
        Inferred "inferred",
    }
}

/// A status that a rule judges. A railed status cannot be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleStatus {
    /// A 4xx off the rail.
    Refusal(RefusalStatus),
    /// 200, of an operation that failed.
    Failed,
}

impl RuleStatus {
    pub(super) fn is(self, status: http::StatusCode) -> bool {
        match self {
            Self::Refusal(refusal) => refusal.get() == status.as_u16(),
            Self::Failed => status == http::StatusCode::OK,
        }
    }
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name, unique within the profile.
    pub name: Arc<str>,
    /// The statuses it judges.
    pub statuses: Vec<RuleStatus>,
    /// The step it judges; `None` = both.
    pub phase: Option<Phase>,
    /// All of these must hold. Never empty.
    pub when: Vec<Condition>,
    /// What the refusal speaks about.
    pub class: Class,
    /// What is done with it.
    pub remember: Remember,
    /// What it depends on.
    pub depends_on: Vec<Dependency>,
    /// How it is known.
    pub confidence: Confidence,
    /// Where it is known from.
    pub source: Box<str>,
}

/// A condition on an answer.
#[derive(Clone, Debug)]
pub struct Condition {
    /// Where to look.
    pub source: Source,
    /// What must be there.
    pub test: Test,
}

/// Where a condition looks.
#[derive(Clone, Debug)]
pub enum Source {
    /// At a JSON pointer; with `*` at every item.
    At(Pointer),
    /// At the whole body as text.
    Text,
    /// At the codes of all leaves of the Azure error object at a pointer (API guidelines for Azure, "handling errors").
    Leaves(Pointer),
    /// At a header field of the answer.
    Header(HeaderName),
    /// At the name of an AWS error: `x-amzn-errortype`, else `__type` or `code` of the body (Smithy, AWS JSON 1.1).
    AwsError,
    /// At the request's `Content-Type`.
    RequestContentType,
}

/// What a condition wants to see.
#[derive(Clone, Debug)]
pub enum Test {
    /// One of these values, as text.
    Is {
        /// The values.
        wanted: Vec<Wanted>,
        /// Whether ASCII case counts not.
        ignore_case: bool,
    },
    /// A text with one of these in it; ASCII case does not count.
    Contains(Vec<Needle>),
    /// A text that begins with one of these.
    StartsWith {
        /// The beginnings.
        wanted: Vec<Box<str>>,
        /// Whether ASCII case counts not.
        ignore_case: bool,
    },
    /// Nothing, or null.
    Absent,
    /// Anything but null.
    Present,
}

/// A value that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// JSON's null.
    Null,
    /// A text, or a number or truth value written as this text.
    Text(Box<str>),
}

/// A text to search for.
#[derive(Clone, Debug)]
pub struct Needle(Finder<'static>);

impl Needle {
    /// To search for this text, whatever its ASCII case.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Finder::new(&text.to_ascii_lowercase()).into_owned())
    }

    fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.0.needle())
    }
}

/// All that conditions look at.
pub(super) struct Seen<'a> {
    pub(super) request: &'a RequestFacts,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a Body<'a>,
}

/// The deepest chain of inner errors that is followed.
const LEAVES_DEPTH: usize = 16;

impl Condition {
    pub(super) fn holds(&self, seen: &Seen<'_>) -> bool {
        let json = seen.body.json.as_ref();
        match &self.source {
            Source::At(pointer) => json.is_some_and(|json| pointer.all(json, &mut |v| self.test.holds(v))),
            Source::Text => self.test.holds_text(seen.body.text(), Some(seen.body.lower())),
            Source::Leaves(pointer) => json
                .and_then(|json| pointer.first(json))
                .is_some_and(|error| every_leaf(error, LEAVES_DEPTH, &mut |leaf| self.test.holds(leaf))),
            Source::Header(name) => match seen.headers.get(name) {
                Some(value) => self.test.holds_text(value.as_bytes(), None),
                None => self.test.holds(None),
            },
            Source::AwsError => match aws_error(seen.headers, json) {
                Some(name) => self.test.holds_text(name.as_bytes(), None),
                None => self.test.holds(None),
            },
            Source::RequestContentType => match seen.request.content_type.as_deref() {
                Some(value) if !value.is_empty() => self.test.holds_text(value.as_bytes(), None),
                _ => self.test.holds(None),
            },
        }
    }

    /// What is there, for people; shortened.
    pub(super) fn found(&self, seen: &Seen<'_>) -> String {
        let json = seen.body.json.as_ref();
        let text = |bytes: &[u8]| format!("{:?}", String::from_utf8_lossy(bytes));
        let said = match &self.source {
            Source::At(pointer) => json.and_then(|j| pointer.first(j)).map(ToString::to_string),
            Source::Text => Some(text(seen.body.text())),
            Source::Leaves(pointer) => json.and_then(|json| pointer.first(json)).map(|error| {
                let mut leaves = Vec::new();
                every_leaf(error, LEAVES_DEPTH, &mut |leaf| {
                    leaves.push(leaf.map_or("nothing".to_owned(), ToString::to_string));
                    true
                });
                leaves.join(", ")
            }),
            Source::Header(name) => seen.headers.get(name).map(|v| text(v.as_bytes())),
            Source::AwsError => aws_error(seen.headers, json).map(|name| text(name.as_bytes())),
            Source::RequestContentType => seen.request.content_type.as_ref().map(|v| text(v.as_bytes())),
        };
        match said {
            None => "nothing".to_owned(),
            Some(said) if said.chars().count() > 120 => said.chars().take(120).chain("…".chars()).collect(),
            Some(said) => said,
        }
    }
}

/// The name of an AWS error, without namespace and address.
fn aws_error<'a>(headers: &'a HeaderMap, json: Option<&'a Json<'_>>) -> Option<&'a str> {
    let header = headers.get("x-amzn-errortype").and_then(|value| value.to_str().ok());
    let member = |name| json.and_then(|json| json.member(name)).and_then(Json::as_str);
    let whole = header.or_else(|| member("__type")).or_else(|| member("code"))?;
    let name = whole.rsplit('#').next().unwrap_or(whole);
    Some(name.split(':').next().unwrap_or(name).trim())
}

/// Whether `holds` for the codes of all of an error's leaves, of which there is at least one: of the items of `details`, and of
/// the innermost `innererror`; else its own. Asks no further than the first that it does not hold for.
fn every_leaf<'j>(
    error: &'j Json<'j>,
    depth: usize,
    holds: &mut dyn FnMut(Option<&'j Json<'j>>) -> bool,
) -> bool {
    if depth == 0 {
        // so deep that nobody knows: no test for a code holds
        return holds(None);
    }
    let details = error.member("details").map_or(&[][..], Json::items);
    if !details.iter().all(|detail| every_leaf(detail, depth - 1, holds)) {
        return false;
    }
    let inner = error.member("innererror").filter(|inner| {
        ["code", "innererror", "details"].iter().any(|name| inner.member(name).is_some_and(|v| !v.is_null()))
    });
    match inner {
        Some(inner) => every_leaf(inner, depth - 1, holds),
        None => !details.is_empty() || holds(error.member("code")),
    }
}

impl Test {
    fn holds(&self, value: Option<&Json<'_>>) -> bool {
        match value {
            None | Some(Json::Null) => match self {
                Self::Absent => true,
                Self::Is { wanted, .. } => value.is_some() && wanted.contains(&Wanted::Null),
                _ => false,
            },
            Some(Json::Text(text)) => self.holds_text(text.as_bytes(), None),
            Some(Json::Number(number)) => self.holds_text(number.to_string().as_bytes(), None),
            Some(Json::Bool(word)) => self.holds_text(if *word { b"true" } else { b"false" }, None),
            Some(Json::Array(_) | Json::Object(_)) => matches!(self, Self::Present),
        }
    }

    /// `lower` is the text in lower case, where it is at hand.
    fn holds_text(&self, text: &[u8], lower: Option<&[u8]>) -> bool {
        match self {
            Self::Is { wanted, ignore_case } => wanted.iter().any(|wanted| match wanted {
                Wanted::Null => false,
                Wanted::Text(wanted) if *ignore_case => wanted.as_bytes().eq_ignore_ascii_case(text),
                Wanted::Text(wanted) => wanted.as_bytes() == text,
            }),
            Self::Contains(needles) => {
                let own;
                let lower = match lower {
                    Some(lower) => lower,
                    None => {
                        own = text.to_ascii_lowercase();
                        &own
                    }
                };
                needles.iter().any(|needle| needle.0.find(lower).is_some())
            }
            Self::StartsWith { wanted, ignore_case } => wanted.iter().any(|wanted| {
                text.get(..wanted.len()).is_some_and(|begin| match ignore_case {
                    true => begin.eq_ignore_ascii_case(wanted.as_bytes()),
                    false => begin == wanted.as_bytes(),
                })
            }),
            Self::Absent => false,
            Self::Present => true,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::At(pointer) if pointer.as_str().is_empty() => f.write_str("the body")?,
            Source::At(pointer) => write!(f, "{pointer}")?,
            Source::Text => f.write_str("the text")?,
            Source::Leaves(pointer) => write!(f, "every leaf code of {pointer}")?,
            Source::Header(name) => write!(f, "header {name}")?,
            Source::AwsError => f.write_str("the AWS error")?,
            Source::RequestContentType => f.write_str("the request's content type")?,
        }
        let list = |f: &mut fmt::Formatter<'_>, items: &mut dyn Iterator<Item = String>| {
            f.write_str(&items.collect::<Vec<_>>().join(" or "))
        };
        match &self.test {
            Test::Is { wanted, .. } => {
                f.write_str(" is ")?;
                list(
                    f,
                    &mut wanted.iter().map(|wanted| match wanted {
                        Wanted::Null => "null".to_owned(),
                        Wanted::Text(text) => format!("{text:?}"),
                    }),
                )
            }
            Test::Contains(needles) => {
                f.write_str(" contains ")?;
                list(f, &mut needles.iter().map(|needle| format!("{:?}", needle.text())))
            }
            Test::StartsWith { wanted, .. } => {
                f.write_str(" starts with ")?;
                list(f, &mut wanted.iter().map(|text| format!("{text:?}")))
            }
            Test::Absent => f.write_str(" is absent"),
            Test::Present => f.write_str(" is present"),
        }
    }
}
