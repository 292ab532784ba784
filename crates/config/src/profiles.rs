//! The profiles: those of this program, and those of an operator's files.
//!
//! A profile is data (`profiles/README.md` has the format). It is read with the same care as the configuration: every problem
//! at once, with file, line and rule, and nothing that could make a railed status pass.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderName;
use nevertwice_domain::profile::{
    Class, Condition, Confidence, Dependency, Needle, Phase, Pointer, Profile, Remember, Rule, RuleStatus,
    Rules, Source, Test, Wanted,
};
use nevertwice_domain::status::RefusalStatus;

use crate::load;
use crate::problem::{Findings, Place, Problems};
use crate::raw::near;
use crate::raw::profile as raw;
use crate::raw::read::{At, OneOrMany, Read, Reader, Whole};

/// Name and text of every profile of this program.
const EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

/// The longest chain of profiles that extend one another.
const CHAIN_MAX: usize = 4;
/// The most rules of one profile, with those that it extends.
const RULES_MAX: usize = 1000;
/// The most files of an operator.
const FILES_MAX: usize = 200;
/// The longest text in a profile that is compared, in bytes.
const TEXT_MAX: usize = 1000;

/// All profiles there are.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Of the operator's files.
    own: BTreeMap<String, Arc<Profile>>,
}

impl Catalog {
    /// Reads an operator's files. A profile with the name of one of the program's takes its place.
    ///
    /// # Errors
    /// All problems, by file.
    pub fn read(files: &[PathBuf]) -> Result<Self, Vec<Problems>> {
        let mut catalog = Self::default();
        let mut problems = Vec::new();
        if files.len() > FILES_MAX {
            let cause = format!("there are more than {FILES_MAX} files of profiles");
            return Err(vec![Problems::whole("profiles", cause, "put several profiles' rules into one")]);
        }
        for file in files {
            match catalog.read_one(file) {
                Ok(profile) => {
                    let name = profile.name().to_owned();
                    if catalog.own.contains_key(&name) {
                        let cause = format!("there is a second profile `{name}`");
                        problems.push(Problems::whole(
                            &file.display().to_string(),
                            cause,
                            "rename one of them",
                        ));
                    }
                    catalog.own.insert(name, Arc::new(profile));
                }
                Err(found) => problems.push(found),
            }
        }
        if problems.is_empty() { Ok(catalog) } else { Err(problems) }
    }

    fn read_one(&self, file: &Path) -> Result<Profile, Problems> {
        self.read_text(&crate::text_of(file)?, &file.display().to_string())
    }

    fn read_text(&self, text: &str, origin: &str) -> Result<Profile, Problems> {
        let (name, rules) = parse(text, origin, None, &mut |name| self.rules_beneath(name))?;
        Ok(Profile::new(&name, rules))
    }

    /// What an operator's profile extends: one of an earlier file, else one of the program's.
    fn rules_beneath(&self, name: &str) -> Option<Rules> {
        match self.own.get(name) {
            Some(profile) => profile.rules().cloned(),
            None => embedded(name, CHAIN_MAX),
        }
    }

    /// The profile of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Profile>> {
        if let Some(own) = self.own.get(name) {
            return Some(Arc::clone(own));
        }
        if name == Profile::STATUS {
            return Some(Arc::new(Profile::status()));
        }
        embedded(name, CHAIN_MAX).map(|rules| Arc::new(Profile::new(name, rules)))
    }

    /// The names of all profiles, in order.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = EMBEDDED.iter().map(|(name, _)| *name).collect();
        names.push(Profile::STATUS);
        names.extend(self.own.keys().map(String::as_str));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What is probably meant by a name that is not there.
    #[must_use]
    pub fn cure(&self, name: &str) -> String {
        near::cure(name, self.names().into_iter(), "profiles")
    }
}

/// Reads one profile from a text; it may extend those of this program. `origin` is what problems name.
///
/// # Errors
/// All problems of the text.
pub fn from_text(text: &str, origin: &str) -> Result<Profile, Problems> {
    Catalog::default().read_text(text, origin)
}

