//! `nevertwice check`: says everything that is wrong with a configuration file, without serving it.

use std::path::PathBuf;

use clap::Args;
use nevertwice_config::checked::{Checked, Redis, StoreConfig};
use nevertwice_config::problem::{Problem, Problems, Severity};
use nevertwice_config::secret::{Process, SecretSource, Unresolved};
use nevertwice_domain::clock::SystemClock;
use nevertwice_store::redis::{About, Finding, Severity as Weight, probe};

use crate::exit::{Exit, Failure};
use crate::store::Needs;
use crate::{print, store};

/// What to check.
#[derive(Args, Debug)]
pub struct Check {
    /// The configuration file
    #[arg(long, value_name = "FILE", required_unless_present = "schema")]
    config: Option<PathBuf>,
    /// Also read the secrets that `env:` and `file:` refer to, and look at a store on Redis
    #[arg(long)]
    resolve: bool,
    /// Print the JSON schema of the configuration instead
    #[arg(long, conflicts_with_all = ["config", "resolve"])]
    schema: bool,
}

/// Checks.
pub async fn run(check: &Check) -> Result<Exit, Failure> {
    let Some(path) = &check.config else {
        return print::line(&nevertwice_config::schema::json_schema());
    };
    let secrets: &dyn SecretSource = if check.resolve { &Process } else { &Unresolved };
    let loaded = nevertwice_config::read(path, secrets).map_err(|p| report_problems(&p))?;
    report_warnings(&loaded.warnings);
    if let (true, Some(redis)) = (check.resolve, used_redis(&loaded.checked)) {
        look_at(redis, path.display().to_string()).await?;
    }
    print::line(&format!("{}: ok, {} upstreams", path.display(), loaded.checked.upstreams.len()))
}

/// The Redis that `serve` would use.
fn used_redis(config: &Checked) -> Option<&Redis> {
    match &config.store {
        StoreConfig::Redis(redis) if Needs::of(config).any() => Some(redis),
        _ => None,
    }
}

/// Tells what the store's server is not fit for.
async fn look_at(redis: &Redis, origin: String) -> Result<(), Failure> {
    let options = store::redis_options(redis)?;
    let problem = |finding: Finding| {
        let place = match finding.about {
            About::Server => &redis.places.url,
            About::Login => &redis.places.password,
            About::Rights => &redis.places.username,
            About::Prefix => &redis.places.prefix,
            About::ReadTime => &redis.places.read_ms,
        };
        let (line, column) = place.at.unzip();
        let severity = match finding.severity {
            Weight::Error => Severity::Error,
            Weight::Warning => Severity::Warning,
        };
        let (path, cause, cure) = (place.path.clone(), finding.cause, finding.cure);
        Problem { path, line, column, severity, cause, cure }
    };
    let all: Vec<_> = probe(&options, &SystemClock).await.into_iter().map(problem).collect();
    if all.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(report_problems(&Problems { origin, all }));
    }
    report_warnings(&all);
    Ok(())
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
