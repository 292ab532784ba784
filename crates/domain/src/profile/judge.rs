//! The decision: from an answer and what is known of its request to a verdict, rule by rule.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::body::{self, Body, Media, Unreadable};
use super::json::Json;
use super::pointer::{Pointer, Tree};
use super::request::{Phase, Reference, RequestFacts};
use super::rule::{Class, Condition, Dependency, Remember, Rule, Seen};
use super::{Answer, Doubt, Judgement, NotRecorded, Profile, Verdict, check_head};
use crate::status::RefusalStatus;

/// Rules that are data: what a profile's file says, checked.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Whether the service answers with JSON alone, so that anything else comes from something in between.
    pub json_only: bool,
    /// Keys, form fields and query parameters that name the input instead of carrying it.
    pub references: Vec<Box<str>>,
    /// JSON keys whose text is the document in base64: people know it by the digest of its bytes.
    pub documents: Vec<Box<str>>,
    /// Where the service's error codes are, most exact first.
    pub codes: Vec<Pointer>,
    /// What says that a 200 is a failed operation; one of them is enough.
    pub failures: Vec<Condition>,
    /// What may be left out of a body that is too large to keep.
    pub reduce: Vec<Pointer>,
    /// The rules; the first that matches decides.
    pub rules: Vec<Arc<Rule>>,
    /// A digest of the text that they were read from. It is part of the key: changed rules leave old entries behind.
    pub revision: [u8; 32],
}

/// The terms of one upstream, beside its profile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms<'a> {
    /// Whether the upstream's own word on a refusal counts (`X-Refusal-Class`).
    pub trust_refusal_class: bool,
    /// What the key holds, where verdicts that depend on parameters are remembered; `None` = they are not.
    pub keyed: Option<&'a [Dependency]>,
}

/// A judgement with its reasons, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What would be done with it.
    pub remember: Remember,
    /// What it speaks about; `None` = unclassified.
    pub class: Option<Class>,
    /// The rule that decided.
    pub rule: Option<Arc<str>>,
    /// Where that rule is known from.
    pub source: Option<Box<str>>,
    /// Why, in one sentence.
    pub reason: String,
    /// The path taken, a line each.
    pub steps: Vec<String>,
}

/// What was decided, and by what.
pub(super) struct Decision {
    judgement: Judgement,
    class: Option<Class>,
    rule: Option<Arc<Rule>>,
    remember: Remember,
    reason: &'static str,
}

/// Takes the path of a decision down; a judgement on the way of a request has no use for it.
pub(super) trait Trail {
    fn step(&mut self, line: impl FnOnce() -> String);
}

impl Trail for () {
    fn step(&mut self, _: impl FnOnce() -> String) {}
}

impl Trail for Vec<String> {
    fn step(&mut self, line: impl FnOnce() -> String) {
        self.push(line());
    }
}

/// The most lines of a path that are taken down.
const STEPS_MAX: usize = 1000;

fn not(reason: NotRecorded, class: Option<Class>, why: &'static str) -> Decision {
    Decision { judgement: Judgement::Not(reason), class, rule: None, remember: Remember::Never, reason: why }
}

/// Judges by rules.
pub(super) fn decide(
    rules: &Rules,
    request: &RequestFacts,
    answer: &Answer<'_>,
    terms: &Terms<'_>,
    trail: &mut impl Trail,
) -> Decision {
    let failed = answer.status == StatusCode::OK;
    let text = match body::decode(answer.headers, answer.body) {
        Ok(text) => text,
        Err(_) if failed => return accepted("a 200 whose body cannot be read is no failed operation"),
        Err(Unreadable::Coding) => {
            return not(
                NotRecorded::Undecodable,
                None,
                "the body has a content coding that is not known here",
            );
        }
        Err(Unreadable::Broken) => {
            return not(
                NotRecorded::Undecodable,
                None,
                "the body cannot be decoded, or is too long when decoded",
            );
        }
    };
    let body = Body::read(answer.headers, &text);
    let seen = Seen { request, headers: answer.headers, body: &body };
    if failed {
        let shape = rules.failures.iter().find(|shape| shape.holds(&seen));
        match shape {
            None => return accepted("nothing in the body says that the operation failed"),
            Some(shape) => trail.step(|| format!("200 of an operation that failed: {shape}")),
        }
    } else if request.phase == Phase::Poll {
        // never a GET: a refused question says nothing about the document
        let why = "a refusal of the question for an operation's state is not one of its document";
        return not(NotRecorded::Intermediary, None, why);
    }
    if let Some(decision) = intermediary(rules, answer, &body) {
        return decision;
    }
    trail.step(|| "the answer is the service's own".to_owned());
    match &request.reference {
        None => trail.step(|| "the request names no input that lies elsewhere".to_owned()),
        Some(Reference::Named(key)) => {
            trail.step(|| format!("the request names its input: `{key}`"));
            let why = "the request names its input by reference, so its bytes are not what was judged";
            return not(NotRecorded::Reference, Some(Class::Reference), why);
        }
        Some(Reference::Unsure) => {
            let why = "the request could not be read far enough to know that it carries its input";
            return not(NotRecorded::Reference, Some(Class::Reference), why);
        }
    }
    if let Some(decision) = refusal_class(terms, answer.headers).filter(|_| !failed) {
        return decision;
    }
    for rule in &rules.rules {
        if !rule.statuses.iter().any(|status| status.is(answer.status))
            || rule.phase.is_some_and(|phase| phase != request.phase)
        {
            continue;
        }
        match rule.when.iter().find(|condition| !condition.holds(&seen)) {
            Some(broken) => {
                trail.step(|| format!("rule {}: no: {broken}; found {}", rule.name, broken.found(&seen)));
            }
            None => {
                trail.step(|| format!("rule {}: yes", rule.name));
                return by_rule(rule, terms);
            }
        }
    }
    not(NotRecorded::Unclassified, None, "no rule of the profile knows this refusal")
}

