//! What is wrong with a configuration: every problem with its place, its cause and its cure.
//!
//! No text here may hold a secret. Causes name keys, places, numbers and words of closed lists; a free text that somebody
//! wrote is shown only where it is a name, and never where a secret could stand by mistake.

use std::fmt;

use serde::Serialize;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration holds, but probably does not say what was meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The key, as in `upstreams[0].negative_cache.ttl_s`; empty for the file as a whole.
    pub path: String,
    /// The line, from 1; `None` when the configuration did not come from a text.
    pub line: Option<usize>,
    /// The column in characters, from 1.
    pub column: Option<usize>,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub cause: String,
    /// What to do about it.
    pub cure: String,
}

/// `5:3: error: negative_cache.ttl_s: cause; cure`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}: ")?;
        }
        write!(f, "{}: ", self.severity)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}; {}", self.cause, self.cure)
    }
}

/// The most problems that are told of one configuration.
pub const PROBLEMS_MAX: usize = 1000;

/// All that is wrong with one configuration, in the order of the text. Warnings are among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// Where the text came from: a file name as a rule.
    pub origin: String,
    /// The problems; at least one error. At most [`PROBLEMS_MAX`] and one that says so.
    pub all: Vec<Problem>,
}

impl Problems {
    /// A single problem of a file as a whole.
    pub(crate) fn whole(origin: &str, cause: String, cure: &str) -> Self {
        let problem = Problem {
            path: String::new(),
            line: None,
            column: None,
            severity: Severity::Error,
            cause,
            cure: cure.to_owned(),
        };
        Self { origin: origin.to_owned(), all: vec![problem] }
    }

    /// How many of the problems are errors.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.all.iter().filter(|p| p.severity == Severity::Error).count()
    }
}

/// One line each: `FILE:5:3: error: negative_cache.ttl_s: cause; cure`.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.all.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            let gap = if problem.line.is_some() { "" } else { " " };
            write!(f, "{}:{gap}{problem}", self.origin)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Where a value stands: its path of keys, and its place in the text if it came from one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// As in [`Problem::path`].
    pub path: String,
    /// Line and column, from 1.
    pub at: Option<(usize, usize)>,
}

impl Place {
    /// The path of a key in the block that stands here.
    pub(crate) fn key_path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The place of a key that is missing from the block that stands here: its path, and the block's line.
    pub(crate) fn missing(&self, key: &str) -> Self {
        Self { path: self.key_path(key), at: self.at }
    }

    /// `line 7`, for a cause that names a second place; the path when there is no line.
    pub(crate) fn word(&self) -> String {
        match self.at {
            Some((line, _)) => format!("line {line}"),
            None => self.path.clone(),
        }
    }
}

/// Collects problems, so that all of them are told at once.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    all: Vec<Problem>,
    /// Paths that a problem already explains: what is missing there was written wrongly, not forgotten.
    explained: Vec<String>,
    /// There are more errors than are told.
    more: bool,
}

impl Findings {
    /// The configuration is refused.
    pub(crate) fn error(&mut self, place: &Place, cause: impl Into<String>, cure: impl Into<String>) {
        self.explain(place.path.clone());
        self.put(place, Severity::Error, cause.into(), cure.into());
    }

    /// The configuration probably does not say what was meant.
    pub(crate) fn warning(&mut self, place: &Place, cause: impl Into<String>, cure: impl Into<String>) {
        self.put(place, Severity::Warning, cause.into(), cure.into());
    }

    /// A key is missing, unless a problem at that key already says why.
    pub(crate) fn missing(
        &mut self,
        block: &Place,
        key: &str,
        cause: impl Into<String>,
        cure: impl Into<String>,
    ) {
        let place = block.missing(key);
        if !self.explains(&place.path) {
            self.error(&place, cause, cure);
        }
    }

    /// Notes that a problem told elsewhere explains what is missing at `path`.
    pub(crate) fn explain(&mut self, path: String) {
        if !self.full() {
            self.explained.push(path);
        }
    }

    /// Whether an error at `path`, or inside it, was told already.
    pub(crate) fn explains(&self, path: &str) -> bool {
        self.explained.iter().any(|e| {
            e.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.') || rest.starts_with('['))
        })
    }

    fn put(&mut self, place: &Place, severity: Severity, cause: String, cure: String) {
        let (line, column) = place.at.unzip();
        if self.full() {
            self.more |= severity == Severity::Error;
            return;
        }
        let problem = Problem { path: place.path.clone(), line, column, severity, cause, cure };
        if !self.all.contains(&problem) {
            self.all.push(problem);
        }
    }

    /// Whether further problems are only counted, so that nobody needs to look for their cure.
    pub(crate) fn full(&self) -> bool {
        self.all.len() >= PROBLEMS_MAX
    }

    /// Whether the configuration is refused.
    pub(crate) fn refused(&self) -> bool {
        self.more || self.all.iter().any(|p| p.severity == Severity::Error)
    }

    /// Everything found, in the order of the text.
    pub(crate) fn sorted(mut self) -> Vec<Problem> {
        self.all.sort_by_key(|p| (p.line, p.column));
        if self.more {
            let cause = format!("there are more problems than the {PROBLEMS_MAX} above");
            let last = self.all.last().and_then(|p| p.line.zip(p.column));
            let (line, column) = last.unzip();
            let cure = "cure those first".to_owned();
            self.all.push(Problem {
                path: String::new(),
                line,
                column,
                severity: Severity::Error,
                cause,
                cure,
            });
        }
        self.all
    }
}
