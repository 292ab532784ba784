//! The memory on one upstream.

use std::collections::HashMap;
use std::sync::Arc;

use nevertwice_domain::canonical::form::FileNameRule;
use nevertwice_domain::guard::GuardPolicy;
use nevertwice_domain::loop_breaker::LoopBreakerPolicy;
use nevertwice_domain::profile::Profile;
use nevertwice_domain::status::RefusalStatus;
use nevertwice_domain::strike::{Ladder, LifePolicy};
use nevertwice_domain::tenant::TenantId;

use super::{Context, headers};
use crate::bounds;
use crate::checked::{Adapter, Credential, Memory, Mode, ScopeRule, TrustDomain, UpstreamMemory};
use crate::problem::Place;
use crate::raw::read::At;
use crate::raw::{self, Config, near};

const GENERATION_MAX_BYTES: usize = 256;

pub(super) fn memory(
    upstream: &raw::Upstream,
    block: &Place,
    adapter: Adapter,
    credential: Option<&Credential>,
    config: &Config,
    memory: Option<&Memory>,
    cx: &mut Context<'_>,
) -> Option<UpstreamMemory> {
    let none = At { value: raw::UpstreamCache::default(), place: block.missing("negative_cache") };
    let At { value: raw, place } = upstream.negative_cache.as_ref().unwrap_or(&none);
    let enabled = raw.enabled.as_ref().is_none_or(|e| e.value);
    let profile = profile(raw, adapter, upstream, cx);
    // chat refuses for an empty balance with the status of a bad document: there the memory needs rules, and a word that asks for it
    if adapter == Adapter::OpenAi && enabled && profile.rules().is_none() {
        let told = cx.found.explains(&place.key_path("profile"));
        if upstream.negative_cache.is_some() && !told {
            let here = raw.profile.as_ref().map_or(place, |profile| &profile.place);
            let cause = "chat refuses for an empty balance with the status of a bad document, so the memory needs a profile with rules";
            let cure = "name one, as in `profile: openai`, or remove `negative_cache` from this upstream";
            cx.found.error(here, cause, cure);
        }
        return None;
    }
    // every part is checked, whether or not the memory is on
    let checked = UpstreamMemory {
        profile,
        mode: match raw.mode.as_ref().map(|m| m.value) {
            Some(raw::Mode::Observe) => Mode::Observe,
            Some(raw::Mode::Enforce) | None => Mode::Enforce,
        },
        scope: scope(raw, place, config, cx),
        generation: part_of_key(raw.generation.as_ref(), "generation", cx),
        tier: part_of_key(raw.tier.as_ref(), "tier", cx),
        short_ttl: cx.seconds(&bounds::SHORT_TTL_S, raw.short_ttl_s.as_ref()),
        remember_keyed: raw.remember_keyed.as_ref().is_some_and(|keyed| keyed.value),
        trust_refusal_class: raw.trust_refusal_class.as_ref().is_some_and(|trust| trust.value),
        filename: match raw.filename.as_ref().map(|f| f.value) {
            Some(raw::FileName::Neutral) => FileNameRule::Neutral,
            Some(raw::FileName::Keyed) | None => FileNameRule::Keyed,
        },
        key_headers: key_headers(raw, credential, config, cx),
        ignored_query: ignored_query(raw, cx),
        life: life(raw, place, config, cx),
        single_flight_wait: cx.millis(&bounds::SINGLE_FLIGHT_WAIT_MS, raw.single_flight_wait_ms.as_ref()),
        judge_wait: cx.millis(&bounds::JUDGE_WAIT_MS, raw.judge_wait_ms.as_ref()),
        honor_cache_control: raw.honor_cache_control.as_ref().is_none_or(|h| h.value),
        guard: guard(raw.mass_refusal_guard.as_ref(), cx),
        loop_breaker: loop_breaker(raw, config, cx),
    };
    let Some(_) = memory else {
        let breaker = raw.loop_breaker.as_ref().and_then(|b| b.value.enabled.as_ref());
        if let Some(asked) = [raw.enabled.as_ref(), breaker].into_iter().flatten().find(|e| e.value)
            && !cx.found.explains("negative_cache")
        {
            let cause = "this has no effect: the top level's `negative_cache.enabled` is not true";
            cx.found.warning(&asked.place, cause, "add `negative_cache: {enabled: true}` at the top level");
        }
        return None;
    };
    if enabled
        && !cx.all_paths
        && adapter == Adapter::SyncFacade
        && upstream.sync_paths.is_none()
        && !cx.found.explains(&block.key_path("sync_paths"))
    {
        let cause = "the memory guards nothing on this upstream: it has no `sync_paths`";
        let cure = "list the paths that take documents, or write `negative_cache: {enabled: false}` here";
        cx.found.warning(&block.missing("sync_paths"), cause, cure);
    }
    enabled.then_some(checked)
}

