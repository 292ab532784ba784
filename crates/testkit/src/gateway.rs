//! The real binary as a child process, in front of whatever upstreams a test has.

mod child;
mod exposition;
mod template;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Answer, Client, Request};
use child::Child;

/// How long the gateway may take until it is ready.
const READY: Duration = Duration::from_secs(20);
/// How long a graceful stop may take: the default drain and a margin.
const STOP: Duration = Duration::from_secs(40);
/// How long the audit may lag behind the answers.
const AUDIT: Duration = Duration::from_secs(10);
/// How often the ports are picked anew when somebody else took them in between.
const ATTEMPTS: usize = 3;

/// What a gateway is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    yaml: String,
    env: Vec<(String, String)>,
    admin_token: Option<String>,
    binary: Option<PathBuf>,
    files: Vec<(String, String)>,
}

impl Setup {
    /// A configuration file, in which `@DIR@`, `@LISTEN@` and `@ADMIN@` stand for the gateway's own directory and
    /// two free addresses.
    pub fn new(yaml: &str) -> Self {
        Self { yaml: yaml.to_owned(), env: Vec::new(), admin_token: None, binary: None, files: Vec::new() }
    }

    /// An environment variable of the process.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A file in the gateway's own directory, there before it starts.
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// The token that the admin functions and the command line present; the configuration has to ask for it.
    pub fn admin_token(mut self, token: &str) -> Self {
        self.admin_token = Some(token.to_owned());
        self
    }

    /// Another binary than the one of `NEVERTWICE_BIN`, else of the debug build.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Starts it and waits until it is ready; panics with the log if it does not get there.
    pub async fn start(self) -> Gateway {
        self.try_start().await.unwrap_or_else(|reason| panic!("gateway: {reason}"))
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// What went wrong, with the log, for tests in which it must not start.
    pub async fn try_start(self) -> Result<Gateway, String> {
        let mut attempt = 1;
        loop {
            let mut gateway = Gateway::prepare(self.clone())?;
            match gateway.spawn().await {
                Ok(()) => return Ok(gateway),
                Err(_)
                    if attempt < ATTEMPTS
                        && gateway.log().to_lowercase().contains("address already in use") =>
                {
                    attempt += 1;
                }
                Err(reason) => return Err(reason),
            }
        }
    }
}

/// A running gateway with a directory of its own. It is killed, and the directory removed, when dropped.
pub struct Gateway {
    /// Where tenants call it.
    pub addr: SocketAddr,
    /// Where its admin API is.
    pub admin: SocketAddr,
    setup: Setup,
    dir: TempDir,
    child: Option<Child>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("addr", &self.addr)
            .field("dir", &self.dir.path())
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// Starts one with this configuration (see [`Setup::new`]); panics with the log if it does not get ready.
    pub async fn start(yaml: &str) -> Self {
        Setup::new(yaml).start().await
    }

    /// Starts the one most tests need: see [`Gateway::simple_yaml`].
    pub async fn simple(upstream_url: &str) -> Self {
        Self::with(upstream_url, &[]).await
    }

    /// Like [`Gateway::simple`], with more lines in the slots of its configuration.
    pub async fn with(upstream_url: &str, slots: &[(&str, &str)]) -> Self {
        Self::start(&Self::simple_yaml(upstream_url, slots)).await
    }

    /// The configuration most tests need: the upstream `doc-classifier` as a `sync-facade` at `/doc-classifier`
    /// with the guarded paths `/classify` and `/layout`; tenants `dev_1`, `dev_2`, `dev_3` with the keys `tok-1`,
    /// `tok-2`, `tok-3`; store and audit in the gateway's directory; the memory on.
    ///
    /// Each slot takes lines of YAML: `TOP` (top level), `MEMORY` (in `negative_cache`), `UPSTREAM` (in the
    /// upstream), `UPSTREAMS` (further items of the list). Panics on another name.
    pub fn simple_yaml(upstream_url: &str, slots: &[(&str, &str)]) -> String {
        template::simple(upstream_url, slots)
    }

