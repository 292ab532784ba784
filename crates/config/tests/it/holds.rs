//! What holds for every judgement and for every profile, whatever is in them. Asked by the tests beside this file, and by the fuzz
//! targets `judge` and `profile_file`.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use nevertwice_config::profiles::from_text;
use nevertwice_domain::profile::{
    Answer, Class, Dependency, Judgement, NotRecorded, Phase, Profile, Remember, Rule, SavedRequest, Source,
    Terms, Test, Wanted,
};
use serde_json::{Map, Value};

/// Statuses that are never verdicts, with some that the rules say nothing of.
const NEVER: [u16; 16] = [100, 201, 202, 204, 301, 304, 401, 403, 404, 408, 429, 500, 502, 503, 529, 599];
/// The most lines of an explanation, and the most characters of one.
const STEPS_MAX: usize = 1000;
const LINE_MAX: usize = 200_000;

/// A request and its answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said<'a> {
    /// The answer's status.
    pub status: u16,
    /// The answer's header fields; those that cannot be are left out.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The answer's body.
    pub body: &'a [u8],
    /// The request's path and query.
    pub path: &'a str,
    /// The request's content type.
    pub request_type: &'a str,
    /// The request's body.
    pub request: &'a [u8],
}

fn is_rail(status: u16) -> bool {
    !(400..500).contains(&status) || [401, 403, 404, 408, 429].contains(&status)
}

/// Judges it in every way there is.
pub fn judged(profile: &Profile, said: &Said<'_>) {
    let Ok(status) = StatusCode::from_u16(said.status) else { return };
    let field = |(name, value): &(&str, &[u8])| {
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(value).ok()?))
    };
    let headers: HeaderMap = said.headers.iter().filter_map(field).collect();
    let answer = Answer { status, headers: &headers, body: said.body };
    let request = SavedRequest {
        path: Some(said.path),
        content_type: Some(said.request_type),
        body: Some(said.request),
    };
    for phase in [Phase::Submit, Phase::Poll] {
        let facts = request.facts(phase, profile);
        for trust_refusal_class in [false, true] {
            for keyed in [None, Some(Dependency::ALL)] {
                let terms = Terms { trust_refusal_class, keyed };
                let judged = profile.judge(&facts, &answer, &terms);
                let explained = profile.explain(&facts, &answer, &terms);
                match &judged {
                    Judgement::Verdict(verdict) => {
                        let failed = said.status == 200 && profile.judges_200();
                        assert!(failed || !is_rail(said.status), "{verdict:?} of {}", said.status);
                        assert!(
                            facts.reference.is_none() || profile.rules().is_none(),
                            "{verdict:?} of {facts:?}"
                        );
                        assert!(is_rule(profile, &verdict.rule), "{verdict:?}");
                    }
                    Judgement::Accepted => assert_eq!(said.status, 200),
                    Judgement::Not(_) => {}
                }
                // what people are told is what is done
                match explained.remember {
                    Remember::Never => {}
                    Remember::Keyed if keyed.is_none() => {
                        assert_eq!(judged, Judgement::Not(NotRecorded::Keyed));
                    }
                    _ => assert!(matches!(judged, Judgement::Verdict(_)), "{explained:?} {judged:?}"),
                }
                assert!(explained.steps.len() <= STEPS_MAX);
                assert!(explained.steps.iter().all(|line| line.len() <= LINE_MAX));
            }
        }
    }
}

fn is_rule(profile: &Profile, name: &str) -> bool {
    let own =
        profile.rules().map_or(name == Profile::STATUS, |rules| rules.rules.iter().any(|r| *r.name == *name));
    own || name == "x-refusal-class"
}

/// Reads a profile from a text, and judges by it what its rules wait for under statuses that no rule may have. Whether it loads.
pub fn profile_read(text: &str, body: &[u8]) -> bool {
    let profile = match from_text(text, "fuzz.yaml") {
        Ok(profile) => profile,
        Err(problems) => {
            assert!(problems.errors() > 0 && !problems.to_string().is_empty());
            return false;
        }
    };
    let json: (&str, &[u8]) = ("content-type", b"application/json");
    let class: (&str, &[u8]) = ("x-refusal-class", b"content");
    let headers = [json, class];
    let judge = |status, body: &[u8]| {
        judged(&profile, &Said { status, headers: &headers, body, path: "/read", ..Said::default() });
    };
    for status in NEVER.into_iter().chain([200, 400]) {
        judge(status, body);
    }
    for rule in profile.rules().iter().flat_map(|rules| &rules.rules) {
        let remembers = matches!(rule.remember, Remember::Full | Remember::Short);
        assert!(!remembers || rule.class == Class::Content, "{rule:?}");
        let wanted = awaited(rule).to_string();
        for status in NEVER {
            judge(status, wanted.as_bytes());
        }
    }
    true
}

/// A body for which the conditions of a rule hold, as far as they look at the body for a text that begins with something.
pub fn awaited(rule: &Rule) -> Value {
    let mut body = Value::Object(Map::new());
    for condition in &rule.when {
        let value = match &condition.test {
            Test::Is { wanted, .. } => match wanted.first() {
                Some(Wanted::Text(text)) => Value::from(&**text),
                _ => Value::Null,
            },
            Test::StartsWith { wanted, .. } => {
                wanted.first().map_or(Value::Null, |text| Value::from(&**text))
            }
            Test::Present => Value::from("x"),
            Test::Contains(_) | Test::Absent => continue,
        };
        match &condition.source {
            Source::At(pointer) => put(&mut body, pointer.as_str(), value),
            Source::Leaves(pointer) => put(&mut body, &format!("{}/code", pointer.as_str()), value),
            Source::AwsError => put(&mut body, "/__type", value),
            Source::Text | Source::Header(_) | Source::RequestContentType => {}
        }
    }
    body
}

/// Puts a value where a pointer points, with all that is missing on the way.
fn put(tree: &mut Value, pointer: &str, value: Value) {
    let Some((_, rest)) = pointer.split_once('/') else {
        *tree = value;
        return;
    };
    let (token, after) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    if token == "*" || token == "0" {
        if !tree.is_array() {
            *tree = Value::Array(vec![Value::Object(Map::new())]);
        }
        return put(&mut tree[0], after, value);
    }
    if !tree.is_object() {
        *tree = Value::Object(Map::new());
    }
    put(&mut tree[token.replace("~1", "/").replace("~0", "~")], after, value);
}
