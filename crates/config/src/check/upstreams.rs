//! The services that the gateway calls.

use std::collections::HashMap;
use std::time::Duration;

use http::Uri;
use http::uri::Authority;
use nevertwice_domain::tenant::UpstreamName;

use super::{Context, base_url, guarded, headers, identity, jobs, path};
use crate::bounds;
use crate::checked::{Adapter, ClientTls, Credential, Drive, Memory, Pool, TlsFiles, Upstream};
use crate::problem::Place;
use crate::raw::read::At;
use crate::raw::{self, Config};
use crate::secret::{self, Purpose};

/// An upstream's name and mount, which other parts of the configuration refer to.
pub(super) struct Named {
    pub(super) name: Option<UpstreamName>,
    mount: Option<String>,
}

/// The names and mounts of all upstreams, in file order; `None` where there is a problem.
pub(super) fn names(config: &Config, block: &Place, cx: &mut Context<'_>) -> Vec<Named> {
    let cure = "add a list of `- name: NAME` and `base_url: URL`";
    let Some(upstreams) = cx.required(config.upstreams.as_ref(), block, "upstreams", cure) else {
        return Vec::new();
    };
    if upstreams.value.is_empty() && !cx.found.explains(&upstreams.place.path) {
        cx.found.error(&upstreams.place, "there is no upstream", cure);
    }
    let mut names = HashMap::new();
    let mut mounts: HashMap<String, Place> = HashMap::new();
    let jobs = jobs::served(config);
    let mut out = Vec::new();
    for At { value: raw, place } in &upstreams.value {
        let name = upstream_name(raw, place, &mut names, cx);
        let (mount, here) = match (&raw.mount, &name) {
            (Some(given), _) => (path::mount(&given.value, &given.place, cx.found), &given.place),
            (None, name) if adapter(raw).for_jobs() => {
                if name.as_ref().is_some_and(|name| [".", ".."].contains(&name.as_str())) {
                    let here = raw.name.as_ref().map_or(place, |n| &n.place);
                    cx.found.error(here, "this name cannot be a path", "use another name");
                }
                (None, place)
            }
            (None, Some(name)) if [".", ".."].contains(&name.as_str()) => {
                cx.found.missing(place, "mount", "this name cannot be a path", "add `mount: /PREFIX`");
                (None, place)
            }
            (None, Some(name)) => (Some(format!("/{name}")), raw.name.as_ref().map_or(place, |n| &n.place)),
            (None, None) => (None, place),
        };
        if let Some(mount) = &mount {
            if jobs && (mount == "/jobs" || mount.starts_with("/jobs/")) {
                let here = Place { path: place.key_path("mount"), at: here.at };
                let cause = "under `/jobs` are the jobs of this gateway";
                cx.found.error(&here, cause, "add `mount: /PREFIX` with another prefix");
            }
            if let Some(first) = mounts.get(mount) {
                let cause = format!("another upstream has this mount, at {}", first.word());
                let here = Place { path: place.key_path("mount"), at: here.at };
                cx.found.error(&here, cause, "give each a mount of its own; `/` is for one upstream");
            } else {
                mounts.insert(mount.clone(), here.clone());
            }
        }
        out.push(Named { name, mount });
    }
    out
}

fn upstream_name(
    raw: &raw::Upstream,
    block: &Place,
    seen: &mut HashMap<String, Place>,
    cx: &mut Context<'_>,
) -> Option<UpstreamName> {
    let At { value: text, place } =
        cx.required(raw.name.as_ref(), block, "name", "give every upstream a `name`")?;
    identity::unique(text, place, seen, "upstream", cx)?;
    match UpstreamName::new(text) {
        Ok(name) => Some(name),
        Err(error) => {
            cx.found.error(place, "this is not a valid upstream name", error.to_string());
            None
        }
    }
}

/// What the memory guards where it is on for chat: the requests that carry input (OpenAI API reference).
const OPENAI_PATHS: [&str; 4] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"];

