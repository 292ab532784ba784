//! Where the request goes, and whether the memory looks at it. Whether the tenant may go there is checked here, before
//! anything that could tell what the memory knows.

use std::sync::Arc;

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderName, Method, header};
use nevertwice_config::checked::{Facade, Upstream as UpstreamConfig};
use nevertwice_domain::outcome::OwnCode;

use super::Rejection;
use super::identify::Tenant;
use crate::Shared;
use crate::exchange::connection::Caller;
use crate::facade::azure_di::{self, Asked};
use crate::upstream::{GuardedBy, Upstream};

/// The way of one request.
pub(crate) struct Plan {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) upstream: Arc<Upstream>,
    /// For the audit: the listed path, or `*`.
    pub(crate) route: Arc<str>,
    /// As the upstream will see it.
    pub(crate) path: PathAndQuery,
    /// What guards it; `None` = the request passes without the memory.
    pub(crate) guarded: Option<GuardedBy>,
    /// What it is about, on the wire of Azure Document Intelligence.
    pub(crate) asked: Asked,
    /// Scheme, authority and path in front of the upstream's paths, as the caller knows them; where addresses are made of it.
    pub(crate) origin: Option<String>,
}

impl Plan {
    /// The route's own fields that go up.
    pub(super) fn key_headers(&self) -> &[HeaderName] {
        let rules = self.guarded.as_ref().and(self.upstream.guard.as_ref());
        rules.map_or(&[], |guard| &guard.rules.key_headers)
    }

    /// The keys under which a JSON request holds the document in base64.
    pub(super) fn document_keys(&self) -> &[Box<str>] {
        self.guarded.as_ref().map_or(&[], |guarded| guarded.profile.documents())
    }
}

/// Finds the upstream that is mounted there.
pub(super) fn route(
    gateway: &Shared,
    tenant: Arc<Tenant>,
    head: &Parts,
    caller: Option<Caller>,
) -> Result<Plan, Rejection> {
    if head.method == Method::CONNECT {
        return Err(Rejection::with(OwnCode::NotSupported, "CONNECT is not supported"));
    }
    check_head(gateway, head)?;
    let whole = head.uri.path_and_query().ok_or(OwnCode::NoRoute)?;
    let path = whole.path();
    check_path(path)?;
    let mut mounted = gateway.upstreams.iter().filter_map(|u| Some((u, u.config.mount.as_deref()?)));
    let (upstream, mount) = mounted.find(|(_, mount)| under(path, mount)).ok_or(OwnCode::NoRoute)?;
    if !tenant.rights.allow(upstream.name()) {
        return Err(OwnCode::ForbiddenRoute.into());
    }
    let config = &upstream.config;
    let within = &path[mount.len()..];
    let within = if within.is_empty() { "/" } else { within };
    let asked = azure_di(config, &head.method, within);
    let listed = config.sync_paths.iter().position(|p| p == within);
    if listed.is_none() && !config.all_paths && config.strict_paths {
        return Err(OwnCode::NoRoute.into());
    }
    let has_document = [Method::POST, Method::PUT, Method::PATCH].contains(&head.method);
    let takes_document = listed.is_some() || config.all_paths || matches!(asked, Asked::Submit);
    let guarded = if has_document && takes_document { upstream.guarded_by(&tenant.id) } else { None };
    let route = match listed {
        Some(i) => Arc::clone(&upstream.routes[i]),
        None => Arc::clone(&gateway.any_route),
    };
    let path = if mount.is_empty() { whole.clone() } else { rebase(within, whole.query())? };
    let origin = match config.adapter.facade() {
        Facade::AzureDi => {
            let no_host =
                Rejection::with(OwnCode::BadRequest, "without a host no address can be made for the caller");
            let origin = azure_di::origin(gateway, head, caller).ok_or(no_host)?;
            Some(format!("{origin}{mount}"))
        }
        Facade::Sync | Facade::OpenAi => None,
    };
    Ok(Plan { tenant, upstream: Arc::clone(upstream), route, path, guarded, asked, origin })
}

fn azure_di(config: &UpstreamConfig, method: &Method, within: &str) -> Asked {
    match config.adapter.facade() {
        Facade::AzureDi => Asked::of(method, within),
        Facade::Sync | Facade::OpenAi => Asked::Else,
    }
}

