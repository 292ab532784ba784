//! `nevertwice version`: what this program is, and with `--admin`, what a running gateway is.

use clap::Args;
use nevertwice_domain::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};

use crate::admin_client::{Client, TokenArgs};
use crate::build_info;
use crate::exit::{Exit, Failure};
use crate::print;
use crate::table::on_one_line;

/// Whose version to tell.
#[derive(Args, Debug)]
pub struct Version {
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    /// Also ask the gateway with this admin API
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    #[command(flatten)]
    token: TokenArgs,
}

/// Tells it.
pub async fn run(version: &Version) -> Result<Exit, Failure> {
    let own = build_info::version("", SystemClock.now());
    let own = json!({ "version": own.version, "commit": own.commit, "built": own.built });
    let gateway = match &version.admin {
        None => None,
        Some(url) => Some(Client::new(url, &version.token)?.get("/admin/v1/version").await?),
    };
    print::line(&match (version.json, gateway) {
        (true, None) => format!("{own:#}"),
        (true, Some(gateway)) => format!("{:#}", json!({ "program": own, "gateway": gateway })),
        (false, None) => sentence("nevertwice", &own),
        (false, Some(gateway)) => format!(
            "{}\n{}, configuration {}, running since {}",
            sentence("this program: nevertwice", &own),
            sentence("the gateway:  nevertwice", &gateway),
            fact(&gateway, "config_digest"),
            fact(&gateway, "started_at"),
        ),
    })
}

fn sentence(name: &str, of: &Value) -> String {
    format!("{name} {} (commit {}, built {})", fact(of, "version"), fact(of, "commit"), fact(of, "built"))
}

fn fact(of: &Value, name: &str) -> String {
    on_one_line(of[name].as_str().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_one_line() {
        let facts = json!({ "version": "0.1.0", "commit": "abc", "built": "2026-01-31T12:00:00.000Z" });
        let expected = "nevertwice 0.1.0 (commit abc, built 2026-01-31T12:00:00.000Z)";
        assert_eq!(sentence("nevertwice", &facts), expected);
        assert_eq!(fact(&json!({}), "commit"), "?");
    }
}
