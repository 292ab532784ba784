//! Tenants: who is asking, and what each may call.

use std::collections::HashMap;

use http::HeaderName;
use nevertwice_domain::tenant::{KeyHash, TenantId, UpstreamName};
use secrecy::ExposeSecret;

use super::{Context, headers, upstreams::Named};
use crate::checked::{Admin, Identity, RouteRights, Tenant};
use crate::problem::Place;
use crate::raw::read::At;
use crate::raw::{self, Config, near};
use crate::secret::{self, Purpose};

pub(super) fn identity(
    config: &Config,
    upstreams: &[Named],
    admin: Option<&(Admin, Option<Place>)>,
    cx: &mut Context<'_>,
) -> Identity {
    let header = config.identity.as_ref().and_then(|identity| identity.value.tenant_header.as_ref());
    // a header that is given but wrong still means that tenants without a key are meant
    let by_header = header.is_some() || cx.found.explains("identity.tenant_header");
    let tenant_header: Option<HeaderName> =
        header.and_then(|h| headers::header(&h.value, headers::Use::Tenant, &h.place, cx.found));
    let mut tenants: Vec<Tenant> = Vec::new();
    let mut ids = HashMap::new();
    let mut keys = HashMap::new();
    if let Some((Admin { token: Some(token), .. }, Some(place))) = admin {
        keys.insert(KeyHash::of(token.expose_secret()), place.clone());
    }
    if let Some(At { value: list, place }) = &config.tenants
        && list.is_empty()
        && !cx.found.explains(&place.path)
    {
        let cure = "list the tenants, or remove the key: then everyone is the tenant `default`";
        cx.found.error(place, "the list is empty", cure);
    }
    for At { value: raw, place } in config.tenants.iter().flat_map(|list| &list.value) {
        let id = tenant_id(raw, place, &mut ids, cx);
        let key = key(raw, place, by_header, &mut keys, cx);
        let routes = routes(raw.routes.as_ref(), upstreams, cx);
        if let Some(id) = id {
            tenants.push(Tenant { id, key, routes });
        }
    }
    Identity { tenant_header, tenants }
}

fn tenant_id(
    raw: &raw::Tenant,
    block: &Place,
    seen: &mut HashMap<String, Place>,
    cx: &mut Context<'_>,
) -> Option<TenantId> {
    let At { value: text, place } = cx.required(raw.id.as_ref(), block, "id", "give every tenant an `id`")?;
    unique(text, place, seen, "tenant", cx)?;
    match TenantId::new(text) {
        Ok(id) => Some(id),
        Err(error) => {
            cx.found.error(place, "this is not a valid tenant id", error.to_string());
            None
        }
    }
}

/// Names that differ in letter case alone are refused too: people and dashboards mix them up.
pub(super) fn unique(
    text: &str,
    place: &Place,
    seen: &mut HashMap<String, Place>,
    what: &str,
    cx: &mut Context<'_>,
) -> Option<()> {
    let folded = text.trim().to_lowercase();
    if let Some(first) = seen.get(&folded) {
        let cause = format!(
            "another {what} has this name, at {} (letter case and blanks do not count)",
            first.word()
        );
        cx.found.error(place, cause, "give each a name of its own");
        return None;
    }
    seen.insert(folded, place.clone());
    Some(())
}

fn key(
    raw: &raw::Tenant,
    block: &Place,
    by_header: bool,
    seen: &mut HashMap<KeyHash, Place>,
    cx: &mut Context<'_>,
) -> Option<KeyHash> {
    let (hash, place) = match (&raw.key, &raw.key_sha256) {
        (Some(_), Some(hex)) => {
            cx.found.error(&hex.place, "a tenant has `key` or `key_sha256`, not both", "keep one of them");
            return None;
        }
        (Some(reference), None) => {
            let secret = secret::resolve(reference, Purpose::Token, cx.base, cx.secrets, cx.found)?;
            (KeyHash::of(secret.expose_secret()), &reference.place)
        }
        (None, Some(hex)) => match KeyHash::from_hex(&hex.value) {
            Some(hash) => (hash, &hex.place),
            None => {
                let cure = "write 64 hex digits, as `printf %s KEY | sha256sum` prints them";
                cx.found.error(&hex.place, "this is not a SHA-256", cure);
                return None;
            }
        },
        (None, None) => {
            let told = cx.found.explains(&block.key_path("key_sha256"));
            if !by_header && !told {
                let cause =
                    "the tenant has neither `key` nor `key_sha256`, and there is no `identity.tenant_header`";
                cx.found.missing(block, "key", cause, "add `key: env:NAME`");
            }
            return None;
        }
    };
    if let Some(first) = seen.get(&hash) {
        let cause = format!("the same key is used at {}", first.word());
        cx.found.error(place, cause, "give each tenant, and the admin API, a key of its own");
        return None;
    }
    seen.insert(hash, place.clone());
    Some(hash)
}

fn routes(raw: Option<&At<Vec<At<String>>>>, upstreams: &[Named], cx: &mut Context<'_>) -> RouteRights {
    let Some(At { value: raw, place }) = raw else { return RouteRights::All };
    if raw.is_empty() && !cx.found.explains(&place.path) {
        cx.found.error(
            place,
            "the tenant may call nothing",
            "list upstreams, write [\"*\"], or remove the tenant",
        );
    }
    if let Some(all) = raw.iter().find(|route| route.value == "*") {
        if raw.len() > 1 {
            cx.found.error(&all.place, "`*` is all upstreams already", "keep `*` or the names");
        }
        return RouteRights::All;
    }
    let mut names: Vec<UpstreamName> = Vec::new();
    for At { value: text, place } in raw {
        match UpstreamName::new(text)
            .ok()
            .filter(|name| upstreams.iter().any(|u| u.name.as_ref() == Some(name)))
        {
            Some(name) if names.contains(&name) => {
                cx.found.error(place, "this upstream is listed twice", "keep one of them");
            }
            Some(name) => names.push(name),
            None => {
                let known = upstreams.iter().filter_map(|u| u.name.as_ref()).map(UpstreamName::as_str);
                cx.found.error(
                    place,
                    "there is no upstream of this name",
                    near::cure(text, known, "upstreams"),
                );
            }
        }
    }
    RouteRights::Only(names)
}