    fn prepare(setup: Setup) -> Result<Self, String> {
        let dir = tempfile::Builder::new()
            .prefix("nevertwice-test-")
            .tempdir()
            .map_err(|error| format!("no temporary directory: {error}"))?;
        let [addr, admin] = child::free_addresses()?;
        let yaml = setup
            .yaml
            .replace("@DIR@", &dir.path().display().to_string())
            .replace("@LISTEN@", &addr.to_string())
            .replace("@ADMIN@", &admin.to_string());
        let gateway = Self { addr, admin, setup, dir, child: None };
        std::fs::write(gateway.config_file(), yaml)
            .map_err(|error| format!("cannot write the configuration: {error}"))?;
        for (name, text) in &gateway.setup.files {
            std::fs::write(gateway.dir().join(name), text)
                .map_err(|error| format!("cannot write {name}: {error}"))?;
        }
        Ok(gateway)
    }

    async fn spawn(&mut self) -> Result<(), String> {
        let binary = child::binary(self.setup.binary.as_deref())?;
        let config = self.config_file().display().to_string();
        self.child =
            Some(Child::spawn(&binary, &["serve", "--config", &config], &self.setup.env, self.dir.path())?);
        let deadline = Instant::now() + READY;
        loop {
            if self.is_ready().await {
                return Ok(());
            }
            let ended = self.child_mut().ended();
            if let Some(status) = ended {
                return Err(format!("ended with {status} before it was ready; its log:\n{}", self.log()));
            }
            if Instant::now() > deadline {
                return Err(format!("not ready after {READY:?}; its log:\n{}", self.log()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether `/readyz` says 200.
    pub async fn is_ready(&self) -> bool {
        let Ok(client) = Client::try_connect(self.admin).await else { return false };
        let answer = client.patience(Duration::from_secs(2)).try_request(Request::get("/readyz")).await;
        answer.is_ok_and(|answer| answer.status == 200)
    }

    // Its files.

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its configuration file, which a test may rewrite before a reload or a restart.
    pub fn config_file(&self) -> PathBuf {
        self.dir.path().join("nevertwice.yaml")
    }

    /// What it wrote to standard error so far, over all its starts.
    pub fn log(&self) -> String {
        child::read(&self.dir.path().join(child::STDERR))
    }

    /// What it wrote to standard output so far, over all its starts.
    pub fn stdout(&self) -> String {
        child::read(&self.dir.path().join(child::STDOUT))
    }

    /// The lines of `audit.jsonl` in its directory; panics on a line that is no JSON. A line that is still being
    /// written is left out.
    pub fn audit(&self) -> Vec<Value> {
        let text = child::read(&self.dir.path().join("audit.jsonl"));
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let parse = |line| {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("gateway: audit line is no JSON ({error}): {line}"))
        };
        whole.lines().map(parse).collect()
    }

    /// Waits until the audit has at least `n` lines; panics with what there is after 10 s.
    pub async fn wait_audit(&self, n: usize) -> Vec<Value> {
        let deadline = Instant::now() + AUDIT;
        loop {
            let lines = self.audit();
            if lines.len() >= n {
                return lines;
            }
            if Instant::now() > deadline {
                panic!(
                    "gateway: {} audit lines after {AUDIT:?}, not {n}: {lines:#?}\n{}",
                    lines.len(),
                    self.log()
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    // Its admin listener.

    /// The text of `/metrics`.
    pub async fn metrics(&self) -> String {
        let answer = self.admin_request(Request::get("/metrics")).await;
        if answer.status != 200 {
            panic!("gateway: /metrics says {}: {}", answer.status, answer.text());
        }
        answer.text()
    }

    /// The sum of the series of exactly this name (with `_total` where there is one) that have at least these
    /// labels; 0 if there is none.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        exposition::sum(&self.metrics().await, name, labels)
    }

    /// Waits until a metric has a value; panics with the metrics after 10 s.
    pub async fn wait_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        let deadline = Instant::now() + AUDIT;
        loop {
            let text = self.metrics().await;
            let now = exposition::sum(&text, name, labels);
            if (now - value).abs() < 1e-9 {
                return;
            }
            if Instant::now() > deadline {
                panic!("gateway: {name} {labels:?} is {now} after {AUDIT:?}, not {value}:\n{text}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// `GET` on the admin listener: the status, and the body as JSON, else as a string, `null` if empty.
    pub async fn admin_get(&self, path: &str) -> (u16, Value) {
        value_of(&self.admin_request(Request::get(path)).await)
    }

    /// `POST` of JSON on the admin listener; see [`Gateway::admin_get`].
    pub async fn admin_post(&self, path: &str, json: &Value) -> (u16, Value) {
        let request = Request::post(path).header("Content-Type", "application/json").body(json.to_string());
        value_of(&self.admin_request(request).await)
    }

    /// `DELETE` on the admin listener; see [`Gateway::admin_get`].
    pub async fn admin_delete(&self, path: &str) -> (u16, Value) {
        value_of(&self.admin_request(Request::new("DELETE", path)).await)
    }

    /// Any request on the admin listener, with the token of the set-up.
    pub async fn admin_request(&self, request: Request) -> Answer {
        let request = match &self.setup.admin_token {
            Some(token) => request.bearer(token),
            None => request,
        };
        Client::connect(self.admin).await.request(request).await
    }

    // Its process.

    /// The process id; panics if it was not started again after its end.
    pub fn pid(&self) -> u32 {
        self.child_ref().pid()
    }

    /// The resident memory of the process, KiB.
    pub fn rss_kib(&self) -> u64 {
        self.child_ref().memory_kib("VmRSS")
    }

    /// The most resident memory that the process ever had, KiB.
    pub fn peak_rss_kib(&self) -> u64 {
        self.child_ref().memory_kib("VmHWM")
    }

    /// How many files in this folder the process has open; one without a name counts for the folder it was made in.
    pub fn open_files(&self, folder: &Path) -> usize {
        self.child_ref().open_files(folder)
    }

    /// Sends it a signal by its short name, such as `TERM`, `KILL`, `USR1`, `STOP`.
    pub fn signal(&self, name: &str) {
        self.child_ref().signal(name);
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.ended().is_none())
    }

    /// Waits until the process has ended; panics with the log if it does not in time.
    pub async fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            let ended = self.child_mut().ended();
            if let Some(status) = ended {
                return status;
            }
            if Instant::now() > deadline {
                panic!("gateway: still runs after {limit:?}; its log:\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops it in good order if it still runs, and starts it again: same ports, same directory, and the
    /// configuration file as it is now.
    pub async fn restart(&mut self) {
        if self.is_running() {
            self.signal("TERM");
            self.wait_exit(STOP).await;
        }
        if let Err(reason) = self.spawn().await {
            panic!("gateway: restart: {reason}");
        }
    }

    /// Runs the binary with these arguments and `--admin http://ADMIN` after them.
    pub async fn cli(&self, args: &[&str]) -> Output {
        let admin = format!("http://{}", self.admin);
        self.run(&[args, &["--admin", &admin]].concat()).await
    }

    /// Runs the binary with exactly these arguments, in the gateway's directory and environment.
    pub async fn run(&self, args: &[&str]) -> Output {
        let mut env = self.setup.env.clone();
        if let Some(token) = &self.setup.admin_token {
            env.push(("NEVERTWICE_ADMIN_TOKEN".to_owned(), token.clone()));
        }
        let output = match child::binary(self.setup.binary.as_deref()) {
            Ok(binary) => child::run(&binary, args, &env, self.dir.path()).await,
            Err(reason) => Err(reason),
        };
        output.unwrap_or_else(|reason| panic!("nevertwice {}: {reason}", args.join(" ")))
    }

    fn child_ref(&self) -> &Child {
        self.child.as_ref().unwrap_or_else(|| panic!("gateway: was never started"))
    }

    fn child_mut(&mut self) -> &mut Child {
        self.child.as_mut().unwrap_or_else(|| panic!("gateway: was never started"))
    }
}

/// Runs the binary to its end with exactly these arguments; panics if it takes more than 60 s.
pub async fn run(args: &[&str], env: &[(String, String)], dir: &Path) -> Output {
    let output = match child::binary(None) {
        Ok(binary) => child::run(&binary, args, env, dir).await,
        Err(reason) => Err(reason),
    };
    output.unwrap_or_else(|reason| panic!("nevertwice {}: {reason}", args.join(" ")))
}

fn value_of(answer: &Answer) -> (u16, Value) {
    let value = if answer.body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&answer.body).unwrap_or_else(|_| Value::String(answer.text()))
    };
    (answer.status, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_does_not_start_shows_its_log() {
        // A shell takes the first argument for a script, which is not there.
        let started = Setup::new("listen: \"@LISTEN@\"").binary("/bin/sh").try_start().await;
        let reason = started.err().unwrap_or_default();
        assert!(reason.contains("ended with exit status") && reason.contains("serve"), "{reason}");
    }

    #[tokio::test]
    async fn a_missing_binary_is_named() {
        let reason = Setup::new("").binary("/nowhere/nevertwice").try_start().await.err().unwrap_or_default();
        assert!(reason.contains("/nowhere/nevertwice") && reason.contains("cargo build"), "{reason}");
    }
}
