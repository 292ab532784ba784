//! An upstream at run time: its connections, its pool, its side of the memory and its series.

pub(crate) mod client;
mod connections;

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use nevertwice_config::checked::{ScopeRule, Upstream as UpstreamConfig};
use nevertwice_domain::fingerprint::{DeploymentKey, KeyBase, upstream_identity};
use nevertwice_domain::tenant::{Scope, TenantId, UpstreamName};
use secrecy::ExposeSecret;

use crate::memory::{Memory, UpstreamGuard};
use crate::metrics::{Metrics, UpstreamMetrics};
use crate::pool::Pool;
use client::Client;

/// An upstream at run time.
pub struct Upstream {
    pub(crate) config: UpstreamConfig,
    pub(crate) client: Client,
    pub(crate) pool: Arc<Pool>,
    pub(crate) metrics: UpstreamMetrics,
    pub(crate) credential: Option<(HeaderName, HeaderValue)>,
    /// The memory's side; `None` = the memory is off here.
    pub(crate) guard: Option<UpstreamGuard>,
    /// The unchanging part of the key, by scope of the caller.
    key_bases: HashMap<Option<TenantId>, Arc<KeyBase>>,
    shared_base: Option<Arc<KeyBase>>,
    /// Routes for the audit, by path.
    pub(crate) routes: Vec<Arc<str>>,
}

impl Upstream {
    pub(crate) fn new(
        mut config: UpstreamConfig,
        tenants: &[TenantId],
        memory: Option<&Memory>,
        metrics: &Metrics,
    ) -> Result<Self, StartError> {
        let name = config.name.clone();
        let credential = match &config.credential {
            None => None,
            Some(c) => {
                let mut value = HeaderValue::from_bytes(c.value.expose_secret())
                    .map_err(|_| StartError::Credential(name.clone()))?;
                value.set_sensitive(true);
                Some((c.header.clone(), value))
            }
        };
        let guard = config.memory.take().filter(|_| memory.is_some()).map(UpstreamGuard::new);
        let (key_bases, shared_base) = match (memory, &guard) {
            (Some(memory), Some(guard)) => bases(&config, guard, tenants, &memory.key, credential.as_ref()),
            _ => (HashMap::new(), None),
        };
        let statuses = memory.zip(guard.as_ref()).map(|(m, guard)| m.statuses_at(guard).collect::<Vec<_>>());
        Ok(Self {
            client: Client::new(&config)?,
            pool: Pool::new(config.pool.clone()),
            metrics: metrics.upstream(name.as_str(), config.pool.max_in_flight, statuses.as_deref()),
            credential,
            guard,
            key_bases,
            shared_base,
            routes: config.sync_paths.iter().map(|p| p.as_str().into()).collect(),
            config,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &UpstreamName {
        &self.config.name
    }

    /// The unchanging part of the key for a caller; `None` when the memory is off here.
    pub(crate) fn key_base(&self, tenant: &TenantId) -> Option<Arc<KeyBase>> {
        match &self.shared_base {
            Some(base) => Some(Arc::clone(base)),
            None => match self.key_bases.get(&Some(tenant.clone())) {
                Some(base) => Some(Arc::clone(base)),
                // a tenant that is known by header alone and has an entry nowhere: a scope of its own
                None => self.key_bases.get(&None).map(|own| {
                    let scope = Scope::Tenant(tenant.clone()).to_string().into();
                    Arc::new(KeyBase { scope, ..KeyBase::clone(own) })
                }),
            },
        }
    }
}

type Bases = (HashMap<Option<TenantId>, Arc<KeyBase>>, Option<Arc<KeyBase>>);

fn bases(
    config: &UpstreamConfig,
    guard: &UpstreamGuard,
    tenants: &[TenantId],
    key: &DeploymentKey,
    credential: Option<&(HeaderName, HeaderValue)>,
) -> Bases {
    let urls: Vec<String> = config.base_urls.iter().map(ToString::to_string).collect();
    let identity =
        upstream_identity(key, &urls, credential.map(|(name, value)| (name.as_str(), value.as_bytes())));
    let base = |scope: &Scope| {
        let generation = guard.rules.generation.clone();
        Arc::new(KeyBase::new(scope, config.name.clone(), identity.clone(), generation))
    };
    let domain_of = |tenant: &TenantId| match &guard.rules.scope {
        ScopeRule::Domains(domains) => {
            domains.iter().find(|d| d.tenants.contains(tenant)).map(|d| Scope::Domain(Arc::clone(&d.name)))
        }
        _ => None,
    };
    if guard.rules.scope == ScopeRule::Fleet {
        return (HashMap::new(), Some(base(&Scope::Fleet)));
    }
    // members of a domain may be known by the tenant header alone
    let members = match &guard.rules.scope {
        ScopeRule::Domains(domains) => domains.iter().flat_map(|d| &d.tenants).collect(),
        _ => Vec::new(),
    };
    let mut by_tenant: HashMap<_, _> = tenants
        .iter()
        .chain(members)
        .map(|t| (Some(t.clone()), base(&domain_of(t).unwrap_or_else(|| Scope::Tenant(t.clone())))))
        .collect();
    by_tenant.insert(None, base(&Scope::Tenant(TenantId::anonymous())));
    (by_tenant, None)
}

/// Why an upstream, and so the gateway, cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The credential has characters that no header can carry.
    #[error("the credential of upstream {0} holds characters that a header field cannot carry")]
    Credential(UpstreamName),
    /// The memory is configured, and there is no store for it.
    #[error("the memory is on and has no store")]
    NoStore,
    /// TLS files that cannot be used.
    #[error("{0}")]
    Tls(String),
    /// An address that cannot be listened on.
    #[error("cannot listen on {addr}: {error}")]
    Listen {
        /// The address.
        addr: std::net::SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// An audit sink that cannot be opened.
    #[error("cannot open the audit {path}: {error}")]
    Audit {
        /// The sink.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// A spill directory that cannot be written.
    #[error("cannot write to the spill directory {path}: {error}")]
    SpillDir {
        /// The directory.
        path: String,
        /// Why.
        error: std::io::Error,
    },
}