/// The profile that is named; else the one that the adapter suggests.
fn profile(
    raw: &raw::UpstreamCache,
    adapter: Adapter,
    upstream: &raw::Upstream,
    cx: &mut Context<'_>,
) -> Arc<Profile> {
    let suggested = match (&raw.profile, adapter) {
        (Some(At { value: name, place }), _) => {
            let known = cx.profiles.get(name);
            if known.is_none() && !cx.found.explains("profiles") {
                cx.found.error(place, "there is no profile of this name", cx.profiles.cure(name));
            }
            known
        }
        (None, Adapter::OpenAi) if upstream.negative_cache.is_some() => {
            suggestion(upstream).and_then(|name| cx.profiles.get(name))
        }
        (None, Adapter::AzureDiFacade | Adapter::AzureDi) => cx.profiles.get(AZURE_DI),
        (None, _) => None,
    };
    suggested.unwrap_or_else(|| Arc::new(Profile::status()))
}

/// The profile of Azure Document Intelligence.
const AZURE_DI: &str = "azure-document-intelligence";

/// Hosts of services that speak the OpenAI API on its own paths, and their profiles.
const HOSTS: [(&str, &str); 6] = [
    ("api.openai.com", "openai"),
    (".openai.azure.com", "azure-openai"),
    (".cognitiveservices.azure.com", "azure-openai"),
    (".services.ai.azure.com", "azure-openai"),
    ("openrouter.ai", "openrouter"),
    ("api.featherless.ai", "featherless"),
];

/// The profile of a chat service, by its base URL or by the name that the operator gave it.
fn suggestion(upstream: &raw::Upstream) -> Option<&str> {
    let urls = upstream.base_url.iter().flat_map(|urls| &urls.value.0);
    let hosts =
        urls.filter_map(|url| url.value.parse::<http::Uri>().ok()?.host().map(str::to_ascii_lowercase));
    for host in hosts {
        let known = HOSTS.iter().find(|(end, _)| match end.strip_prefix('.') {
            Some(_) => host.ends_with(end),
            None => host == *end,
        });
        if let Some((_, name)) = known {
            return Some(name);
        }
    }
    upstream.name.as_ref().map(|name| name.value.as_str()).filter(|name| *name != Profile::STATUS)
}

fn part_of_key(raw: Option<&At<raw::Generation>>, what: &str, cx: &mut Context<'_>) -> String {
    let Some(At { value: raw::Generation(text), place }) = raw else { return String::new() };
    if text.len() > GENERATION_MAX_BYTES || text.chars().any(char::is_control) {
        let cause = format!("a {what} has at most {GENERATION_MAX_BYTES} bytes and no control characters");
        cx.found.error(place, cause, "use a short text or a number");
    }
    text.clone()
}

