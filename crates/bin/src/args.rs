//! What can be typed.

use clap::{Parser, Subcommand};
use nevertwice_domain::tenant::{TenantId, UpstreamName};

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
    /// See, forget and move remembered refusals
    Refusals(cmd::refusals::Refusals),
    /// See, cancel and retry jobs, and wait for them
    Jobs(cmd::jobs::Jobs),
    /// Which routes have the memory, and which not, with the reason
    Coverage(cmd::coverage::Coverage),
    /// The upstreams with their pools and guards
    Upstreams(cmd::coverage::Upstreams),
    /// Believe an upstream again whose mass-refusal guard is on
    Recover(cmd::coverage::Recover),
    /// Make a running gateway read its profiles again
    Reload(cmd::coverage::Reload),
    /// Judge a saved answer with a profile, and say why; or many of them, or a corpus
    Verdict(cmd::verdict::Verdict),
    /// The version of this program, or of a running gateway
    Version(cmd::version::Version),
}

/// The name of an upstream.
///
/// # Errors
/// When it cannot be one.
pub fn an_upstream(text: &str) -> Result<UpstreamName, String> {
    UpstreamName::new(text).map_err(|e| e.to_string())
}

/// A tenant.
///
/// # Errors
/// When it cannot be one.
pub fn a_tenant(text: &str) -> Result<TenantId, String> {
    TenantId::new(text).map_err(|e| e.to_string())
}