/// All upstreams that can be built; the others have problems.
pub(super) fn upstreams(
    config: &Config,
    names: &[Named],
    memory: Option<&Memory>,
    cx: &mut Context<'_>,
) -> Vec<Upstream> {
    let list = config.upstreams.iter().flat_map(|list| &list.value);
    list.zip(names).filter_map(|(raw, named)| upstream(raw, named, config, memory, cx)).collect()
}

fn upstream(
    raw: &At<raw::Upstream>,
    named: &Named,
    config: &Config,
    memory: Option<&Memory>,
    cx: &mut Context<'_>,
) -> Option<Upstream> {
    let At { value: raw, place } = raw;
    let adapter = adapter(raw);
    let base_urls = base_urls(raw, place, cx);
    let credential = raw.credential.as_ref().and_then(|c| credential(c, cx));
    // which rules hold depends on an adapter that could not be read: say nothing about them
    let adapter_known = !cx.found.explains(&place.key_path("adapter"));
    let mut sync_paths = sync_paths(raw, place, adapter, adapter_known, cx);
    let memory = adapter_known
        .then(|| guarded::memory(raw, place, adapter, credential.as_ref(), config, memory, cx))
        .flatten();
    if adapter == Adapter::OpenAi && memory.is_some() {
        sync_paths = OPENAI_PATHS.map(str::to_owned).into();
    }
    let pool = pool(raw.pool.as_ref(), cx);
    let tls = tls(raw.tls.as_ref(), &base_urls, cx);
    let timeout = cx.millis(&bounds::TIMEOUT_MS, raw.timeout_ms.as_ref());
    let idle_timeout = cx.millis(&bounds::IDLE_TIMEOUT_MS, raw.idle_timeout_ms.as_ref());
    let connect_timeout = cx.millis(&bounds::CONNECT_TIMEOUT_MS, raw.connect_timeout_ms.as_ref());
    let poll_hosts = poll_hosts(raw, cx);
    let poll_interval = cx.millis(&bounds::POLL_INTERVAL_MS, raw.poll_interval_ms.as_ref());
    let operation_timeout = cx.millis(&bounds::OPERATION_TIMEOUT_MS, raw.operation_timeout_ms.as_ref());
    if adapter_known {
        polls(raw, place, adapter, (poll_interval, operation_timeout), jobs::served(config), cx);
    }
    let stream_max = bounds::STREAM_MAX_MS.given(raw.stream_max_ms.as_ref(), cx.found);
    Some(Upstream {
        name: named.name.clone()?,
        adapter,
        base_urls,
        mount: if raw.mount.is_none() && adapter.for_jobs() { None } else { Some(named.mount.clone()?) },
        sync_paths,
        all_paths: cx.all_paths,
        strict_paths: raw.strict_paths.as_ref().is_some_and(|s| s.value),
        poll_hosts,
        poll_interval,
        operation_timeout,
        credential,
        pool,
        timeout,
        idle_timeout,
        stream_max: stream_max.map(Duration::from_millis),
        connect_timeout,
        tls,
        memory,
    })
}

/// What the upstream is; `sync-facade` where that cannot be read.
pub(super) fn adapter(raw: &raw::Upstream) -> Adapter {
    match raw.adapter.as_ref().map(|a| a.value) {
        Some(raw::Adapter::SyncFacade) | None => Adapter::SyncFacade,
        Some(raw::Adapter::OpenAi) => Adapter::OpenAi,
        Some(raw::Adapter::AzureDiFacade) => Adapter::AzureDiFacade,
        Some(raw::Adapter::Classify) => Adapter::Classify,
        Some(raw::Adapter::AzureDi) => Adapter::AzureDi,
        Some(raw::Adapter::GpuServerJob) => Adapter::GpuServerJob,
    }
}

fn poll_hosts(raw: &raw::Upstream, cx: &mut Context<'_>) -> Vec<Authority> {
    let mut seen: Vec<(Authority, &Place)> = Vec::new();
    for At { value: text, place } in raw.poll_hosts.iter().flat_map(|list| &list.value) {
        let host = match base_url::authority(text) {
            Ok(host) => host,
            Err((cause, cure)) => {
                cx.found.error(place, cause, cure);
                continue;
            }
        };
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == host) {
            let cause = format!("the same host is listed at {} already", first.word());
            cx.found.error(place, cause, "keep one of them");
            continue;
        }
        seen.push((host, place));
    }
    seen.into_iter().map(|(host, _)| host).collect()
}

