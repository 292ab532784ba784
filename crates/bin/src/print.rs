//! Text for people and programs. A reader that went away (`nevertwice ... | head`) is no failure.

use std::io::{ErrorKind, Write};

use crate::exit::{Exit, Failure};

/// Prints `text` and a line end to standard output.
pub fn line(text: &str) -> Result<Exit, Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::failed(&format!("cannot write: {e}"))),
        _ => Ok(Exit::Done),
    }
}

/// Prints `text` and a line end to standard error.
pub fn error(text: &str) {
    // there is nobody left to tell
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