fn accepted(why: &'static str) -> Decision {
    Decision {
        judgement: Judgement::Accepted,
        class: None,
        rule: None,
        remember: Remember::Never,
        reason: why,
    }
}

fn by_rule(rule: &Arc<Rule>, terms: &Terms<'_>) -> Decision {
    let (judgement, reason) = match rule.remember {
        Remember::Never => (Judgement::Not(NotRecorded::Rule), "a rule says that this is no verdict"),
        Remember::Keyed
            if !terms.keyed.is_some_and(|held| rule.depends_on.iter().all(|d| held.contains(d))) =>
        {
            let why = "it depends on more than the document: remembered only with `remember_keyed: true`, where the key holds \
                       all that it depends on";
            (Judgement::Not(NotRecorded::Keyed), why)
        }
        remember => {
            let verdict =
                Verdict { rule: Arc::clone(&rule.name), short: remember == Remember::Short, doubt: None };
            let why = match remember {
                Remember::Short => "a rule says that this is a verdict, for a short time",
                Remember::Keyed => "a rule says that this is a verdict on the whole request",
                _ => "a rule says that this is a verdict",
            };
            (Judgement::Verdict(verdict), why)
        }
    };
    Decision {
        judgement,
        class: Some(rule.class),
        rule: Some(Arc::clone(rule)),
        remember: rule.remember,
        reason,
    }
}

/// Whether something between the gateway and the service wrote the answer.
fn intermediary(rules: &Rules, answer: &Answer<'_>, body: &Body<'_>) -> Option<Decision> {
    let route = |why| Some(not(NotRecorded::Intermediary, Some(Class::Route), why));
    if answer.body.trim_ascii().is_empty() {
        return route("the body is empty: something in between answered");
    }
    let media = Media::of(answer.headers);
    if media == Media::Html {
        return route("the answer is an HTML page: something in between answered");
    }
    if rules.json_only
        && (media == Media::Other || !matches!(body.json, Some(Json::Object(_) | Json::Array(_))))
    {
        return route("the service answers with JSON, and this is none: something in between answered");
    }
    let json = body.json.as_ref()?;
    let Json::Object(members) = json else { return None };
    const FRONT: [&str; 2] = ["statusCode", "message"];
    if FRONT.iter().all(|name| json.member(name).is_some())
        && members.iter().all(|(name, _)| FRONT.contains(&name.as_ref()))
    {
        return route("the body is that of Azure API Management, in front of the service");
    }
    let problem = answer.headers.get(http::header::CONTENT_TYPE).is_some_and(|value| {
        value.as_bytes().len() >= 24
            && value.as_bytes()[..24].eq_ignore_ascii_case(b"application/problem+json")
    });
    let kind = json.member("type").and_then(Json::as_str).unwrap_or_default();
    if problem && kind.to_ascii_lowercase().contains("idempotency") {
        return route("the answer is about an idempotency key, not about the document");
    }
    None
}

/// The upstream's own word, where it counts.
fn refusal_class(terms: &Terms<'_>, headers: &HeaderMap) -> Option<Decision> {
    if !terms.trust_refusal_class {
        return None;
    }
    let mut values = headers.get_all("x-refusal-class").iter();
    let (first, more) = (values.next()?, values.next());
    let word = first.to_str().unwrap_or_default().trim().to_ascii_lowercase();
    let class = Class::from_word(&word).filter(|_| more.is_none());
    if class != Some(Class::Content) {
        return Some(not(
            NotRecorded::Rule,
            class,
            "the upstream says that it does not speak about the document",
        ));
    }
    let verdict = Verdict { rule: "x-refusal-class".into(), short: false, doubt: None };
    Some(Decision {
        judgement: Judgement::Verdict(verdict),
        class,
        rule: None,
        remember: Remember::Full,
        reason: "the upstream says that it speaks about the document",
    })
}

