//! An upstream at run time: its connections, its pool, its side of the memory and its series.

pub(crate) mod client;
mod connections;

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{HeaderName, HeaderValue};
use nevertwice_config::checked::{ScopeRule, Upstream as UpstreamConfig, UpstreamMemory};
use nevertwice_domain::fingerprint::{DeploymentKey, KeyBase, UpstreamIdentity};
use nevertwice_domain::profile::{Dependency, Profile};
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::tenant::{Scope, TenantId, UpstreamName};
use secrecy::ExposeSecret;

use crate::loop_breaker::LoopBreaker;
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
    /// `None` = it is off here.
    pub(crate) loop_breaker: Option<LoopBreaker>,
    /// The rules in force, and what of the key follows from them; `None` = the memory is off here.
    in_force: Option<ArcSwap<InForce>>,
    tenants: Vec<TenantId>,
    /// Routes for the audit, by path.
    pub(crate) routes: Vec<Arc<str>>,
}

/// Rules that can be exchanged while requests run, and the unchanging part of the key, which they are part of.
struct InForce {
    profile: Arc<Profile>,
    /// By scope of the caller.
    key_bases: HashMap<Option<TenantId>, Arc<KeyBase>>,
    shared_base: Option<Arc<KeyBase>>,
}

/// What guards one request, from its plan to its end.
#[derive(Clone)]
pub(crate) struct GuardedBy {
    /// The unchanging part of the key.
    pub(crate) base: Arc<KeyBase>,
    /// The rules that the key names.
    pub(crate) profile: Arc<Profile>,
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
        let in_force = match (memory, &guard) {
            (Some(memory), Some(guard)) => {
                let profile = Arc::clone(&guard.rules.profile);
                let in_force = in_force(&config, guard, profile, tenants, &memory.key, credential.as_ref());
                Some(ArcSwap::from_pointee(in_force))
            }
            _ => None,
        };
        let policy = guard.as_ref().and_then(|guard| guard.rules.loop_breaker);
        let loop_breaker = policy.map(|policy| LoopBreaker::new(policy, metrics.loop_breaker(name.as_str())));
        let statuses = memory.zip(guard.as_ref()).map(|(memory, guard)| {
            let failed = guard.rules.profile.judges_200().then(RefusalStatus::failed_operation);
            memory.statuses.iter().chain(failed).collect::<Vec<_>>()
        });
        Ok(Self {
            client: Client::new(&config)?,
            pool: Pool::new(config.pool.clone()),
            metrics: metrics.upstream(name.as_str(), config.pool.max_in_flight, statuses.as_deref()),
            credential,
            guard,
            loop_breaker,
            in_force,
            tenants: tenants.to_vec(),
            routes: config.sync_paths.iter().map(|p| p.as_str().into()).collect(),
            config,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &UpstreamName {
        &self.config.name
    }

    /// What guards a caller's request; `None` when the memory is off here.
    pub(crate) fn guarded_by(&self, tenant: &TenantId) -> Option<GuardedBy> {
        let in_force = self.in_force.as_ref()?.load();
        let base = match &in_force.shared_base {
            Some(base) => Arc::clone(base),
            None => match in_force.key_bases.get(&Some(tenant.clone())) {
                Some(base) => Arc::clone(base),
                // a tenant that is known by header alone and has an entry nowhere: a scope of its own
                None => {
                    let own = in_force.key_bases.get(&None)?;
                    let scope = Scope::Tenant(tenant.clone()).to_string().into();
                    Arc::new(KeyBase { scope, ..KeyBase::clone(own) })
                }
            },
        };
        Some(GuardedBy { base, profile: Arc::clone(&in_force.profile) })
    }

    /// The profile in force; `None` when the memory is off here.
    #[must_use]
    pub fn profile(&self) -> Option<Arc<Profile>> {
        self.in_force.as_ref().map(|in_force| Arc::clone(&in_force.load().profile))
    }

    /// Puts a profile in force, for requests that are planned from now on. Its entries have keys of their own. Returns whether it is
    /// another one than before.
    pub(crate) fn judge_by(&self, profile: Arc<Profile>, key: &DeploymentKey) -> bool {
        let (Some(in_force), Some(guard)) = (&self.in_force, &self.guard) else { return false };
        let before = Arc::clone(&in_force.load().profile);
        if before.name() == profile.name() && before.revision() == profile.revision() {
            return false;
        }
        let credential = self.credential.as_ref();
        let next = self::in_force(&self.config, guard, profile, &self.tenants, key, credential);
        in_force.store(Arc::new(next));
        true
    }
}

fn in_force(
    config: &UpstreamConfig,
    guard: &UpstreamGuard,
    profile: Arc<Profile>,
    tenants: &[TenantId],
    key: &DeploymentKey,
    credential: Option<&(HeaderName, HeaderValue)>,
) -> InForce {
    let urls: Vec<String> = config.base_urls.iter().map(ToString::to_string).collect();
    let identity = UpstreamIdentity {
        base_urls: &urls,
        credential: credential.map(|(name, value)| (name.as_str(), value.as_bytes())),
        tier: &guard.rules.tier,
        profile: profile.revision(),
        trust_refusal_class: guard.rules.trust_refusal_class,
        remember_keyed: guard.rules.remember_keyed,
    };
    let identity = identity.encode(key);
    let base = |scope: &Scope| {
        let generation = guard.rules.generation.clone();
        Arc::new(KeyBase::new(scope, config.name.clone(), identity.clone(), generation))
    };
    if guard.rules.scope == ScopeRule::Fleet {
        return InForce { profile, key_bases: HashMap::new(), shared_base: Some(base(&Scope::Fleet)) };
    }
    let domain_of = |tenant: &TenantId| match &guard.rules.scope {
        ScopeRule::Domains(domains) => {
            domains.iter().find(|d| d.tenants.contains(tenant)).map(|d| Scope::Domain(Arc::clone(&d.name)))
        }
        _ => None,
    };
    // members of a domain may be known by the tenant header alone
    let members = match &guard.rules.scope {
        ScopeRule::Domains(domains) => domains.iter().flat_map(|d| &d.tenants).collect(),
        _ => Vec::new(),
    };
    let mut key_bases: HashMap<_, _> = tenants
        .iter()
        .chain(members)
        .map(|t| (Some(t.clone()), base(&domain_of(t).unwrap_or_else(|| Scope::Tenant(t.clone())))))
        .collect();
    key_bases.insert(None, base(&Scope::Tenant(TenantId::anonymous())));
    InForce { profile, key_bases, shared_base: None }
}

/// What an upstream's key holds beside the bytes of the request.
pub(crate) fn key_holds(rules: &UpstreamMemory) -> Vec<Dependency> {
    let mut held = vec![Dependency::Body, Dependency::ContentType, Dependency::Route];
    // a parameter that is sent and not keyed may be the one that the refusal is about
    if rules.ignored_query.is_empty() {
        held.extend([Dependency::Params, Dependency::ApiVersion]);
    }
    if !rules.tier.is_empty() {
        held.push(Dependency::Tier);
    }
    // an operator's word for the state of the upstream
    if !rules.generation.is_empty() {
        held.extend([Dependency::ServerConfig, Dependency::Policy]);
    }
    held
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
    /// Jobs are configured, and there is no store for them.
    #[error("jobs are served and have no store")]
    NoJobStore,
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
