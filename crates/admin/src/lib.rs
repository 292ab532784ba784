//! The admin API: what operators and their tools see of a gateway, and what they can do to its memory.
//!
//! It has a listener of its own, so that no tenant ever reaches it, and it is up before the gateway serves and after it
//! drains: `/readyz` has to say so. Everything it knows comes from [`Gateway`]; it holds no state of its own but a budget
//! for failed log-ins. `docs/admin.md` describes the endpoints for people, `openapi.json` for programs.

mod access;
mod api;
mod listener;
mod near;
mod problem;
mod query;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use nevertwice_config::checked::Admin;
use nevertwice_config::problem::Problems;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::tenant::KeyHash;
use nevertwice_gateway::Gateway;
use nevertwice_store::RefusalStore;
use nevertwice_store::work::JobStore;
use secrecy::ExposeSecret;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

pub use crate::listener::AdminServer;

use crate::access::Access;
use crate::problem::{Code, Problem};

/// What runs: `/admin/v1/version` answers with it.
#[derive(Clone, Debug, Serialize)]
pub struct Version {
    /// The program's version.
    pub version: String,
    /// The commit it was built from; `unknown` when it was built outside of a repository.
    pub commit: String,
    /// When it was built.
    pub built: Millis,
    /// Which configuration is live: the first 16 hex digits of the SHA-256 of its text.
    pub config_digest: String,
    /// When this process began to serve.
    pub started_at: Millis,
}

/// Reads the configuration again and puts what of it can change while requests run in force. It may read files.
pub type Reload = Arc<dyn Fn(&Gateway) -> Result<Reloaded, Problems> + Send + Sync>;

/// What a reload has done.
#[derive(Clone, Debug, Serialize)]
pub struct Reloaded {
    /// The profile in force, by upstream with the memory.
    pub profiles: BTreeMap<String, String>,
    /// The upstreams whose profile is another one than before, or has other rules.
    pub changed: Vec<String>,
    /// The text of the configuration is not the one that the gateway was started with: what of it is no profile takes a restart.
    pub restart_needed: bool,
}

/// Binds the admin listener and begins to answer. The gateway may come later: until it is there, whatever needs it answers
/// 503 with the code `STARTING`.
///
/// # Errors
/// When the address cannot be bound; when it is not loopback and there is no token; when the token is blank.
pub async fn start(
    admin: Admin,
    version: Version,
    gateway: watch::Receiver<Option<Gateway>>,
    reload: Option<Reload>,
) -> std::io::Result<AdminServer> {
    // the configuration refuses both already; a configuration built in code gets the same protection
    let refused = |why| std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
    let token = match &admin.token {
        None if !admin.listen.ip().to_canonical().is_loopback() => {
            return Err(refused("an admin address that is not loopback needs a token"));
        }
        None => None,
        Some(token) if token.expose_secret().trim_ascii().is_empty() => {
            return Err(refused("the admin token is blank"));
        }
        Some(token) => Some(KeyHash::of(token.expose_secret())),
    };
    let socket = listener::bind(admin.listen)?;
    let access = Access::new(token, socket.local_addr()?.ip());
    let tasks = TaskTracker::new();
    let imports = Arc::new(Semaphore::new(api::IMPORTS));
    let state = Arc::new(Shared { version, access, gateway, reload, imports, tasks: tasks.clone() });
    AdminServer::start(socket, api::router(state), tasks)
}

/// What every request of the API needs.
pub(crate) struct Shared {
    version: Version,
    access: Access,
    gateway: watch::Receiver<Option<Gateway>>,
    reload: Option<Reload>,
    /// Places for imports, whose bodies are large.
    imports: Arc<Semaphore>,
    /// What goes on although the caller has left; the server waits for it when it stops.
    tasks: TaskTracker,
}

impl Shared {
    fn gateway(&self) -> Result<Gateway, Problem> {
        let gateway = self.gateway.borrow().clone();
        gateway.ok_or_else(|| Problem::new(Code::Starting, "the gateway is starting, ask again in a moment"))
    }

    fn memory(&self) -> Result<(Gateway, Arc<dyn RefusalStore>), Problem> {
        let gateway = self.gateway()?;
        let store = gateway.store().ok_or_else(memory_off)?;
        Ok((gateway, store))
    }

    fn jobs(&self) -> Result<(Gateway, Arc<dyn JobStore>), Problem> {
        let gateway = self.gateway()?;
        let store = gateway.jobs().ok_or_else(|| {
            Problem::new(Code::JobsOff, "jobs are not served: set `jobs: {}` in the configuration")
        })?;
        Ok((gateway, store))
    }
}

fn memory_off() -> Problem {
    Problem::new(Code::MemoryOff, "the refusal memory is off: set `negative_cache.enabled: true`")
}

/// Who is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);
