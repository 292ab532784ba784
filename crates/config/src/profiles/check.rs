//! From a profile as it is written to rules that cannot be wrong.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderName;
use nevertwice_domain::profile::{
    Class, Condition, Confidence, Dependency, Needle, Phase, Pointer, Profile, Remember, Rule, RuleStatus,
    Rules, Source, Test, Wanted,
};
use nevertwice_domain::status::RefusalStatus;

use crate::problem::{Findings, Place};
use crate::raw::near;
use crate::raw::profile as raw;
use crate::raw::read::{At, OneOrMany, Whole};

/// The most rules of one profile, with those that it extends.
const RULES_MAX: usize = 1000;
/// The most keys that name a request's input, with those of the profile it extends.
const REFERENCES_MAX: usize = 128;
/// The longest text in a profile that is compared, in bytes.
const TEXT_MAX: usize = 1000;

/// Lower-case words with `-`, `.` and digits.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

const NAME_CURE: &str = "write lower-case letters, digits, `-` and `.`, at most 64 of them";

pub(super) fn check(
    raw: &At<raw::Profile>,
    text: &str,
    named: Option<&str>,
    beneath: &mut dyn FnMut(&str) -> Option<Rules>,
    found: &mut Findings,
) -> Option<(String, Rules)> {
    let At { value: raw, place } = raw;
    let Some(name) = &raw.profile else {
        found.missing(place, "profile", "`profile` is missing", "begin with `profile: NAME`");
        return None;
    };
    if !is_name(&name.value) {
        found.error(&name.place, "this is not the name of a profile", NAME_CURE);
    } else if name.value == Profile::STATUS {
        found.error(&name.place, "`status` is the profile without rules", "give it another name");
    } else if let Some(named) = named.filter(|named| *named != name.value) {
        found.error(&name.place, "the name is not that of the file", format!("write `profile: {named}`"));
    }
    if raw.about.as_ref().is_none_or(|about| about.value.trim().is_empty()) {
        found.missing(place, "about", "`about` is missing", "say which service it is for, in one line");
    }
    let base = match &raw.extends {
        None => None,
        Some(At { value: parent, place }) => match beneath(parent) {
            Some(rules) => Some(rules),
            None => {
                let cause = "there is no profile of this name to extend, or the chain is too long";
                found.error(place, cause, "name a profile of the program, or one of an earlier file");
                None
            }
        },
    };
    let json_only = match raw.answers.as_ref().map(|a| (a.value.as_str(), &a.place)) {
        None => base.as_ref().is_none_or(|base| base.json_only),
        Some(("json", _)) => true,
        Some(("any", _)) => false,
        Some((_, place)) => {
            found.error(place, "this word is not known here", "write `json` or `any`");
            true
        }
    };
    let mut rules = Rules {
        json_only,
        references: keys(raw.references.as_ref(), true, found),
        documents: keys(raw.documents.as_ref(), false, found),
        codes: pointers(raw.codes.as_ref(), found),
        failures: conditions(raw.failures.as_ref(), found),
        reduce: pointers(raw.reduce.as_ref(), found),
        rules: Vec::new(),
        revision: *revision(text, base.as_ref()).as_bytes(),
    };
    let mut seen: HashMap<&str, &Place> = HashMap::new();
    for At { value: rule, place } in raw.rules.iter().flat_map(|rules| &rules.value) {
        if let Some(name) = &rule.rule {
            if let Some(first) = seen.get(name.value.as_str()) {
                found.error(&name.place, format!("this name is taken, on {}", first.word()), "use another");
            }
            seen.insert(&name.value, &name.place);
        }
        rules.rules.extend(self::rule(rule, place, found).map(Arc::new));
    }
    if raw.rules.is_none() && base.is_none() {
        found.missing(
            place,
            "rules",
            "`rules` is missing",
            "write `rules: []` for a profile that knows no refusal",
        );
    }
    if let Some(base) = base {
        rules.references.extend(base.references);
        rules.documents.extend(base.documents);
        rules.codes.extend(base.codes);
        rules.failures.extend(base.failures);
        rules.reduce.extend(base.reduce);
        rules.rules.extend(base.rules);
    }
    if rules.references.len() > REFERENCES_MAX {
        let cause = format!("there are more than {REFERENCES_MAX} keys in `references`");
        found.error(place, cause, "leave some out");
    }
    if rules.rules.len() > RULES_MAX {
        found.error(place, format!("there are more than {RULES_MAX} rules"), "leave some out");
    }
    if rules.failures.is_empty() {
        for At { value: rule, .. } in raw.rules.iter().flat_map(|rules| &rules.value) {
            let status = rule.status.iter().flat_map(|list| &list.value.0).find(|s| s.value == Whole(200));
            if let Some(status) = status {
                let cause = "a 200 is judged only where the profile says what a failed operation looks like";
                found.error(
                    &status.place,
                    cause,
                    "add `failures: [{at: /status, is: [failed]}]` at the top level",
                );
            }
        }
    }
    Some((name.value.clone(), rules))
}