/// `profile: status`: every allowed status that passed the checks before is a verdict.
fn by_status(answer: &Answer<'_>, terms: &Terms<'_>) -> Decision {
    if let Some(decision) = refusal_class(terms, answer.headers) {
        return decision;
    }
    let doubt = match (answer.body.is_empty(), Media::of(answer.headers)) {
        (true, _) => Some(Doubt::Empty),
        (false, Media::Html) => Some(Doubt::Html),
        (false, _) => None,
    };
    let verdict = Verdict { rule: "status".into(), short: false, doubt };
    Decision {
        judgement: Judgement::Verdict(verdict),
        class: None,
        rule: None,
        remember: Remember::Full,
        reason: "the profile `status` takes every refusal with an allowed status for a verdict",
    }
}

impl Profile {
    fn decide(
        &self,
        request: &RequestFacts,
        answer: &Answer<'_>,
        terms: &Terms<'_>,
        trail: &mut impl Trail,
    ) -> Decision {
        // the rail holds here too, whatever a profile, the upstream's own word or a caller says
        if answer.status != StatusCode::OK && RefusalStatus::new(answer.status.as_u16()).is_err() {
            return not(NotRecorded::Rule, None, "this status is never a verdict on a document");
        }
        match self.rules() {
            Some(rules) => decide(rules, request, answer, terms, trail),
            None if answer.status == StatusCode::OK => {
                accepted("the profile `status` knows no failed operations")
            }
            None => by_status(answer, terms),
        }
    }

    /// Judges an answer that passed the checks which hold for every upstream ([`may_be_verdict`](super::may_be_verdict)), or
    /// a 200 where [`Profile::judges_200`].
    #[must_use]
    pub fn judge(&self, request: &RequestFacts, answer: &Answer<'_>, terms: &Terms<'_>) -> Judgement {
        self.decide(request, answer, terms, &mut ()).judgement
    }

    /// As [`Profile::judge`], with the checks before it and with the path taken. Any 4xx status off the rail counts as one
    /// that the operator opted in to. What is remembered only where the key allows is told as [`Remember::Keyed`].
    #[must_use]
    pub fn explain(&self, request: &RequestFacts, answer: &Answer<'_>, terms: &Terms<'_>) -> Explanation {
        let mut steps = Vec::new();
        let decision = match before(answer, &mut steps) {
            Some((class, reason)) => {
                return Explanation {
                    remember: Remember::Never,
                    class,
                    rule: None,
                    source: None,
                    reason,
                    steps,
                };
            }
            None => self.decide(request, answer, terms, &mut steps),
        };
        steps.truncate(STEPS_MAX);
        let keyed = matches!(decision.judgement, Judgement::Not(NotRecorded::Keyed));
        let remember = match decision.judgement {
            Judgement::Verdict(_) => decision.remember,
            Judgement::Not(NotRecorded::Keyed) => Remember::Keyed,
            _ => Remember::Never,
        };
        let needs = decision.rule.as_ref().filter(|_| keyed).map(|rule| {
            let needs: Vec<_> = rule.depends_on.iter().map(|d| d.word()).collect();
            format!(" ({})", needs.join(", "))
        });
        Explanation {
            remember,
            class: decision.class,
            rule: match (&decision.rule, &decision.judgement) {
                (Some(rule), _) => Some(Arc::clone(&rule.name)),
                (None, Judgement::Verdict(verdict)) => Some(Arc::clone(&verdict.rule)),
                _ => None,
            },
            source: decision.rule.as_ref().map(|rule| rule.source.clone()),
            reason: format!("{}{}", decision.reason, needs.unwrap_or_default()),
            steps,
        }
    }
}

/// What ends a judgement before any profile speaks.
fn before(answer: &Answer<'_>, steps: &mut Vec<String>) -> Option<(Option<Class>, String)> {
    let status = answer.status;
    if status == StatusCode::OK {
        return None;
    }
    if let Err(never) = RefusalStatus::new(status.as_u16()) {
        let class = match status.as_u16() {
            401 | 403 => Some(Class::Caller),
            404 => Some(Class::Route),
            408 | 429 | 500..=599 => Some(Class::Transient),
            _ => None,
        };
        return Some((class, never.to_string()));
    }
    steps.push(format!("{} is a status that may be remembered", status.as_u16()));
    if let Err(reason) = check_head(true, answer.headers) {
        let why = match reason {
            NotRecorded::RetryAfter => "the answer says when to try again",
            NotRecorded::ShouldRetry => "the answer says that it should be retried",
            _ => "the answer forbids storing it",
        };
        return Some((Some(Class::Transient), why.to_owned()));
    }
    steps.push("nothing in its head speaks of time".to_owned());
    None
}