/// What says how to poll, where nothing is polled.
fn polls(
    raw: &raw::Upstream,
    block: &Place,
    adapter: Adapter,
    (interval, timeout): (Duration, Duration),
    jobs: bool,
    cx: &mut Context<'_>,
) {
    if let Some(hosts) = raw.poll_hosts.as_ref().filter(|_| adapter.drive() != Drive::SubmitAndPoll) {
        let cause = format!("`poll_hosts` has no meaning for the adapter `{}`", adapter.name());
        let cure = "remove it: it is for `azuredi-facade` and `azure-di` alone";
        cx.found.error(&hosts.place, cause, cure);
    }
    let given = [
        ("poll_interval_ms", raw.poll_interval_ms.as_ref()),
        ("operation_timeout_ms", raw.operation_timeout_ms.as_ref()),
    ];
    let mut first: Option<&Place> = None;
    for (key, number) in given {
        let Some(At { place, .. }) = number else { continue };
        if adapter.drive() == Drive::OnePost {
            no_meaning(key, place, adapter, cx);
        } else if !jobs {
            let cause = format!("`{key}` has no effect: it is for jobs, and there are none");
            cx.found.warning(place, cause, "add `jobs: {}` at the top level, or remove it");
        }
        first = first.or(Some(place));
    }
    let told = given.iter().any(|(key, _)| cx.found.explains(&block.key_path(key)));
    if let Some(place) = first.filter(|_| interval >= timeout && !told) {
        let cause = format!(
            "no operation is ever polled: the wait of {} ms is not below the {} ms of the whole",
            interval.as_millis(),
            timeout.as_millis()
        );
        cx.found.error(place, cause, "lower `poll_interval_ms` or raise `operation_timeout_ms`");
    }
}

fn base_urls(raw: &raw::Upstream, block: &Place, cx: &mut Context<'_>) -> Vec<Uri> {
    let cure = "add `base_url: http://HOST:PORT`";
    let Some(list) = cx.required(raw.base_url.as_ref(), block, "base_url", cure) else { return Vec::new() };
    if list.value.0.is_empty() && !cx.found.explains(&list.place.path) {
        cx.found.error(&list.place, "the list is empty", "give at least one URL");
    }
    let mut seen: Vec<(Uri, &Place)> = Vec::new();
    for At { value: text, place } in &list.value.0 {
        let Some(uri) = base_url::base_url(text, place, cx.found) else { continue };
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == uri) {
            let cause = format!("the same URL is listed at {} already", first.word());
            cx.found.error(place, cause, "keep one of them");
            continue;
        }
        seen.push((uri, place));
    }
    seen.into_iter().map(|(uri, _)| uri).collect()
}

fn credential(raw: &At<raw::Credential>, cx: &mut Context<'_>) -> Option<Credential> {
    let At { value: raw, place } = raw;
    let header = cx
        .required(raw.header.as_ref(), place, "header", "name the header, as in `header: Authorization`")
        .and_then(|h| headers::header(&h.value, headers::Use::Credential, &h.place, cx.found));
    let value = cx
        .required(raw.value.as_ref(), place, "value", "add `value: env:NAME`")
        .and_then(|v| secret::resolve(v, Purpose::HeaderValue, cx.base, cx.secrets, cx.found));
    Some(Credential { header: header?, value: value? })
}

