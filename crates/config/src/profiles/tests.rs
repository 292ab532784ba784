//! Profiles as texts: what holds, and what is told of what does not.
#![expect(clippy::panic, reason = "a test that breaks should stop")]

use super::*;

fn problems(text: &str) -> Vec<String> {
    let parsed = parse(text, "own.yaml", None, &mut |name| embedded(name, CHAIN_MAX));
    parsed.err().map(|problems| problems.to_string().lines().map(str::to_owned).collect()).unwrap_or_default()
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
    assert!(told[0].contains("d.yaml:2:10: error: extends: there is no profile of this name"), "{told:?}");
    assert!(told[1].contains("there is a second profile `own`"), "{told:?}");
    assert!(told[2].contains("missing.yaml: error: the file cannot be read"), "{told:?}");
}
