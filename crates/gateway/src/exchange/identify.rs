//! Who is asking. A key beats the tenant header; two things that contradict each other are refused.

use std::collections::HashMap;

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
    all: Vec<Tenant>,
    by_key: HashMap<KeyHash, usize>,
    by_id: HashMap<TenantId, usize>,
    /// Where one's own proxy names the tenant.
    pub(crate) header: Option<HeaderName>,
    /// Whether tenants have keys: then the key headers are the gateway's and never go upstream.
    pub(crate) keyed: bool,
}

impl Tenants {
    pub(crate) fn new(identity: Identity, metrics: &Metrics) -> Self {
        let anonymous = identity.tenants.is_empty() && identity.tenant_header.is_none();
        let mut all: Vec<_> = identity
            .tenants
            .into_iter()
            .map(|t| Tenant {
                metrics: metrics.tenant(t.id.as_str()),
                id: t.id,
                rights: t.routes,
                key: t.key,
            })
            .collect();
        if anonymous {
            let id = TenantId::anonymous();
            all.push(Tenant {
                metrics: metrics.tenant(id.as_str()),
                id,
                rights: RouteRights::All,
                key: None,
            });
        }
        let by_key: HashMap<_, _> = all.iter().enumerate().filter_map(|(i, t)| Some((t.key?, i))).collect();
        let by_id = all.iter().enumerate().map(|(i, t)| (t.id.clone(), i)).collect();
        Self { keyed: !by_key.is_empty(), all, by_key, by_id, header: identity.tenant_header }
    }

    pub(crate) fn get(&self, tenant: usize) -> &Tenant {
        &self.all[tenant]
    }

    pub(crate) fn ids(&self) -> Vec<TenantId> {
        self.all.iter().map(|t| t.id.clone()).collect()
    }

    fn by_key(&self, presented: &[u8]) -> Option<usize> {
        let hash = KeyHash::of(presented);
        let found = *self.by_key.get(&hash)?;
        // the map finds by hash, the comparison that grants access is constant-time
        self.all[found].key.is_some_and(|key| key.matches(&hash)).then_some(found)
    }
}

/// The tenant that these headers speak for.
pub(super) fn tenant(gateway: &Shared, headers: &HeaderMap) -> Result<usize, Rejection> {
    let tenants = &gateway.tenants;
    let unauthenticated = || Rejection::from(OwnCode::Unauthenticated);
    let named = match &tenants.header {
        Some(name) => named_tenant(tenants, headers, name)?,
        None => None,
    };
    if !tenants.keyed {
        return match (&tenants.header, named) {
            (None, _) => Ok(0),
            (Some(_), named) => named.ok_or_else(unauthenticated),
        };
    }
    match (presented_key(headers)?, named) {
        (Some(key), named) => {
            let tenant = tenants.by_key(key).ok_or_else(unauthenticated)?;
            if named.is_some_and(|n| n != tenant) { Err(unauthenticated()) } else { Ok(tenant) }
        }
        (None, Some(named)) => Ok(named),
        (None, None) => Err(unauthenticated()),
    }
}

fn named_tenant(
    tenants: &Tenants,
    headers: &HeaderMap,
    name: &HeaderName,
) -> Result<Option<usize>, Rejection> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| TenantId::new(text).ok());
    let known = id.and_then(|id| tenants.by_id.get(&id).copied());
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