fn sync_paths(
    raw: &raw::Upstream,
    block: &Place,
    adapter: Adapter,
    adapter_known: bool,
    cx: &mut Context<'_>,
) -> Vec<String> {
    let mut seen: Vec<(String, &Place)> = Vec::new();
    for At { value: text, place } in raw.sync_paths.iter().flat_map(|list| &list.value) {
        let Some(path) = path::upstream_path(text, place, cx.found) else { continue };
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == path) {
            let cause = format!("the same path is listed at {} already", first.word());
            cx.found.error(place, cause, "keep one of them");
            continue;
        }
        seen.push((path, place));
    }
    let strict = raw.strict_paths.as_ref().filter(|s| s.value);
    if !adapter_known {
        return Vec::new();
    }
    let by_path = match adapter {
        Adapter::SyncFacade => true,
        Adapter::Classify => raw.mount.is_some(),
        Adapter::OpenAi | Adapter::AzureDiFacade | Adapter::AzureDi | Adapter::GpuServerJob => false,
    };
    if by_path {
        let told = cx.found.explains(&block.key_path("sync_paths"));
        match (strict, &raw.sync_paths) {
            (Some(strict), _) if seen.is_empty() && !told => {
                let cause = "`strict_paths` without `sync_paths` refuses every request";
                cx.found.error(&strict.place, cause, "list the paths in `sync_paths`");
            }
            (_, Some(list)) if list.value.is_empty() && !told => {
                let cure = "list the paths that have the memory, or remove it";
                cx.found.error(&list.place, "the list is empty", cure);
            }
            _ => {}
        }
        return seen.into_iter().map(|(path, _)| path).collect();
    }
    let given = [
        ("sync_paths", raw.sync_paths.as_ref().map(|l| &l.place)),
        ("strict_paths", strict.map(|s| &s.place)),
    ];
    for (key, place) in given {
        let Some(place) = place else { continue };
        if adapter == Adapter::Classify {
            let cause = format!("`{key}` has no meaning without `mount`: jobs have the memory on every path");
            cx.found.error(place, cause, "add `mount: /PREFIX`, or remove it");
        } else {
            no_meaning(key, place, adapter, cx);
        }
    }
    Vec::new()
}

fn no_meaning(key: &str, place: &Place, adapter: Adapter, cx: &mut Context<'_>) {
    let cause = format!("`{key}` has no meaning for the adapter `{}`", adapter.name());
    cx.found.error(place, cause, "remove it");
}

fn pool(raw: Option<&At<raw::Pool>>, cx: &mut Context<'_>) -> Pool {
    let none = raw::Pool::default();
    let raw = raw.map_or(&none, |pool| &pool.value);
    Pool {
        max_in_flight: cx.size(&bounds::MAX_IN_FLIGHT, raw.max_in_flight.as_ref()),
        max_queue: cx.size(&bounds::MAX_QUEUE, raw.max_queue.as_ref()),
        queue_timeout: cx.millis(&bounds::QUEUE_TIMEOUT_MS, raw.queue_timeout_ms.as_ref()),
        connection_idle: cx.millis(&bounds::IDLE_CONNECTION_MS, raw.idle_connection_ms.as_ref()),
    }
}

fn tls(raw: Option<&At<raw::ClientTls>>, base_urls: &[Uri], cx: &mut Context<'_>) -> ClientTls {
    let Some(raw) = raw else { return ClientTls::default() };
    if !base_urls.is_empty() && base_urls.iter().all(|url| url.scheme_str() == Some("http")) {
        let cause = "`tls` has no effect: no `base_url` is https";
        cx.found.warning(&raw.place, cause, "use https, or remove `tls`");
    }
    client_tls(raw, cx)
}

pub(super) fn client_tls(raw: &At<raw::ClientTls>, cx: &mut Context<'_>) -> ClientTls {
    let At { value: raw, place } = raw;
    let client = match (&raw.client_cert, &raw.client_key) {
        (Some(cert), Some(key)) => Some(TlsFiles { cert: cx.path(&cert.value), key: cx.path(&key.value) }),
        (Some(_), None) => {
            cx.found.missing(place, "client_key", "`client_cert` needs `client_key`", "add `client_key`");
            None
        }
        (None, Some(_)) => {
            cx.found.missing(place, "client_cert", "`client_key` needs `client_cert`", "add `client_cert`");
            None
        }
        (None, None) => None,
    };
    ClientTls { ca: raw.ca.as_ref().map(|ca| cx.path(&ca.value)), client }
}
