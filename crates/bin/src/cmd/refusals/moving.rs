//! What export and import share: the file's first line, trying again, and how far it is.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::lines::Line;
use crate::print;

/// The version of the file's format.
const FORMAT: u32 = 1;
/// The longest line, in bytes: with it the body of an import stays within what the gateway takes.
pub(super) const LINE_MAX: usize = 24 * 1024 * 1024 - 1024;
/// How often a request is tried again.
const AGAIN: u32 = 3;
/// How long it is waited before.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it is told how far it is, where there is no terminal.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// The version of the format; its name says what the file is.
    nevertwice_refusals: u32,
    /// The gateway that it comes from.
    pub(super) from: String,
    /// That gateway's version.
    version: String,
    /// When the export began.
    began_at: String,
}

impl Header {
    pub(super) fn new(from: String, version: &str, began_at: String) -> Self {
        Self { nevertwice_refusals: FORMAT, from, version: version.to_owned(), began_at }
    }

    pub(super) fn line(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(|e| Failure::failed(&format!("cannot write the first line: {e}")))
    }

    /// Reads the first line of `file`.
    pub(super) fn read(file: &str, line: Option<&Line>) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Format {
            nevertwice_refusals: u32,
        }
        let none = || {
            Failure::input(&format!(
                "{file} is no export of refusals: line 1 is not the one that they begin with"
            ))
        };
        let Some(Line::Whole(bytes)) = line else { return Err(none()) };
        let Format { nevertwice_refusals: format } = serde_json::from_slice(bytes).map_err(|_| none())?;
        if format != FORMAT {
            return Err(Failure::input(&format!(
                "line 1 of {file}: format {format}, and this version reads format {FORMAT}"
            )));
        }
        serde_json::from_slice(bytes).map_err(|_| none())
    }
}

/// Tries again what failed, if it has `worked` before: a gateway that restarts comes back. For what may be asked for twice.
pub(super) async fn patiently<T>(
    worked: bool,
    call: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    again(if worked { AGAIN } else { 0 }, PAUSE, call).await
}

async fn again<T>(
    mut left: u32,
    pause: Duration,
    mut call: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    loop {
        match call().await {
            Err(Failure { code: 1, .. }) if left > 0 => {
                left -= 1;
                tokio::time::sleep(pause).await;
            }
            ended => return ended,
        }
    }
}

/// Says how far it is: a bar on a terminal, a line now and then elsewhere. All of it goes to standard error.
pub(super) struct Progress {
    bar: ProgressBar,
    on_terminal: bool,
    told: Instant,
    /// `exported` or `imported`.
    done: &'static str,
}

impl Progress {
    /// `length` is in the unit of [`Progress::at`]; `None` where it is not known.
    pub(super) fn new(done: &'static str, length: Option<u64>) -> Self {
        let on_terminal = io::stderr().is_terminal();
        let bar = match (on_terminal, length) {
            (false, _) => ProgressBar::hidden(),
            (true, Some(length)) => ProgressBar::new(length),
            (true, None) => ProgressBar::new_spinner(),
        };
        let template = if length.is_some() { "{bar:40} {percent:>3}%  {msg}" } else { "{spinner}  {msg}" };
        // a template that is wrong shows as the plain bar
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, on_terminal, told: Instant::now(), done }
    }

    /// It is so far, and so many refusals are done; `length` is how far it goes.
    pub(super) fn at(&mut self, position: u64, refusals: u64, length: Option<u64>) {
        if let Some(length) = length {
            self.bar.set_length(length);
        }
        self.bar.set_position(position);
        self.bar.set_message(format!("{refusals} refusals {}", self.done));
        if !self.on_terminal && self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            let percent = length.filter(|length| *length > 0).map(|length| position * 100 / length);
            let percent = percent.map(|percent| format!(" ({percent}%)")).unwrap_or_default();
            print::error(&format!("{refusals} refusals {}{percent}", self.done));
        }
    }

    /// A line of text beside the bar.
    pub(super) fn tell(&self, text: &str) {
        self.bar.suspend(|| print::error(text));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "test")]

    use super::*;

    #[test]
    fn the_first_line_says_what_the_file_is() {
        let header = Header::new("http://gw:9090".into(), "0.1.0", "2026-01-31T12:00:00.000Z".into());
        let line = Line::Whole(header.line().unwrap().into());
        assert_eq!(Header::read("f", Some(&line)).unwrap().from, "http://gw:9090");
        for (line, part) in [
            (None, "f is no export"),
            (Some(Line::Whole("{\"fingerprint\":\"ab\"}".into())), "is no export"),
            (Some(Line::Whole(vec![0xff])), "is no export"),
            (Some(Line::TooLong), "is no export"),
            (Some(Line::Cut(header.line().unwrap().into())), "is no export"),
            (Some(Line::Whole("{\"nevertwice_refusals\":2,\"new\":1}".into())), "line 1 of f: format 2"),
        ] {
            let failure = Header::read("f", line.as_ref()).unwrap_err();
            assert!(failure.code == 2 && failure.message.contains(part), "{line:?}: {}", failure.message);
        }
    }

    #[tokio::test]
    async fn what_failed_is_tried_again_and_what_was_wrong_is_not() {
        for (left, code, expected) in [(0, 1, 1), (3, 1, 4), (3, 2, 1)] {
            let mut calls = 0;
            let ended = again(left, Duration::ZERO, async || -> Result<(), Failure> {
                calls += 1;
                Err(Failure { code, message: String::new() })
            });
            assert!(ended.await.is_err());
            assert_eq!(calls, expected, "{left} {code}");
        }
        let mut calls = 0;
        let ended = again(3, Duration::ZERO, async || {
            calls += 1;
            if calls < 3 { Err(Failure::failed("")) } else { Ok(calls) }
        });
        assert_eq!(ended.await.ok(), Some(3));
    }
}
