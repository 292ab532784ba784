//! Which routes have the memory, and which not, with the reason.

use nevertwice_config::checked::{self, Adapter, Facade, Mode};
use nevertwice_domain::tenant::UpstreamName;
use serde::Serialize;

use crate::Gateway;
use crate::upstream::Upstream;

/// Which routes have the memory, and which not, with the reason.
#[derive(Clone, Debug, Serialize)]
pub struct Coverage {
    /// Whether the memory is on at all.
    pub enabled: bool,
    /// Every route of every upstream.
    pub routes: Vec<RouteCoverage>,
}

/// One route.
#[derive(Clone, Debug, Serialize)]
pub struct RouteCoverage {
    /// Its upstream.
    pub upstream: UpstreamName,
    /// The path as tenants see it.
    pub path: String,
    /// The methods it speaks of.
    pub methods: &'static str,
    /// Whether the memory answers there.
    pub guarded: bool,
    /// Why, in words.
    pub reason: String,
    /// `enforce` or `observe`.
    pub mode: Option<&'static str>,
    /// The profile that judges.
    pub profile: Option<String>,
}

impl Gateway {
    /// Which routes have the memory, and which not.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        let enabled = self.shared.memory.is_some();
        let jobs = self.shared.jobs.is_some();
        let upstreams = self.shared.upstreams.iter();
        Coverage { enabled, routes: upstreams.flat_map(|u| routes(u, enabled, jobs)).collect() }
    }
}

/// The rows of one upstream.
fn routes(upstream: &Upstream, enabled: bool, jobs: bool) -> impl Iterator<Item = RouteCoverage> {
    let on = upstream.guard.is_some();
    let off = if enabled { "the memory is off on this upstream" } else { "the memory is off" };
    rows(&upstream.config, jobs).into_iter().map(move |row| {
        let guard = upstream.guard.as_ref().filter(|_| row.guarded);
        RouteCoverage {
            upstream: upstream.config.name.clone(),
            path: row.path,
            methods: row.methods,
            guarded: guard.is_some(),
            reason: if on || row.methods == WITHOUT_DOCUMENT { row.reason } else { off }.to_owned(),
            mode: guard.map(|g| if g.rules.mode == Mode::Enforce { "enforce" } else { "observe" }),
            profile: guard.and_then(|_| upstream.profile()).map(|profile| profile.name().to_owned()),
        }
    })
}

/// A row, as it is while the memory is on.
struct Row {
    path: String,
    methods: &'static str,
    guarded: bool,
    reason: &'static str,
}

const WITH_DOCUMENT: &str = "POST PUT PATCH";
/// Never guarded, whether the memory is on or off.
const WITHOUT_DOCUMENT: &str = "GET HEAD DELETE";

fn rows(config: &checked::Upstream, jobs: bool) -> Vec<Row> {
    let mut rows = match (&config.mount, config.adapter.facade()) {
        (None, _) => Vec::new(),
        (Some(mount), Facade::AzureDi) => operations(mount),
        (Some(mount), Facade::Sync | Facade::OpenAi) => at_once(mount, config),
    };
    if jobs {
        rows.extend(by_jobs(config));
    }
    rows
}

fn at_once(mount: &str, config: &checked::Upstream) -> Vec<Row> {
    let (listed, others) = match config.adapter {
        Adapter::OpenAi => ("carries input to a model", "carries no input to a model: passes through"),
        Adapter::GpuServerJob => ("", "passes through: the memory is for jobs here"),
        _ => ("listed in sync_paths", "not listed in sync_paths: passes through"),
    };
    let every = || format!("{mount}/*");
    let mut rows = Vec::new();
    if config.all_paths {
        let reason = "every path is guarded";
        rows.push(Row { path: every(), methods: WITH_DOCUMENT, guarded: true, reason });
    }
    rows.extend(config.sync_paths.iter().map(|path| {
        let path = format!("{mount}{path}");
        Row { path, methods: WITH_DOCUMENT, guarded: true, reason: listed }
    }));
    if !config.all_paths && !config.strict_paths {
        rows.push(Row { path: every(), methods: "any", guarded: false, reason: others });
    }
    if !config.strict_paths || !config.sync_paths.is_empty() {
        let reason = "requests without a document are never remembered";
        rows.push(Row { path: every(), methods: WITHOUT_DOCUMENT, guarded: false, reason });
    }
    rows
}

/// Where documents are submitted to Azure Document Intelligence: v3 and v4, v2.1.
const SUBMITS: [&str; 2] = ["/*:analyze", "/*/analyze"];