fn scope(raw: &raw::UpstreamCache, block: &Place, config: &Config, cx: &mut Context<'_>) -> ScopeRule {
    let domains = raw.trust_domains.as_ref().map(|list| (trust_domains(list, config, cx), &list.place));
    let kind = raw.scope.as_ref().map(|s| s.value);
    if kind != Some(raw::Scope::Domain)
        && let Some((_, place)) = domains
        && !cx.found.explains(&block.key_path("scope"))
    {
        cx.found.error(
            place,
            "`trust_domains` has no meaning without `scope: domain`",
            "add `scope: domain`",
        );
    }
    match kind {
        Some(raw::Scope::Fleet) | None => ScopeRule::Fleet,
        Some(raw::Scope::Tenant) => ScopeRule::Tenant,
        Some(raw::Scope::Domain) => {
            let cure = "add `trust_domains: [{name: NAME, tenants: [...]}]`";
            match domains {
                None => {
                    cx.found.missing(block, "trust_domains", "`scope: domain` needs `trust_domains`", cure)
                }
                Some((list, place)) if list.is_empty() && !cx.found.explains(&place.path) => {
                    cx.found.error(place, "the list is empty", cure);
                }
                Some((list, _)) => return ScopeRule::Domains(list),
            }
            ScopeRule::Domains(Vec::new())
        }
    }
}

fn trust_domains(
    list: &At<Vec<At<raw::TrustDomain>>>,
    config: &Config,
    cx: &mut Context<'_>,
) -> Vec<TrustDomain> {
    let mut names = HashMap::new();
    let mut members: HashMap<TenantId, Place> = HashMap::new();
    let mut out = Vec::new();
    for At { value: raw, place } in &list.value {
        let name = cx
            .required(raw.name.as_ref(), place, "name", "give every trust domain a `name`")
            .and_then(|name| {
                super::identity::unique(&name.value, &name.place, &mut names, "trust domain", cx)?;
                match TenantId::new(&name.value) {
                    Ok(valid) => Some(valid),
                    Err(error) => {
                        cx.found.error(&name.place, "this is not a valid name", error.to_string());
                        None
                    }
                }
            });
        let cure = "list the ids of its tenants";
        let tenants = cx.required(raw.tenants.as_ref(), place, "tenants", cure);
        if let Some(list) = tenants.filter(|t| t.value.is_empty())
            && !cx.found.explains(&list.place.path)
        {
            cx.found.error(&list.place, "the list is empty", cure);
        }
        let mut ids = Vec::new();
        for member in tenants.iter().flat_map(|list| &list.value) {
            let Some(id) = member_id(member, config, cx) else { continue };
            if let Some(first) = members.get(&id) {
                let cause = format!("this tenant is in a trust domain already, at {}", first.word());
                cx.found.error(&member.place, cause, "a tenant is in at most one trust domain");
                continue;
            }
            members.insert(id.clone(), member.place.clone());
            ids.push(id);
        }
        if let Some(name) = name {
            out.push(TrustDomain { name: name.as_str().into(), tenants: ids });
        }
    }
    out
}

fn member_id(member: &At<String>, config: &Config, cx: &mut Context<'_>) -> Option<TenantId> {
    let Ok(id) = TenantId::new(&member.value) else {
        cx.found.error(&member.place, "this is not a valid tenant id", "write the `id` of a tenant");
        return None;
    };
    let tenants = config.tenants.iter().flat_map(|list| &list.value).filter_map(|t| t.value.id.as_ref());
    let known = tenants.map(|id| id.value.as_str());
    // without a list of tenants the proxy in front names them, and any name may come
    let by_header = config.identity.as_ref().is_some_and(|identity| identity.value.tenant_header.is_some());
    if config.tenants.is_none() && by_header || known.clone().any(|k| k == id.as_str()) {
        return Some(id);
    }
    if !cx.found.explains("tenants") {
        let cure = near::cure(id.as_str(), known, "tenants");
        cx.found.error(&member.place, "there is no tenant of this id", cure);
    }
    None
}

