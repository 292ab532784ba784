//! What profiles make of a corpus, beside what is right.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nevertwice_domain::profile::{Class, Explanation, Remember};

use super::Entry;

/// One entry with its judgement.
#[derive(Clone, Debug)]
pub struct Judged<'c> {
    /// The entry.
    pub entry: &'c Entry,
    /// What was judged.
    pub explanation: Explanation,
}

/// All entries with their judgements.
#[derive(Clone, Debug)]
pub struct Report<'c> {
    /// In the order of the corpus.
    pub judged: Vec<Judged<'c>>,
}

/// A class, or that there is none.
type MaybeClass = Option<Class>;

impl Judged<'_> {
    /// Remembered, and it must not be.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.entry.remember == Remember::Never && self.explanation.remember != Remember::Never
    }

    /// Remembered whatever the key holds, and it depends on more than the document.
    #[must_use]
    pub fn is_too_wide(&self) -> bool {
        self.entry.remember == Remember::Keyed
            && [Remember::Full, Remember::Short].contains(&self.explanation.remember)
    }

    /// To be remembered, and it is not.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        [Remember::Full, Remember::Short].contains(&self.entry.remember)
            && [Remember::Never, Remember::Keyed].contains(&self.explanation.remember)
    }
}

impl Report<'_> {
    /// How many entries of which `remember` is right were judged so.
    #[must_use]
    pub fn count(&self, right: Remember, judged: Remember) -> usize {
        self.judged.iter().filter(|j| (j.entry.remember, j.explanation.remember) == (right, judged)).count()
    }

    /// How many entries of a class were judged to be of another; `None` = unclassified.
    #[must_use]
    pub fn count_class(&self, right: Class, judged: MaybeClass) -> usize {
        self.judged.iter().filter(|j| (j.entry.class, j.explanation.class) == (right, judged)).count()
    }

    /// How many entries are to be remembered for everybody, and how many of them are.
    #[must_use]
    pub fn caught(&self) -> (usize, usize) {
        let all = [Remember::Full, Remember::Short];
        let due = self.judged.iter().filter(|j| all.contains(&j.entry.remember));
        let missed = self.judged.iter().filter(|j| j.is_missed()).count();
        let due = due.count();
        (due, due - missed)
    }

    /// The page `docs/verdicts.md`.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut page = String::from(HEAD);
        let (due, caught) = self.caught();
        let wrong = self.judged.iter().filter(|j| j.is_wrong()).count();
        // writing to a string does not fail
        let _ = write!(
            page,
            "{} refusals: {caught} of the {due} that should be remembered for everybody are, {wrong} of the {} that must not be are.\n\n",
            self.judged.len(),
            self.judged.iter().filter(|j| j.entry.remember == Remember::Never).count(),
        );
        page.push_str("## What is done with them\n\n| right \\ judged |");
        let cells = |page: &mut String, cells: &mut dyn Iterator<Item = String>| {
            cells.for_each(|cell| {
                let _ = write!(page, " {cell} |");
            });
            page.push('\n');
        };
        cells(&mut page, &mut Remember::ALL.iter().map(ToString::to_string));
        page.push_str("|---|---|---|---|---|\n");
        for right in Remember::ALL {
            let _ = write!(page, "| {right} |");
            cells(&mut page, &mut Remember::ALL.iter().map(|judged| number(self.count(*right, *judged))));
        }
        page.push_str("\n## What they speak about\n\n| right \\ judged |");
        let classes = || Class::ALL.iter().copied().map(Some).chain([None]);
        cells(&mut page, &mut classes().map(class));
        page.push_str(&format!("|{}\n", "---|".repeat(Class::ALL.len() + 2)));
        for right in Class::ALL {
            let _ = write!(page, "| {right} |");
            cells(&mut page, &mut classes().map(|judged| number(self.count_class(*right, judged))));
        }
        page.push_str("\n## By service\n\n| service | refusals | to be remembered | are | keyed | never | are not |\n|---|---|---|---|---|---|---|\n");
        let mut services: BTreeMap<&str, Vec<Judged<'_>>> = BTreeMap::new();
        for judged in &self.judged {
            services.entry(&judged.entry.service).or_default().push(judged.clone());
        }
        for (service, judged) in services {
            let of = Report { judged };
            let (due, caught) = of.caught();
            let right = |remember| of.judged.iter().filter(|j| j.entry.remember == remember).count();
            let (keyed, never) = (right(Remember::Keyed), right(Remember::Never));
            let kept = of.count(Remember::Never, Remember::Never);
            let numbers = [of.judged.len(), due, caught, keyed, never, kept].map(number);
            let _ = writeln!(page, "| {service} | {} |", numbers.join(" | "));
        }
        for (title, about, which) in LISTS {
            let _ = write!(page, "\n## {title}\n\n{about}\n\n");
            let mut listed = self.judged.iter().filter(|j| which(j)).peekable();
            if listed.peek().is_none() {
                page.push_str("None.\n");
                continue;
            }
            page.push_str("| refusal | right | judged | rule | why |\n|---|---|---|---|---|\n");
            for Judged { entry, explanation } in listed {
                let rule = explanation.rule.as_deref().unwrap_or("-");
                let (right, judged, why) = (entry.remember, explanation.remember, &explanation.reason);
                let _ = writeln!(
                    page,
                    "| {} | {right} | {judged} | {rule} | {} |",
                    entry.id,
                    why.replace('|', "\\|")
                );
            }
        }
        page
    }
}

const HEAD: &str = "\
# Verdicts

What the profiles of this version make of the refusals in
[`profiles/corpus/upstream-errors.yaml`](../profiles/corpus/upstream-errors.yaml): real refusals of real services, with bodies
written for this list, each with the judgement that people made of it. This page is made by
`cargo run -p nevertwice-config --example write_verdicts`, and a test says when it is stale. For profiles of your own:
`nevertwice verdict --corpus FILE`.

`full` and `short` are remembered for everybody who sends the same request, `keyed` only where `remember_keyed` is on and the key holds
all that it depends on, `never` not at all.

";

type Which = fn(&Judged<'_>) -> bool;

const LISTS: [(&str, &str, Which); 3] = [
    (
        "Remembered, and must not be",
        "A good document would be refused. A test fails when there is one.",
        |j| j.is_wrong(),
    ),
    ("Remembered for everybody, and depend on more than the document", "Right is `keyed`.", |j| {
        j.is_too_wide()
    }),
    ("Not remembered, and could be", "Each costs a call every time such a document is sent.", |j| {
        j.is_missed()
    }),
];

fn number(count: usize) -> String {
    if count == 0 { "-".to_owned() } else { count.to_string() }
}

fn class(class: MaybeClass) -> String {
    class.map_or_else(|| "unclassified".to_owned(), |class| class.to_string())
}