fn embedded(name: &str, chain: usize) -> Option<Rules> {
    let (_, text) = EMBEDDED.iter().find(|(known, _)| *known == name)?;
    let chain = chain.checked_sub(1)?;
    // a test reads all of them: there is no problem to tell
    parse(text, name, Some(name), &mut |parent| embedded(parent, chain)).ok().map(|(_, rules)| rules)
}

/// Reads one profile. `named` is the name that it must have.
fn parse(
    text: &str,
    origin: &str,
    named: Option<&str>,
    beneath: &mut dyn FnMut(&str) -> Option<Rules>,
) -> Result<(String, Rules), Problems> {
    let mut found = Findings::default();
    let mut names = Vec::new();
    let read = load::tree(text, &mut found).and_then(|node| {
        let place = Place { path: String::new(), at: Some(node.at) };
        let value = raw::Profile::read(&node, &place, &mut Reader::new(&mut found))?;
        Some(At { value, place })
    });
    let checked = read.and_then(|raw| {
        names = rule_names(&raw.value);
        check(&raw, text, named, beneath, &mut found)
    });
    match checked {
        Some(checked) if !found.refused() => Ok(checked),
        _ => {
            let mut all = found.sorted();
            for problem in &mut all {
                problem.path = with_rule_name(&problem.path, &names);
            }
            Err(Problems { origin: origin.to_owned(), all })
        }
    }
}

fn rule_names(raw: &raw::Profile) -> Vec<Option<String>> {
    let rules = raw.rules.iter().flat_map(|rules| &rules.value);
    let place = |rule: &At<raw::Rule>| rule.place.path.clone();
    let mut names: Vec<Option<String>> = Vec::new();
    for rule in rules {
        let index = place(rule).trim_start_matches("rules[").trim_end_matches(']').parse().unwrap_or(0_usize);
        names.resize(names.len().max(index + 1), None);
        names[index] = rule.value.rule.as_ref().map(|name| name.value.clone());
    }
    names
}

/// `rules[3].status` as `rules[3] (invalid-content).status`.
fn with_rule_name(path: &str, names: &[Option<String>]) -> String {
    let named = path.strip_prefix("rules[").and_then(|rest| {
        let (index, rest) = rest.split_once(']')?;
        let name = names.get(index.parse::<usize>().ok()?)?.as_ref().filter(|name| is_name(name))?;
        Some(format!("rules[{index}] ({name}){rest}"))
    });
    named.unwrap_or_else(|| path.to_owned())
}

/// Lower-case words with `-`, `.` and digits.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

const NAME_CURE: &str = "write lower-case letters, digits, `-` and `.`, at most 64 of them";

fn check(
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
        references: keys(raw.references.as_ref(), found),
        documents: keys(raw.documents.as_ref(), found),
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

fn texts<'r>(list: Option<&'r At<OneOrMany<String>>>) -> impl Iterator<Item = &'r At<String>> {
    list.into_iter().flat_map(|list| &list.value.0)
}