fn key_headers(
    raw: &raw::UpstreamCache,
    credential: Option<&Credential>,
    config: &Config,
    cx: &mut Context<'_>,
) -> Vec<http::HeaderName> {
    let tenant_header = config.identity.as_ref().and_then(|i| i.value.tenant_header.as_ref());
    let mut seen: Vec<(http::HeaderName, &Place)> = Vec::new();
    for At { value: text, place } in raw.key_headers.iter().flat_map(|list| &list.value) {
        let Some(name) = headers::header(text, headers::Use::Key, place, cx.found) else { continue };
        if tenant_header.is_some_and(|header| header.value.eq_ignore_ascii_case(name.as_str())) {
            cx.found.error(
                place,
                format!("`{name}` cannot be used here: it names the tenant"),
                "use `scope: tenant`",
            );
        } else if credential.is_some_and(|credential| credential.header == name) {
            let cause = format!("`{name}` cannot be used here: the gateway's own credential is sent in it");
            cx.found.error(place, cause, "leave it out");
        } else if let Some((_, first)) = seen.iter().find(|(other, _)| *other == name) {
            cx.found.error(
                place,
                format!("`{name}` is listed at {} already", first.word()),
                "keep one of them",
            );
        } else {
            seen.push((name, place));
        }
    }
    seen.into_iter().map(|(name, _)| name).collect()
}

fn ignored_query(raw: &raw::UpstreamCache, cx: &mut Context<'_>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for At { value: name, place } in raw.ignored_query.iter().flat_map(|list| &list.value) {
        if name.is_empty() || !name.bytes().all(|b| (0x21..=0x7e).contains(&b) && !b"&=?#".contains(&b)) {
            let cure = "write the name alone, as it stands in the query, without `=` and value";
            cx.found.error(place, "this is not the name of a query parameter", cure);
        } else if seen.contains(name) {
            cx.found.error(place, "this parameter is listed twice", "keep one of them");
        } else {
            seen.push(name.clone());
        }
    }
    seen
}

fn life(raw: &raw::UpstreamCache, block: &Place, config: &Config, cx: &mut Context<'_>) -> LifePolicy {
    let shared = config.negative_cache.as_ref().and_then(|cache| cache.value.ttl_s.as_ref());
    let own = bounds::UPSTREAM_TTL_S.given(raw.ttl_s.as_ref(), cx.found);
    let ttl_s = match own {
        Some(own) => own,
        None => bounds::TTL_S.take(shared, cx.found),
    };
    let longest_s = if own.is_none()
        && (cx.found.explains(&block.key_path("ttl_s")) || shared_is_wrong("ttl_s", config, cx))
    {
        None
    } else {
        Some(ttl_s)
    };
    let ladder = raw.ttl_ladder.as_ref().map(|At { value: ladder, place }| {
        let first_s = bounds::FIRST_S.take(ladder.first_s.as_ref(), cx.found);
        let factor = bounds::FACTOR.take(ladder.factor.as_ref(), cx.found);
        if let Some(longest_s) = longest_s.filter(|longest| first_s > *longest) {
            let here = ladder.first_s.as_ref().map_or(place, |first| &first.place);
            let cause = format!("the first life of {first_s} s is longer than the longest of {longest_s} s");
            cx.found.error(here, cause, "lower `first_s` or raise `ttl_s`");
        }
        Ladder { first_ms: first_s * 1000, factor: u32::try_from(factor).unwrap_or(u32::MAX) }
    });
    let confirmations = bounds::CONFIRMATIONS.take(raw.confirmations.as_ref(), cx.found);
    let life = LifePolicy::flat(ttl_s * 1000).confirmed_by(u32::try_from(confirmations).unwrap_or(u32::MAX));
    let life = match ladder {
        Some(ladder) => life.climbing(ladder),
        None => life,
    };
    status_lives(raw, longest_s, config, cx)
        .into_iter()
        .fold(life, |life, (status, seconds)| life.capped_for(status, seconds * 1000))
}