fn operations(mount: &str) -> Vec<Row> {
    let row = |path: &str, methods, guarded, reason| Row {
        path: format!("{mount}{path}"),
        methods,
        guarded,
        reason,
    };
    let submits =
        SUBMITS.map(|path| row(path, "POST", true, "submit of documents; verdicts also from polls"));
    let polls = "a poll is never answered from the memory but for operations of the gateway's own making";
    let mut rows = Vec::from(submits);
    rows.push(row("/*", WITH_DOCUMENT, false, "submits no document: passes through"));
    rows.push(row("/*", WITHOUT_DOCUMENT, false, polls));
    rows
}

fn by_jobs(config: &checked::Upstream) -> Vec<Row> {
    let job = |path: &str, guarded, reason| Row {
        path: format!("/jobs/{}{path}", config.name),
        methods: "POST",
        guarded,
        reason,
    };
    if config.adapter.for_jobs() || config.all_paths {
        let only = "jobs on every path; reachable by jobs only";
        let reason = if config.mount.is_none() { only } else { "jobs on every path" };
        return vec![job("/*", true, reason)];
    }
    let guarded = "jobs on a path that is guarded without jobs too";
    let mut rows: Vec<_> = config.sync_paths.iter().map(|path| job(path, true, guarded)).collect();
    if config.adapter.facade() == Facade::AzureDi {
        rows.extend(SUBMITS.map(|path| job(path, true, guarded)));
    }
    rows.push(job("/*", false, "jobs on a path that is not guarded without jobs either"));
    rows
}

#[cfg(test)]
mod tests {
    use nevertwice_config::from_text;
    use nevertwice_config::secret::Unresolved;

    use super::*;

    /// Method, path and reason of the rows of an upstream `a`; `+` in front of those that are guarded.
    fn of(keys: &str, lines: &str) -> Vec<String> {
        let text = format!("{lines}\nupstreams: [{{name: a, base_url: http://h, {keys}}}]");
        let loaded = from_text(&text, "gw.yaml", &Unresolved).unwrap_or_else(|e| unreachable!("{e}"));
        let rows = rows(&loaded.checked.upstreams[0], loaded.checked.jobs.is_some());
        let shown = |row: Row| {
            let sign = if row.guarded { "+" } else { "-" };
            format!("{sign} {} {}: {}", row.methods, row.path, row.reason)
        };
        rows.into_iter().map(shown).collect()
    }

    #[test]
    fn a_path_that_is_answered_at_once() {
        let rows = [
            "+ POST PUT PATCH /a/x: listed in sync_paths",
            "- any /a/*: not listed in sync_paths: passes through",
            "- GET HEAD DELETE /a/*: requests without a document are never remembered",
        ];
        assert_eq!(of("sync_paths: [/x]", ""), rows);
        let jobs = [
            "+ POST /jobs/a/x: jobs on a path that is guarded without jobs too",
            "- POST /jobs/a/*: jobs on a path that is not guarded without jobs either",
        ];
        assert_eq!(of("sync_paths: [/x]", "jobs: {}"), [&rows[..], &jobs[..]].concat());
    }

    #[test]
    fn submits_polls_and_their_jobs() {
        let rows = [
            "+ POST /a/*:analyze: submit of documents; verdicts also from polls",
            "+ POST /a/*/analyze: submit of documents; verdicts also from polls",
            "- POST PUT PATCH /a/*: submits no document: passes through",
            "- GET HEAD DELETE /a/*: a poll is never answered from the memory but for operations of the gateway's own making",
        ];
        assert_eq!(of("adapter: azuredi-facade", ""), rows);
        let with_jobs = of("adapter: azuredi-facade", "jobs: {}");
        assert_eq!(with_jobs[4], "+ POST /jobs/a/*:analyze: jobs on a path that is guarded without jobs too");
        let mounted = of("adapter: azure-di, mount: /a", "");
        assert_eq!(mounted, [&rows[..], &["+ POST /jobs/a/*: jobs on every path"]].concat());
    }

    #[test]
    fn what_only_jobs_reach() {
        for adapter in ["classify", "azure-di", "gpuserver-job"] {
            let only = "+ POST /jobs/a/*: jobs on every path; reachable by jobs only";
            assert_eq!(of(&format!("adapter: {adapter}"), ""), [only], "{adapter}");
        }
        let gpu = of("adapter: gpuserver-job, mount: /a", "");
        assert_eq!(gpu[0], "- any /a/*: passes through: the memory is for jobs here");
        assert_eq!(gpu[2], "+ POST /jobs/a/*: jobs on every path");
    }
}
