//! `nevertwice check`: says everything that is wrong with a configuration file, without serving it.

use std::path::PathBuf;

use clap::Args;
use nevertwice_config::problem::{Problem, Problems};
use nevertwice_config::secret::{Process, SecretSource, Unresolved};

use crate::exit::{Exit, Failure};
use crate::print;

/// What to check.
#[derive(Args, Debug)]
pub struct Check {
    /// The configuration file
    #[arg(long, value_name = "FILE", required_unless_present = "schema")]
    config: Option<PathBuf>,
    /// Also read the secrets that `env:` and `file:` refer to
    #[arg(long)]
    resolve: bool,
    /// Print the JSON schema of the configuration instead
    #[arg(long, conflicts_with_all = ["config", "resolve"])]
    schema: bool,
}

/// Checks.
pub fn run(check: &Check) -> Result<Exit, Failure> {
    let Some(path) = &check.config else {
        return print::line(&nevertwice_config::schema::json_schema());
    };
    let secrets: &dyn SecretSource = if check.resolve { &Process } else { &Unresolved };
    let loaded = nevertwice_config::read(path, secrets).map_err(|p| report_problems(&p))?;
    report_warnings(&loaded.warnings);
    print::line(&format!("{}: ok, {} upstreams", path.display(), loaded.checked.upstreams.len()))
}

/// The problems, as the failure of a command.
pub fn report_problems(problems: &Problems) -> Failure {
    Failure::input(&problems.to_string())
}

/// Warnings go to standard error and fail nothing.
pub fn report_warnings(warnings: &[Problem]) {
    for warning in warnings {
        print::error(&warning.to_string());
    }
}
