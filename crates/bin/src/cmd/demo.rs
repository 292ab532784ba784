//! `nevertwice demo`: a real document service behind the gateway, real documents from three tenants, and a table of what
//! became of them.

mod caller;
mod report;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use nevertwice_config::checked::Checked;
use nevertwice_config::secret::Process;
use nevertwice_document_checker::{Checker, Sample, samples};
use nevertwice_domain::fingerprint::DocumentDigest;
use nevertwice_gateway::Gateway;
use nevertwice_store::{ListQuery, Page};
use tokio_util::sync::CancellationToken;

use crate::cmd::check::report_problems;
use crate::cmd::serve::Running;
use crate::exit::{Exit, Failure};
use crate::print;
use caller::{Answer, Caller};
use report::Row;

/// How long the demo's document service takes for a document: real ones take longer.
const SERVICE_TIME: Duration = Duration::from_millis(60);
/// How often each tenant sends each bad document.
const ATTEMPTS: usize = 3;
/// The demo's tenants and their keys.
const TENANTS: [(&str, &str); 3] =
    [("engine-a", "demo-key-a"), ("engine-b", "demo-key-b"), ("engine-c", "demo-key-c")];

/// How to run the demo.
#[derive(Args, Debug)]
pub struct Demo {
    /// Where the gateway listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// End after the table instead of serving on
    #[arg(long)]
    once: bool,
}

/// Runs the demo.
pub async fn run(demo: &Demo) -> Result<Exit, Failure> {
    let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
    let checker = Checker::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
    let checker =
        Arc::new(checker.await.context("cannot start the document service")?.with_delay(SERVICE_TIME));
    let stop = CancellationToken::new();
    let service = tokio::task::JoinSet::from_iter([Arc::clone(&checker).run(stop.clone())]);
    let running = Running::start(config(demo.listen, checker.addr(), dir.path())?, None).await?;
    let address = *running.gateway.addresses().first().context("the gateway has no address")?;
    let admin = running.admin_addr().context("the gateway has no admin address")?;
    print::line(&format!(
        "\nA real document service runs at http://{}, the gateway in front of it at http://{address}.\n\
         Three tenants send {} documents: good ones once each, bad ones {ATTEMPTS} times each.\n",
        checker.addr(),
        samples().len(),
    ))?;
    let outcome = send_all(address, &checker).await?;
    let audit = dir.path().join("audit.jsonl");
    let rows = with_memory(outcome, &running.gateway, &audit).await?;
    print::line(&report::table(&rows))?;
    print::line(&report::how_to_go_on(address, admin, checker.addr(), &audit, demo.once))?;
    let ended = if demo.once {
        running.gateway.drain().await;
        Ok(Exit::Done)
    } else {
        running.until_signal().await
    };
    stop.cancel();
    let _ = tokio::time::timeout(Duration::from_secs(2), service.join_all()).await;
    ended
}

fn config(listen: SocketAddr, upstream: SocketAddr, dir: &Path) -> Result<Checked, Failure> {
    let tenants: String = TENANTS
        .iter()
        .map(|(id, key)| {
            let digest = DocumentDigest::of(key.as_bytes());
            format!("  - {{ id: {id}, key_sha256: {digest}, routes: [\"*\"] }}\n")
        })
        .collect();
    let dir = serde_json::Value::from(dir.display().to_string());
    let text = format!(
        "listen: {listen}\n\
         tenants:\n{tenants}\
         admin: {{ listen: \"127.0.0.1:0\" }}\n\
         store: {{ embedded: {{ path: {dir} }} }}\n\
         audit: {{ file: {} }}\n\
         negative_cache: {{ enabled: true }}\n\
         upstreams:\n\
         \x20 - name: document-checker\n\
         \x20   adapter: sync-facade\n\
         \x20   base_url: http://{upstream}\n\
         \x20   mount: /\n\
         \x20   sync_paths: [/classify]\n",
        serde_json::Value::from(format!("{}/audit.jsonl", dir.as_str().unwrap_or("."))),
    );
    let loaded = nevertwice_config::from_text(&text, "demo", &Process).map_err(|p| report_problems(&p))?;
    Ok(loaded.checked)
}

/// Sends every document, one after the other, and counts at the service.
async fn send_all(address: SocketAddr, checker: &Checker) -> Result<Vec<Row>, Failure> {
    let total: usize = samples().iter().map(|s| TENANTS.len() * attempts(s)).sum();
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let progress = ProgressBar::new(total as u64).with_style(style);
    let mut rows = Vec::new();
    for sample in samples() {
        progress.set_message(sample.name);
        let calls_before = checker.calls();
        let mut answers: Vec<Answer> = Vec::new();
        for _ in 0..attempts(sample) {
            for (_, key) in TENANTS {
                let began = Instant::now();
                let caller = Caller { address, key };
                answers.push(caller.classify(sample, began).await?);
                progress.inc(1);
            }
        }
        rows.push(Row::new(sample, answers, checker.calls() - calls_before));
    }
    progress.finish_and_clear();
    Ok(rows)
}

fn attempts(sample: &Sample) -> usize {
    if sample.good { 1 } else { ATTEMPTS }
}

/// Adds what the store and the audit say of each document.
async fn with_memory(mut rows: Vec<Row>, gateway: &Gateway, audit: &Path) -> Result<Vec<Row>, Failure> {
    let store = gateway.store().context("the demo's gateway has no memory")?;
    let page: Page =
        store.list(&ListQuery { limit: 1000, ..ListQuery::default() }).await.map_err(anyhow::Error::new)?;
    let expected: usize = rows.iter().map(|r| r.attempts()).sum();
    let lines = audit_lines(audit, expected).await;
    for row in &mut rows {
        let entry = page.items.iter().find(|item| item.entry.document.digest == row.document);
        row.replays = entry.map_or(0, |e| e.tally.replays);
        row.codes(&lines);
    }
    Ok(rows)
}

/// The audit's lines, once all are written; at most two seconds.
async fn audit_lines(path: &Path, expected: usize) -> Vec<serde_json::Value> {
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        let text = tokio::fs::read_to_string(path).await.unwrap_or_default();
        let lines: Vec<_> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
        if lines.len() >= expected || Instant::now() > until {
            return lines;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
