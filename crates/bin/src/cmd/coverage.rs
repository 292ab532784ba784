//! `nevertwice coverage`, `upstreams`, `recover` and `reload`: where a running gateway remembers, how its upstreams are, believing
//! one again, and taking changed profiles.

use clap::Args;
use nevertwice_domain::tenant::UpstreamName;
use serde_json::Value;

use crate::admin_client::AdminArgs;
use crate::args::an_upstream;
use crate::exit::{Exit, Failure};
use crate::print;
use crate::table::{Side, Table};

/// Whether the routes of a gateway are guarded.
#[derive(Args, Debug)]
pub struct Coverage {
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// How the upstreams of a gateway are.
#[derive(Args, Debug)]
pub struct Upstreams {
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Which upstream to believe again.
#[derive(Args, Debug)]
pub struct Recover {
    /// Its name
    #[arg(value_parser = an_upstream)]
    upstream: UpstreamName,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Which gateway takes its profiles anew.
#[derive(Args, Debug)]
pub struct Reload {
    /// JSON instead of a text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Shows which routes have the memory, and which not, with the reason.
pub async fn run(coverage: &Coverage) -> Result<Exit, Failure> {
    let answer = coverage.admin.client()?.get("/admin/v1/coverage").await?;
    if coverage.json {
        return print::line(&format!("{answer:#}"));
    }
    print::line(&coverage_table(&answer))
}

/// Shows the upstreams.
pub async fn upstreams(upstreams: &Upstreams) -> Result<Exit, Failure> {
    let answer = upstreams.admin.client()?.get("/admin/v1/upstreams").await?;
    if upstreams.json {
        return print::line(&format!("{answer:#}"));
    }
    print::line(&upstreams_table(&answer))
}

/// Switches the mass-refusal guard of an upstream off.
pub async fn recover(recover: &Recover) -> Result<Exit, Failure> {
    let name = &recover.upstream;
    let answer = recover.admin.client()?.post(&format!("/admin/v1/upstreams/{name}/recover"), None).await?;
    print::line(&if answer["recovered"] == true {
        format!("the mass-refusal guard of {name} is off: its refusals are remembered again")
    } else {
        format!(
            "the mass-refusal guard of {name} was not on at this gateway; other replicas on its store are told too"
        )
    })
}

/// Makes a gateway read its configuration again and put the profiles in force.
pub async fn reload(reload: &Reload) -> Result<Exit, Failure> {
    let answer = reload.admin.client()?.post("/admin/v1/reload", None).await?;
    if reload.json {
        return print::line(&format!("{answer:#}"));
    }
    let changed: Vec<_> =
        answer["changed"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let profiles = answer["profiles"].as_object();
    let mut text = match changed.as_slice() {
        [] => "no profile has changed".to_owned(),
        names => format!("other rules are in force for {}", names.join(", ")),
    };
    for (upstream, profile) in profiles.into_iter().flatten() {
        text.push_str(&format!("\n  {upstream}: {}", profile.as_str().unwrap_or_default()));
    }
    if answer["restart_needed"] == true {
        text.push_str("\nthe configuration is not the one it was started with: what of it is no profile takes a restart");
    }
    print::line(&text)
}

fn rows<'a>(answer: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    answer[list].as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// A text or a number; `-` for what is not there.
fn cell(row: &Value, name: &str) -> String {
    match &row[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn coverage_table(answer: &Value) -> String {
    let mut table = Table::new([
        ("GUARDED", Side::Left),
        ("UPSTREAM", Side::Left),
        ("METHODS", Side::Left),
        ("PATH", Side::Left),
        ("MODE", Side::Left),
        ("PROFILE", Side::Left),
        ("REASON", Side::Left),
    ]);
    for route in rows(answer, "routes") {
        let guarded = if route["guarded"] == true { "yes" } else { "no" };
        let rest = ["upstream", "methods", "path", "mode", "profile", "reason"].map(|name| cell(route, name));
        table.row(std::iter::once(guarded.to_owned()).chain(rest));
    }
    table.text()
}

fn upstreams_table(answer: &Value) -> String {
    let mut table = Table::new([
        ("UPSTREAM", Side::Left),
        ("ADAPTER", Side::Left),
        ("MOUNT", Side::Left),
        ("IN FLIGHT", Side::Right),
        ("PLACES", Side::Right),
        ("QUEUED", Side::Right),
        ("MASS-REFUSAL GUARD", Side::Left),
        ("LOOP BREAKER", Side::Left),
        ("BASE URL", Side::Left),
    ]);
    for upstream in rows(answer, "items") {
        let guard = &upstream["guard"];
        let guard = match (guard.is_null(), guard["tripped_at"].as_str()) {
            (true, _) => "-".to_owned(),
            (_, Some(since)) => format!("ON since {since}"),
            (_, None) => format!("off ({} of {} refused)", cell(guard, "refused"), cell(guard, "judged")),
        };
        let breaker = match upstream["loop_breaker"]["held"].as_u64() {
            Some(held) => format!("on ({held} held)"),
            None => "-".to_owned(),
        };
        let urls: Vec<_> = rows(upstream, "base_urls").filter_map(Value::as_str).collect();
        let facts =
            ["name", "adapter", "mount", "in_flight", "max_in_flight", "queued"].map(|f| cell(upstream, f));
        table.row(facts.into_iter().chain([guard, breaker, urls.join(" ")]));
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn routes_stand_with_their_reason() {
        let answer = json!({ "enabled": true, "routes": [
            { "upstream": "ocr", "path": "/ocr/read", "methods": "POST PUT PATCH", "guarded": true,
              "reason": "listed in sync_paths", "mode": "enforce", "profile": "status" },
            { "upstream": "ocr", "path": "/ocr/*", "methods": "any", "guarded": false,
              "reason": "not listed", "mode": null, "profile": null },
        ]});
        let expected = "\
GUARDED  UPSTREAM  METHODS         PATH       MODE     PROFILE  REASON
yes      ocr       POST PUT PATCH  /ocr/read  enforce  status   listed in sync_paths
no       ocr       any             /ocr/*     -        -        not listed";
        assert_eq!(coverage_table(&answer), expected);
    }

    #[test]
    fn a_guard_that_is_on_is_seen() {
        let upstream = |guard: Value| {
            json!({ "name": "ocr", "adapter": "sync-facade", "base_urls": ["http://a/", "http://b/"], "mount": "/ocr",
                    "in_flight": 3, "queued": 0, "max_in_flight": 8, "guard": guard })
        };
        let line = |guard| {
            let text = upstreams_table(&json!({ "items": [upstream(guard)] }));
            text.lines().nth(1).unwrap_or_default().to_owned()
        };
        let on = line(json!({ "tripped_at": "2026-01-31T12:00:00.000Z", "refused": 20, "judged": 21 }));
        assert!(on.contains("ON since 2026-01-31T12:00:00.000Z"), "{on}");
        let off = line(json!({ "tripped_at": null, "refused": 1, "judged": 2 }));
        assert!(off.contains("off (1 of 2 refused)") && off.ends_with("http://a/ http://b/"), "{off}");
        assert!(line(Value::Null).contains("  -  "));
    }

    #[test]
    fn a_loop_breaker_says_how_many_it_holds() {
        let line = |breaker: Value| {
            let answer =
                json!({ "items": [{ "name": "ocr", "loop_breaker": breaker, "base_urls": ["http://a/"] }] });
            upstreams_table(&answer).lines().nth(1).unwrap_or_default().to_owned()
        };
        assert!(line(json!({ "held": 3 })).ends_with("on (3 held)   http://a/"));
        assert!(line(Value::Null).ends_with("-             http://a/"));
    }
}