/// The way of a document that is handed over as a job: as if its path had been called, with POST, where the upstream is mounted; what is
/// for jobs alone has the memory on every path.
pub(crate) fn of_job(
    gateway: &Shared,
    tenant: Arc<Tenant>,
    upstream: &str,
    path: PathAndQuery,
) -> Result<Plan, Rejection> {
    let named = gateway.upstreams.iter().find(|u| u.name().as_str() == upstream);
    let upstream = named.ok_or(OwnCode::NoRoute)?;
    if !tenant.rights.allow(upstream.name()) {
        return Err(OwnCode::ForbiddenRoute.into());
    }
    check_path(path.path())?;
    let config = &upstream.config;
    let listed = config.sync_paths.iter().position(|p| p == path.path());
    let every = config.all_paths || config.adapter.for_jobs();
    if listed.is_none() && !every && config.strict_paths {
        return Err(OwnCode::NoRoute.into());
    }
    let submits = matches!(azure_di(config, &Method::POST, path.path()), Asked::Submit);
    let has_memory = listed.is_some() || every || submits;
    let guarded = if has_memory { upstream.guarded_by(&tenant.id) } else { None };
    let route = match listed {
        Some(i) => Arc::clone(&upstream.routes[i]),
        None => Arc::clone(&gateway.any_route),
    };
    Ok(Plan {
        tenant,
        upstream: Arc::clone(upstream),
        route,
        path,
        guarded,
        asked: Asked::Else,
        origin: None,
    })
}

fn check_path(path: &str) -> Result<(), Rejection> {
    if !path.starts_with('/') {
        return Err(OwnCode::NoRoute.into());
    }
    if path.contains(['.', '%']) && has_dot_segment(path) {
        return Err(Rejection::with(
            OwnCode::BadRequest,
            "the path has a dot segment, which could lead out of its route",
        ));
    }
    Ok(())
}

/// Whether `path` is `mount` or below it.
fn under(path: &str, mount: &str) -> bool {
    path.strip_prefix(mount).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn rebase(path: &str, query: Option<&str>) -> Result<PathAndQuery, Rejection> {
    let text = match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    PathAndQuery::from_maybe_shared(text).map_err(|_| OwnCode::BadRequest.into())
}

/// Whether a segment is `.` or `..` to anybody: also with escaped dots and slashes, backslashes, and parameters behind.
fn has_dot_segment(path: &str) -> bool {
    let plain = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    plain.split(['/', '\\']).any(|segment| matches!(segment.split(';').next(), Some("." | "..")))
}

/// What the framing validator has seen on HTTP/1, seen again where it does not look (HTTP/2).
pub(crate) fn check_head(gateway: &Shared, head: &Parts) -> Result<(), Rejection> {
    if head.headers.len() > gateway.http.header_max_count {
        return Err(OwnCode::HeadersTooLarge.into());
    }
    let lengths = head.headers.get_all(header::CONTENT_LENGTH).iter().count();
    let coded = head.headers.contains_key(header::TRANSFER_ENCODING);
    if lengths > 1 || (lengths == 1 && coded) {
        return Err(Rejection::with(OwnCode::BadRequest, "the request states its length in two ways"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_ends_at_a_segment() {
        assert!(under("/ocr", "/ocr") && under("/ocr/x", "/ocr") && under("/x", ""));
        assert!(!under("/ocrx", "/ocr") && !under("/oc", "/ocr"));
    }

    #[test]
    fn dot_segments_in_all_their_spellings() {
        for dot in [
            "/.",
            "/a/..",
            "/%2e",
            "/%2E%2e/x",
            "/.%2e",
            "/..%2fx",
            "/a%5C..",
            "/..;a=1/x",
            "/a%2F%2e%2e%2Fb",
        ] {
            assert!(has_dot_segment(dot), "{dot}");
        }
        for plain in ["/", "/...", "/a.b", "/.a", "/a%2fb", "/%2e%2e%2e", "/.well-known", "/a;..", "/x..y"] {
            assert!(!has_dot_segment(plain), "{plain}");
        }
    }
}
