//! How a command ends: 0 done, 1 failed, 2 wrong input.

/// A command that ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All done.
    Done,
}

/// A command that did not.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// For people, on standard error.
    pub message: String,
}

impl Failure {
    /// Wrong input: arguments, a configuration.
    pub fn input(message: &str) -> Self {
        Self { code: 2, message: message.to_owned() }
    }

    /// Anything that went wrong while doing it.
    pub fn failed(message: &str) -> Self {
        Self { code: 1, message: message.to_owned() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::failed(&format!("{error:#}"))
    }
}