/// What single statuses have, in seconds. `longest_s` is the cap of all lives, if it was written without a fault.
fn status_lives(
    raw: &raw::UpstreamCache,
    longest_s: Option<u64>,
    config: &Config,
    cx: &mut Context<'_>,
) -> Vec<(RefusalStatus, u64)> {
    let Some(At { value: raw::ByStatus(given), .. }) = &raw.status_ttl_s else { return Vec::new() };
    let remembered = super::memory::remembered(config.negative_cache.as_ref());
    let all_known = !shared_is_wrong("statuses", config, cx);
    let mut lives = Vec::new();
    for (status, seconds) in given {
        let place = &status.place;
        let Some(status) = super::memory::status(status, cx) else { continue };
        if all_known && !remembered.contains(status) {
            let cause = format!("{status} is not remembered: it is not in `negative_cache.statuses`");
            cx.found.error(place, cause, "remove it, or add it there");
        }
        let Some(life_s) = bounds::STATUS_TTL_S.given(seconds.as_ref(), cx.found) else { continue };
        if let Some(longest_s) = longest_s.filter(|longest| life_s > *longest) {
            let here = seconds.as_ref().map_or(place, |seconds| &seconds.place);
            let cause = format!("{life_s} s is longer than the longest life of {longest_s} s");
            cx.found.error(here, cause, "`ttl_s` is the cap: lower this or raise `ttl_s`");
        }
        lives.push((status, life_s));
    }
    lives
}

/// Whether a key of the top level's `negative_cache` was told to be wrong, so that nothing may follow from its value.
fn shared_is_wrong(key: &str, config: &Config, cx: &Context<'_>) -> bool {
    cx.found.explains(&format!("negative_cache.{key}"))
        || config.negative_cache.is_none() && cx.found.explains("negative_cache")
}

fn guard(raw: Option<&At<raw::Guard>>, cx: &mut Context<'_>) -> GuardPolicy {
    let none = raw::Guard::default();
    let raw = raw.map_or(&none, |guard| &guard.value);
    let usual = GuardPolicy::default();
    GuardPolicy {
        enabled: raw.enabled.as_ref().map_or(usual.enabled, |e| e.value),
        distinct: u32::try_from(bounds::DISTINCT.take(raw.distinct.as_ref(), cx.found)).unwrap_or(u32::MAX),
        window_ms: bounds::WINDOW_S.take(raw.window_s.as_ref(), cx.found) * 1000,
        share: raw.share.as_ref().map_or(usual.share, |share| share.value.0),
    }
}

/// It holds nothing where the memory only watches.
fn loop_breaker(
    upstream: &raw::UpstreamCache,
    config: &Config,
    cx: &mut Context<'_>,
) -> Option<LoopBreakerPolicy> {
    let At { value: raw, place } = upstream.loop_breaker.as_ref()?;
    let is = |flag: &Option<At<bool>>| flag.as_ref().is_some_and(|f| f.value);
    let tenants = config.tenants.as_ref().map_or(0, |list| list.value.len());
    let by_header = config.identity.as_ref().is_some_and(|identity| identity.value.tenant_header.is_some());
    let anonymous = tenants == 0 && !by_header;
    let shared = upstream.scope.as_ref().is_none_or(|s| s.value != raw::Scope::Tenant);
    let two_tenants = shared && !anonymous && !is(&raw.one_tenant_suffices);
    let policy = LoopBreakerPolicy {
        failures: u32::try_from(bounds::FAILURES.take(raw.failures.as_ref(), cx.found)).unwrap_or(u32::MAX),
        window_ms: bounds::FAILURES_WINDOW_S.take(raw.window_s.as_ref(), cx.found) * 1000,
        hold_ms: bounds::HOLD_S.take(raw.hold_s.as_ref(), cx.found) * 1000,
        two_tenants,
    };
    if is(&raw.enabled) && two_tenants && tenants == 1 && !cx.found.explains("tenants") {
        let cause = "this holds nothing: it takes failures of two tenants, and there is one";
        cx.found.warning(&place.missing("one_tenant_suffices"), cause, "add `one_tenant_suffices: true`");
    }
    let enforced = upstream.mode.as_ref().is_none_or(|m| m.value == raw::Mode::Enforce);
    (is(&raw.enabled) && enforced).then_some(policy)
}
