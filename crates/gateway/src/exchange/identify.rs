//! Who is asking: a key, or the tenant header. Two things that contradict each other are refused.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, header};
use nevertwice_config::checked::{Identity, RouteRights};
use nevertwice_domain::outcome::OwnCode;
use nevertwice_domain::tenant::{KeyHash, TenantId};

use super::Rejection;
use crate::Shared;
use crate::metrics::{Metrics, TenantMetrics};

/// The longest key that is looked at.
const MAX_KEY: usize = 4096;

/// Headers in which a tenant may present its key, beside `Authorization: Bearer`.
pub(crate) const KEY_HEADERS: [&str; 3] = ["api-key", "x-api-key", "ocp-apim-subscription-key"];

/// A tenant at run time.
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    pub(crate) rights: RouteRights,
    pub(crate) metrics: TenantMetrics,
    key: Option<KeyHash>,
}

/// All tenants, ready to be looked up.
pub(crate) struct Tenants {
    by_key: HashMap<KeyHash, Arc<Tenant>>,
    by_id: HashMap<TenantId, Arc<Tenant>>,
    /// Whoever asks, when nobody is configured and no header names anybody.
    anyone: Option<Arc<Tenant>>,
    /// The series of tenants that are known by the header alone: their names are not configured, so they are no labels.
    unlisted: TenantMetrics,
    /// Where one's own proxy names the tenant.
    pub(crate) header: Option<HeaderName>,
    /// Whether tenants have keys: then the key headers are the gateway's and never go upstream.
    pub(crate) keyed: bool,
}

impl Tenants {
    pub(crate) fn new(identity: Identity, metrics: &Metrics) -> Self {
        let tenant = |id: TenantId, rights, key| {
            Arc::new(Tenant { metrics: metrics.tenant(id.as_str()), id, rights, key })
        };
        let anonymous = identity.tenants.is_empty() && identity.tenant_header.is_none();
        let listed: Vec<_> = identity.tenants.into_iter().map(|t| tenant(t.id, t.routes, t.key)).collect();
        let by_key: HashMap<_, _> = listed.iter().filter_map(|t| Some((t.key?, Arc::clone(t)))).collect();
        Self {
            keyed: !by_key.is_empty(),
            by_key,
            by_id: listed.into_iter().map(|t| (t.id.clone(), t)).collect(),
            anyone: anonymous.then(|| tenant(TenantId::anonymous(), RouteRights::All, None)),
            unlisted: metrics.tenant("(unlisted)"),
            header: identity.tenant_header,
        }
    }

    /// Whether there may be more than one.
    pub(crate) fn are_several(&self) -> bool {
        self.anyone.is_none() && self.by_id.len() != 1
    }

    /// The configured ids.
    pub(crate) fn ids(&self) -> Vec<TenantId> {
        self.by_id.keys().cloned().collect()
    }

    /// The tenant of this id, for what the gateway does by itself on its behalf; `None` = it is not configured any more.
    pub(crate) fn named(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        match &self.anyone {
            Some(anyone) => Some(Arc::clone(anyone)).filter(|anyone| anyone.id == *id),
            None => self.by_name(id.clone()),
        }
    }

    fn by_key(&self, presented: &[u8]) -> Option<Arc<Tenant>> {
        let hash = KeyHash::of(presented);
        let found = self.by_key.get(&hash)?;
        // the map finds by hash, the comparison that grants access is constant-time
        found.key.is_some_and(|key| key.matches(&hash)).then(|| Arc::clone(found))
    }

    /// Who the proxy says it is: a listed tenant; with none listed, any valid name.
    fn by_name(&self, id: TenantId) -> Option<Arc<Tenant>> {
        match self.by_id.get(&id) {
            Some(tenant) => Some(Arc::clone(tenant)),
            None if self.by_id.is_empty() => {
                let metrics = self.unlisted.clone();
                Some(Arc::new(Tenant { id, rights: RouteRights::All, metrics, key: None }))
            }
            None => None,
        }
    }
}

/// The tenant that these headers speak for.
pub(super) fn tenant(gateway: &Shared, headers: &HeaderMap) -> Result<Arc<Tenant>, Rejection> {
    let tenants = &gateway.tenants;
    let unauthenticated = || Rejection::from(OwnCode::Unauthenticated);
    let named = match &tenants.header {
        Some(name) => named_tenant(tenants, headers, name)?,
        None => None,
    };
    if !tenants.keyed {
        return named.or_else(|| tenants.anyone.clone()).ok_or_else(unauthenticated);
    }
    match (presented_key(headers)?, named) {
        (Some(key), named) => {
            let tenant = tenants.by_key(key).ok_or_else(unauthenticated)?;
            if named.is_some_and(|n| n.id != tenant.id) { Err(unauthenticated()) } else { Ok(tenant) }
        }
        (None, Some(named)) => Ok(named),
        (None, None) => Err(unauthenticated()),
    }
}

fn named_tenant(
    tenants: &Tenants,
    headers: &HeaderMap,
    name: &HeaderName,
) -> Result<Option<Arc<Tenant>>, Rejection> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| TenantId::new(text).ok());
    let known = id.and_then(|id| tenants.by_name(id));
    match (known, values.next()) {
        (Some(tenant), None) => Ok(Some(tenant)),
        _ => Err(OwnCode::Unauthenticated.into()),
    }
}

/// The one key that the request presents. The same key in two headers is one; two different ones are a contradiction.
fn presented_key(headers: &HeaderMap) -> Result<Option<&[u8]>, Rejection> {
    let mut found: Option<&[u8]> = None;
    let bearers = headers.get_all(header::AUTHORIZATION).iter().map(|v| bearer(v.as_bytes()));
    let others = KEY_HEADERS.iter().flat_map(|name| headers.get_all(*name)).map(|v| Some(v.as_bytes()));
    for key in bearers.chain(others) {
        let key = key.filter(|k| !k.is_empty() && k.len() <= MAX_KEY).ok_or(OwnCode::Unauthenticated)?;
        if found.is_some_and(|f| f != key) {
            return Err(OwnCode::Unauthenticated.into());
        }
        found = Some(key);
    }
    Ok(found)
}

/// The credentials of `Authorization: Bearer` (RFC 6750 section 2.1); the scheme's case does not count.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}