/// What changes when the text does, or what it extends.
fn revision(text: &str, base: Option<&Rules>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("nevertwice profile 1");
    hasher.update(text.as_bytes());
    if let Some(base) = base {
        hasher.update(&base.revision);
    }
    hasher.finalize()
}

fn texts(list: Option<&At<OneOrMany<String>>>) -> impl Iterator<Item = &At<String>> {
    list.into_iter().flat_map(|list| &list.value.0)
}

/// `parents` = whether `PARENT/KEY` has a meaning here.
fn keys(list: Option<&At<OneOrMany<String>>>, parents: bool, found: &mut Findings) -> Vec<Box<str>> {
    let mut keys = Vec::new();
    for At { value: key, place } in texts(list) {
        if key.is_empty() || key.len() > 64 || key.bytes().any(|b| b.is_ascii_control()) {
            found.error(place, "a key has 1 to 64 bytes", "write the key alone, as in `urlSource`");
        } else if key.starts_with('/') {
            found.error(
                place,
                "this is a pointer, not a key",
                "write the last key alone; it counts at any depth",
            );
        } else if key.ends_with('/') || key.matches('/').count() > usize::from(parents) {
            let cure = if parents { "write `KEY` or `PARENT/KEY`" } else { "write the last key alone" };
            found.error(place, "this is not a key", cure);
        }
        keys.push(key.as_str().into());
    }
    keys
}

fn pointers(list: Option<&At<OneOrMany<String>>>, found: &mut Findings) -> Vec<Pointer> {
    texts(list).filter_map(|text| pointer(text, found)).collect()
}

fn pointer(text: &At<String>, found: &mut Findings) -> Option<Pointer> {
    match Pointer::parse(&text.value) {
        Ok(pointer) => Some(pointer),
        Err(error) => {
            found.error(&text.place, error.to_string(), "write it as in `/error/code`");
            None
        }
    }
}

/// A required word of a closed list.
fn word<T>(
    given: Option<&At<String>>,
    block: &Place,
    key: &str,
    all: &[T],
    of: fn(T) -> &'static str,
    found: &mut Findings,
) -> Option<T>
where
    T: Copy,
{
    let words = || all.iter().map(|one| of(*one));
    let Some(At { value, place }) = given else {
        let cure = format!("write one of {}", words().collect::<Vec<_>>().join(", "));
        found.missing(block, key, format!("`{key}` is missing"), cure);
        return None;
    };
    let known = all.iter().copied().find(|one| of(*one) == value);
    if known.is_none() {
        found.error(place, "this word is not known here", near::cure(value, words(), "words"));
    }
    known
}