fn keys(list: Option<&At<OneOrMany<String>>>, found: &mut Findings) -> Vec<Box<str>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let parsed = parse(text, "own.yaml", None, &mut |name| embedded(name, CHAIN_MAX));
        parsed
            .err()
            .map(|problems| problems.to_string().lines().map(str::to_owned).collect())
            .unwrap_or_default()
    }

    #[test]
    fn every_profile_of_the_program_holds() {
        assert!(!EMBEDDED.is_empty());
        for (name, text) in EMBEDDED {
            let parsed = parse(text, name, Some(name), &mut |parent| embedded(parent, CHAIN_MAX - 1));
            if let Err(problems) = parsed {
                panic!("{problems}");
            }
            assert!(Catalog::default().get(name).is_some_and(|profile| profile.name() == *name));
        }
        assert!(Catalog::default().get("status").is_some_and(|profile| profile.rules().is_none()));
        assert!(Catalog::default().get("nothing").is_none());
    }

    const RULE: &str = "profile: own\nabout: ours\nrules:\n- rule: bad-scan\n  status: 400\n  when: [{at: /code, is: E17}]\n  class: content\n  remember: full\n";

    #[test]
    fn problems_name_line_and_rule() {
        assert_eq!(problems(RULE), Vec::<String>::new());
        for (from, to, told) in [
            (
                "status: 400",
                "status: 401",
                "own.yaml:5:11: error: rules[0] (bad-scan).status: 401 is never remembered",
            ),
            (
                "status: 400",
                "status: [400, 500]",
                "own.yaml:5:17: error: rules[0] (bad-scan).status[1]: 500 is not a 4xx",
            ),
            ("status: 400", "status: 200", "a 200 is judged only where"),
            ("class: content", "class: caller", "does not speak about the document"),
            ("remember: full", "remember: keyed", "`remember: keyed` needs `depends_on`"),
            ("remember: full", "remember: forever", "this word is not known here"),
            ("is: E17", "is: E17, contains: x", "exactly one test"),
            ("at: /code, ", "", "exactly one place"),
            ("at: /code", "at: code", "a JSON pointer is empty or begins with"),
            ("  when: [{at: /code, is: E17}]\n", "", "the rule has no conditions"),
            ("is: E17", "contains: ''", "an empty text is in every text"),
            ("about: ours", "extends: nothing\nabout: ours", "there is no profile of this name to extend"),
            ("profile: own", "profile: status", "`status` is the profile without rules"),
            ("rule: bad-scan", "rule: bad scan", "this is not the name of a rule"),
            ("status: 400", "stats: 400", "unknown key `stats`"),
        ] {
            assert!(RULE.contains(from), "{from}");
            let found = problems(&RULE.replacen(from, to, 1));
            assert!(found.iter().any(|line| line.contains(told)), "{to}: {found:?}");
        }
        let twice = format!("{RULE}{}", &RULE[RULE.find("- rule").unwrap_or(0)..]);
        assert!(problems(&twice)[0].contains("this name is taken, on line 4"), "{:?}", problems(&twice));
    }

    #[test]
    fn a_profile_of_ones_own_takes_the_place_of_another_or_stands_before_it() {
        let folder = tempfile::tempdir().unwrap_or_else(|e| unreachable!("{e}"));
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap_or_else(|e| unreachable!("{e}"));
            file
        };
        let (name, _) = EMBEDDED[0];
        let rules = |catalog: &Catalog, name: &str| {
            catalog.get(name).and_then(|p| p.rules().map(|r| (r.rules.len(), r.revision))).unwrap_or_default()
        };
        let (before, revision) = rules(&Catalog::default(), name);
        let instead = write("a.yaml", &RULE.replace("own", name));
        let in_front =
            write("b.yaml", &RULE.replace("profile: own", &format!("profile: {name}\nextends: {name}")));
        let read = |files: &[PathBuf]| Catalog::read(files).unwrap_or_else(|e| unreachable!("{e:?}"));
        assert_eq!(rules(&read(std::slice::from_ref(&instead)), name).0, 1);
        let extended = rules(&read(std::slice::from_ref(&in_front)), name);
        assert_eq!(extended.0, before + 1);
        assert_ne!(extended.1, revision);
        // one of an earlier file is extended as the program's are
        let own = write("c.yaml", RULE);
        let next = write("d.yaml", &RULE.replace("profile: own", "profile: next\nextends: own"));
        assert_eq!(rules(&read(&[own.clone(), next.clone()]), "next").0, 2);
        let wrong = Catalog::read(&[next, own.clone(), own, folder.path().join("missing.yaml")]);
        let told: Vec<String> = wrong.err().unwrap_or_default().iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(
            told[0].contains("d.yaml:2:10: error: extends: there is no profile of this name"),
            "{told:?}"
        );
        assert!(told[1].contains("there is a second profile `own`"), "{told:?}");
        assert!(told[2].contains("missing.yaml: error: the file cannot be read"), "{told:?}");
    }
}
