//! `nevertwice serve`: runs the gateway until it is told to stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use nevertwice_admin::{AdminServer, Reload, Reloaded};
use nevertwice_config::checked::Checked;
use nevertwice_config::problem::Problems;
use nevertwice_config::secret::Process;
use nevertwice_domain::clock::{Clock, SystemClock};
use nevertwice_gateway::{Foundations, Gateway};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::build_info;
use crate::cmd::check::{report_problems, report_warnings};
use crate::exit::{Exit, Failure};
use crate::store::{self, Stores};

/// What to serve.
#[derive(Args, Debug)]
pub struct Serve {
    /// The configuration file
    #[arg(long, value_name = "FILE", required_unless_present = "upstream", conflicts_with = "upstream")]
    config: Option<PathBuf>,
    /// Serve this upstream without a file: embedded store in ./nevertwice-data, memory on for every POST, PUT and PATCH,
    /// mounted at /
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where tenants connect, with --upstream
    #[arg(long, value_name = "ADDR", default_value_t = nevertwice_config::DEFAULT_LISTEN, requires = "upstream")]
    listen: SocketAddr,
    /// Write the audit to this file, with --upstream
    #[arg(long, value_name = "FILE", requires = "upstream")]
    audit: Option<PathBuf>,
    /// Worker threads; 0 = one per core
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
}

impl Serve {
    fn config(&self) -> Result<Checked, Failure> {
        match (&self.config, &self.upstream) {
            (Some(path), _) => {
                let loaded = nevertwice_config::read(path, &Process).map_err(|p| report_problems(&p))?;
                report_warnings(&loaded.warnings);
                Ok(loaded.checked)
            }
            (None, Some(url)) => nevertwice_config::for_upstream(url, self.listen, self.audit.as_deref())
                .map_err(|p| report_problems(&p)),
            (None, None) => Err(Failure::input("either --config or --upstream is needed")),
        }
    }
}

/// Serves until a signal ends it.
pub async fn run(serve: &Serve) -> Result<Exit, Failure> {
    let running = Running::start(serve.config()?, serve.config.as_deref()).await?;
    running.until_signal().await
}

/// Reads the configuration file again, and puts its profiles in force.
fn reload(file: &Path, live: &str, gateway: &Gateway) -> Result<Reloaded, Problems> {
    let loaded = nevertwice_config::read(file, &Process)?;
    report_warnings(&loaded.warnings);
    let memories = loaded.checked.upstreams.iter().filter_map(|u| Some((&u.name, u.memory.as_ref()?)));
    let changed = memories
        .filter(|(name, memory)| gateway.judge_by(name, Arc::clone(&memory.profile)))
        .map(|(name, _)| name.to_string())
        .collect();
    let restart_needed = loaded.checked.digest != live;
    Ok(Reloaded { profiles: gateway.profiles(), changed, restart_needed })
}

/// A gateway with its store and its admin listener.
pub struct Running {
    /// The gateway.
    pub gateway: Gateway,
    admin: Option<AdminServer>,
    ready: watch::Sender<Option<Gateway>>,
}

impl Running {
    /// Opens the store, then the admin listener, then the gateway. `file` is where the configuration came from.
    pub async fn start(mut config: Checked, file: Option<&Path>) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let version = build_info::version(&config.digest, clock.now());
        let (ready, seen) = watch::channel(None);
        let admin = match config.admin.take() {
            None => None,
            Some(admin) => {
                let listen = admin.listen;
                let reload = file.map(|file| {
                    let (file, live) = (file.to_owned(), config.digest.clone());
                    // one at a time: what was read first must not be put in force last
                    let turn = Mutex::new(());
                    Arc::new(move |gateway: &Gateway| {
                        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                        reload(&file, &live, gateway)
                    }) as Reload
                });
                let server = nevertwice_admin::start(admin, version, seen, reload).await;
                Some(server.with_context(|| format!("cannot listen on the admin address {listen}"))?)
            }
        };
        let Stores { refusals, operations, jobs } = store::open(&config, Arc::clone(&clock)).await?;
        let foundations = Foundations { store: refusals, operations, jobs, clock };
        let gateway = Gateway::start(config, foundations).await.map_err(anyhow::Error::new)?;
        for addr in gateway.addresses() {
            tracing::info!(%addr, "listening");
        }
        ready.send_replace(Some(gateway.clone()));
        Ok(Self { gateway, admin, ready })
    }

    /// The admin listener's address.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(AdminServer::addr)
    }

    /// Waits for SIGTERM, SIGINT or SIGHUP, then drains; a second one cuts at once.
    pub async fn until_signal(self) -> Result<Exit, Failure> {
        let mut term = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
        let mut hangup = signal(SignalKind::hangup()).context("cannot watch for SIGHUP")?;
        let mut user1 = signal(SignalKind::user_defined1()).context("cannot watch for SIGUSR1")?;
        loop {
            tokio::select! {
                _ = term.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => break,
                _ = user1.recv() => self.gateway.reopen_audit(),
            }
        }
        tracing::info!("draining: no new work, what is under way may finish; a second signal ends at once");
        let gateway = self.gateway.clone();
        let drain = gateway.drain();
        let mut drain = std::pin::pin!(drain);
        tokio::select! {
            () = drain.as_mut() => {}
            _ = async { tokio::select! { _ = term.recv() => (), _ = interrupt.recv() => () } } => {
                tracing::warn!("cut by a second signal");
                self.gateway.cut();
                drain.await;
            }
        }
        self.stop_admin().await;
        tracing::info!("stopped");
        Ok(Exit::Done)
    }

    async fn stop_admin(self) {
        drop(self.ready);
        if let Some(admin) = self.admin {
            let _ = tokio::time::timeout(Duration::from_secs(1), admin.stop()).await;
        }
    }
}