fn rule(raw: &raw::Rule, place: &Place, found: &mut Findings) -> Option<Rule> {
    let name = match &raw.rule {
        Some(name) if is_name(&name.value) => Some(name.value.as_str().into()),
        Some(name) => {
            found.error(&name.place, "this is not the name of a rule", NAME_CURE);
            None
        }
        None => {
            found.missing(place, "rule", "the rule has no name", "add `rule: NAME`");
            None
        }
    };
    let class = word(raw.class.as_ref(), place, "class", Class::ALL, Class::word, found);
    let remember = word(raw.remember.as_ref(), place, "remember", Remember::ALL, Remember::word, found);
    if let (Some(class), Some(Remember::Full | Remember::Short)) = (class, remember)
        && class != Class::Content
    {
        let here = raw.remember.as_ref().map_or(place, |r| &r.place);
        let cause =
            format!("a refusal of class {class} does not speak about the document, so it is no verdict");
        found.error(here, cause, "write `remember: never`, or `keyed` with `depends_on`");
    }
    let mut depends_on = Vec::new();
    for on in texts(raw.depends_on.as_ref()) {
        depends_on.extend(word(Some(on), place, "depends_on", Dependency::ALL, Dependency::word, found));
    }
    if remember == Some(Remember::Keyed) && depends_on.is_empty() {
        found.missing(
            place,
            "depends_on",
            "`remember: keyed` needs `depends_on`",
            "list what the refusal depends on, as in `[body, params]`",
        );
    }
    let phase = raw.phase.as_ref().and_then(|phase| match phase.value.as_str() {
        "submit" => Some(Phase::Submit),
        "poll" => Some(Phase::Poll),
        _ => {
            found.error(
                &phase.place,
                "this word is not known here",
                "write `submit` or `poll`, or leave it out",
            );
            None
        }
    });
    let confidence = match &raw.confidence {
        None => Some(Confidence::Documented),
        given => word(given.as_ref(), place, "confidence", Confidence::ALL, Confidence::word, found),
    };
    let source = match &raw.source {
        Some(source) if source.value.len() <= TEXT_MAX => source.value.as_str(),
        Some(source) => {
            found.error(&source.place, "the text is too long", "write an address");
            ""
        }
        None => "",
    };
    let statuses = statuses(raw, place, found);
    if raw.when.as_ref().is_none_or(|when| when.value.is_empty()) {
        let cure =
            "add `when: [{at: /error/code, is: [CODE]}]`; a rule without conditions would match every answer";
        found.missing(place, "when", "the rule has no conditions", cure);
    }
    let when = conditions(raw.when.as_ref(), found);
    Some(Rule {
        name: name?,
        statuses,
        phase,
        when,
        class: class?,
        remember: remember?,
        depends_on,
        confidence: confidence?,
        source: source.into(),
    })
}

fn statuses(raw: &raw::Rule, place: &Place, found: &mut Findings) -> Vec<RuleStatus> {
    let Some(list) = &raw.status else {
        found.missing(place, "status", "`status` is missing", "write `status: 400`, or a list");
        return Vec::new();
    };
    let mut out = Vec::new();
    for At { value: Whole(number), place } in &list.value.0 {
        if *number == 200 {
            out.push(RuleStatus::Failed);
            continue;
        }
        let number = u16::try_from(*number).unwrap_or(0);
        match RefusalStatus::new(number) {
            Ok(status) => out.push(RuleStatus::Refusal(status)),
            Err(never) => {
                found.error(place, never.to_string(), "a rule judges 4xx statuses off the rail, and 200");
            }
        }
    }
    out
}

fn conditions(list: Option<&At<Vec<At<raw::Condition>>>>, found: &mut Findings) -> Vec<Condition> {
    let list = list.into_iter().flat_map(|list| &list.value);
    list.filter_map(|At { value, place }| condition(value, place, found)).collect()
}

