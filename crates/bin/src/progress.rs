//! How far a command is.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::print;

/// How often it is told how far it is, where there is no terminal.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Says how far it is: a bar on a terminal, a line now and then elsewhere. All of it goes to standard error.
pub struct Progress {
    bar: ProgressBar,
    on_terminal: bool,
    told: Instant,
}

impl Progress {
    /// `length` is in the unit of [`Progress::at`]; `None` where it is not known.
    pub fn new(length: Option<u64>) -> Self {
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
        Self { bar, on_terminal, told: Instant::now() }
    }

    /// It is so far, in words and in numbers; `length` is how far it goes.
    pub fn at(&mut self, position: u64, text: &str, length: Option<u64>) {
        if let Some(length) = length {
            self.bar.set_length(length);
        }
        self.bar.set_position(position);
        self.bar.set_message(text.to_owned());
        if !self.on_terminal && self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            let percent = length.filter(|length| *length > 0).map(|length| position * 100 / length);
            let percent = percent.map(|percent| format!(" ({percent}%)")).unwrap_or_default();
            print::error(&format!("{text}{percent}"));
        }
    }

    /// A line of text beside the bar.
    pub fn tell(&self, text: &str) {
        self.bar.suspend(|| print::error(text));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
