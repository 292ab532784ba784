//! What can be typed.

use clap::{Parser, Subcommand};

use crate::cmd;

/// An egress gateway for AI models and OCR services that never sends a refused document twice.
#[derive(Parser, Debug)]
#[command(name = "nevertwice", version, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the gateway
    Serve(cmd::serve::Serve),
    /// See it work: a real document service, good and bad documents, three tenants
    Demo(cmd::demo::Demo),
    /// Check a configuration file; exit code 2 and every problem if it does not hold
    Check(cmd::check::Check),
}