fn condition(raw: &raw::Condition, place: &Place, found: &mut Findings) -> Option<Condition> {
    const SOURCES: &str = "write one of `at`, `leaves`, `header` and `request`";
    const TESTS: &str = "write one of `is`, `contains`, `starts_with`, `absent: true` and `present: true`";
    let sources = [raw.at.as_ref(), raw.leaves.as_ref(), raw.header.as_ref(), raw.request.as_ref()];
    if sources.iter().flatten().count() != 1 {
        found.error(place, "a condition looks at exactly one place", SOURCES);
        return None;
    }
    let source = match sources {
        [Some(At { value, .. }), ..] if value == "text" => Source::Text,
        [Some(At { value, .. }), ..] if value == "aws-error" => Source::AwsError,
        [Some(at), ..] => Source::At(pointer(at, found)?),
        [_, Some(leaves), ..] => Source::Leaves(pointer(leaves, found)?),
        [_, _, Some(header), _] => match HeaderName::from_bytes(header.value.as_bytes()) {
            Ok(name) => Source::Header(name),
            Err(_) => {
                found.error(&header.place, "this is not the name of a header field", "write the name alone");
                return None;
            }
        },
        [_, _, _, Some(At { value, .. })] if value == "content-type" => Source::RequestContentType,
        _ => {
            found.error(
                place,
                "only the request's `content-type` can be looked at",
                "write `request: content-type`",
            );
            return None;
        }
    };
    let given = [
        raw.is.is_some(),
        raw.contains.is_some(),
        raw.starts_with.is_some(),
        raw.absent.is_some(),
        raw.present.is_some(),
    ];
    if given.iter().filter(|given| **given).count() != 1 {
        found.error(place, "a condition has exactly one test", TESTS);
        return None;
    }
    let ignore_case = match &raw.case {
        None => false,
        Some(case) if case.value == "ignore" && (raw.is.is_some() || raw.starts_with.is_some()) => true,
        Some(case) => {
            let cure = "write `case: ignore` beside `is` or `starts_with`, or leave it out";
            found.error(&case.place, "this has no meaning here", cure);
            false
        }
    };
    let test = if let Some(list) = &raw.is {
        let wanted = scalars(list, true, found)?;
        let wanted = wanted.into_iter().map(|one| one.map_or(Wanted::Null, |text| Wanted::Text(text.into())));
        Test::Is { wanted: wanted.collect(), ignore_case }
    } else if let Some(list) = &raw.contains {
        Test::Contains(scalars(list, false, found)?.into_iter().flatten().map(Needle::new).collect())
    } else if let Some(list) = &raw.starts_with {
        let wanted = scalars(list, false, found)?.into_iter().flatten().map(Into::into).collect();
        Test::StartsWith { wanted, ignore_case }
    } else {
        let (flag, test) = match (&raw.absent, &raw.present) {
            (Some(absent), _) => (absent, Test::Absent),
            (_, Some(present)) => (present, Test::Present),
            _ => return None,
        };
        if !flag.value {
            found.error(&flag.place, "this would say the opposite", TESTS);
        }
        test
    };
    Some(Condition { source, test })
}

fn scalars<'r>(
    list: &'r At<OneOrMany<raw::Scalar>>,
    null: bool,
    found: &mut Findings,
) -> Option<Vec<Option<&'r str>>> {
    if list.value.0.is_empty() {
        found.error(&list.place, "the list is empty", "write at least one value");
        return None;
    }
    let mut out = Vec::new();
    for At { value: raw::Scalar(text), place } in &list.value.0 {
        match text.as_deref() {
            None if null => out.push(None),
            None => found.error(place, "nothing cannot be searched for", "write a text"),
            Some(text) if text.trim().is_empty() && !null => {
                found.error(place, "an empty text is in every text", "write some of the message");
            }
            Some(text) if text.len() > TEXT_MAX => {
                found.error(place, format!("the text has more than {TEXT_MAX} bytes"), "write less of it");
            }
            Some(text) => out.push(Some(text)),
        }
    }
    Some(out)
}
