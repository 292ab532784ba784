//! The routes, and what holds for all of them: who may ask, how long an answer may take, and that every refusal is a
//! problem document.

mod jobs;
mod moving;
mod refusals;
mod shapes;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Json, Router};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use nevertwice_gateway::{Coverage, Phase, UnclassifiedRefusals, UpstreamStatus};
use serde_json::{Value, json};

use crate::access::Who;
use crate::problem::{Code, Problem};
use crate::query::{self, no_parameters, parameters};
use crate::{Peer, Reloaded, Shared, Version, memory_off};

/// How long any answer may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the store may take to show that it works.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest body of a request, in bytes.
const BODY_MAX_BYTES: usize = 64 * 1024;
/// Imports at once; more wait their turn, before their bodies are read.
pub(crate) const IMPORTS: usize = 2;
/// What Prometheus takes for OpenMetrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The description for programs, kept by hand; a test holds it against [`routes`].
const OPENAPI: &str = include_str!("../openapi.json");

type Answer<T> = Result<Json<T>, Problem>;

/// Every path there is.
fn routes() -> Vec<(&'static str, MethodRouter<Arc<Shared>>)> {
    vec![
        ("/healthz", get(health)),
        ("/readyz", get(ready)),
        ("/metrics", get(metrics)),
        ("/admin/v1/version", get(version)),
        ("/admin/v1/refusals", get(refusals::list)),
        ("/admin/v1/refusals/forget", post(refusals::forget)),
        ("/admin/v1/refusals/export", get(moving::export)),
        (
            "/admin/v1/refusals/import",
            post(moving::import).layer(DefaultBodyLimit::max(moving::IMPORT_MAX_BYTES)),
        ),
        ("/admin/v1/refusals/{fingerprint}", get(refusals::show).delete(refusals::forget_one)),
        ("/admin/v1/jobs", get(jobs::list)),
        ("/admin/v1/jobs/{id}", get(jobs::show)),
        ("/admin/v1/jobs/{id}/cancel", post(jobs::cancel)),
        ("/admin/v1/jobs/{id}/retry", post(jobs::retry)),
        ("/admin/v1/unclassified", get(unclassified)),
        ("/admin/v1/coverage", get(coverage)),
        ("/admin/v1/upstreams", get(upstreams)),
        ("/admin/v1/upstreams/{name}/recover", post(recover)),
        ("/admin/v1/reload", post(reload)),
        ("/admin/v1/openapi.json", get(openapi)),
    ]
}

/// The API as one service.
pub(crate) fn router(state: Arc<Shared>) -> Router {
    let router =
        routes().into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods));
    router
        .fallback(async || Problem::new(Code::NoPath, "the paths are listed in /admin/v1/openapi.json"))
        .layer(DefaultBodyLimit::max(BODY_MAX_BYTES))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&state), every_request))
        .with_state(state)
}

async fn every_request(State(state): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    let mut response = match state.access.admit(&head) {
        Err(problem) => problem.into_response(),
        Ok(who) => {
            head.extensions.insert(who);
            let answer = next.run(Request::from_parts(head, body));
            match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
                Ok(response) => with_problem(response),
                Err(_) => Problem::new(Code::TimedOut, "what was asked for may still happen").into_response(),
            }
        }
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The router's own refusal of a method has no body; it adds `Allow` after this.
fn with_problem(response: Response) -> Response {
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        return Problem::new(Code::MethodNotAllowed, "`Allow` says which methods there are").into_response();
    }
    response
}

async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

async fn ready(State(state): State<Arc<Shared>>) -> Response {
    let Ok(gateway) = state.gateway() else {
        let body = json!({ "status": "starting", "store": "unknown" });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    };
    let store = gateway.store();
    if gateway.phase() == Phase::Draining {
        let body = json!({ "status": "draining", "store": if store.is_some() { "ok" } else { "off" } });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    let store = match store {
        None => "off",
        Some(store) => match tokio::time::timeout(PROBE_TIMEOUT, store.entries()).await {
            Ok(Ok(_)) => "ok",
            // degraded, not unready: requests go upstream without the memory
            Ok(Err(_)) | Err(_) => "failing",
        },
    };
    Json(json!({ "status": "ready", "store": store })).into_response()
}

async fn metrics(State(state): State<Arc<Shared>>) -> Result<impl IntoResponse, Problem> {
    let text = state.gateway()?.metrics().await;
    Ok(([(CONTENT_TYPE, OPENMETRICS)], text))
}

async fn version(State(state): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Answer<Version> {
    no_parameters(query.as_deref())?;
    Ok(Json(state.version.clone()))
}

async fn openapi(RawQuery(query): RawQuery) -> Result<impl IntoResponse, Problem> {
    no_parameters(query.as_deref())?;
    Ok(([(CONTENT_TYPE, "application/json")], OPENAPI))
}

async fn coverage(State(state): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Answer<Coverage> {
    no_parameters(query.as_deref())?;
    Ok(Json(state.gateway()?.coverage()))
}

async fn unclassified(
    State(state): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
) -> Answer<UnclassifiedRefusals> {
    let given = parameters(query.as_deref(), &["all"])?;
    let all = given
        .get("all", |text| text.parse::<bool>().map_err(|_| "has to be `true` or `false`".to_owned()))?;
    let list = state.gateway()?.unclassified(all.unwrap_or(false));
    list.map(Json).ok_or_else(memory_off)
}

#[derive(serde::Serialize)]
struct Upstreams {
    items: Vec<UpstreamStatus>,
}

async fn upstreams(State(state): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Answer<Upstreams> {
    no_parameters(query.as_deref())?;
    Ok(Json(Upstreams { items: state.gateway()?.upstreams() }))
}

async fn recover(
    State(state): State<Arc<Shared>>,
    Extension(who): Extension<Who>,
    Extension(Peer(peer)): Extension<Peer>,
    RawQuery(query): RawQuery,
    name: Result<Path<String>, PathRejection>,
) -> Answer<Value> {
    no_parameters(query.as_deref())?;
    let gateway = state.gateway()?;
    let known = refusals::known_upstreams(&gateway);
    let name = segment(name)?;
    let Some(name) = query::upstream(&name).ok().filter(|name| gateway.has_upstream(name)) else {
        return Err(Problem::new(Code::NoUpstream, known));
    };
    let Some(recovered) = gateway.recover(&name) else {
        return Err(Problem::new(Code::MemoryOff, format!("the refusal memory is off on `{name}`")));
    };
    tracing::info!(
        target: "nevertwice::audit",
        who = who.name(), %peer, upstream = %name, recovered,
        "mass-refusal guard asked to recover"
    );
    Ok(Json(json!({ "recovered": recovered })))
}

async fn reload(
    State(state): State<Arc<Shared>>,
    Extension(who): Extension<Who>,
    Extension(Peer(peer)): Extension<Peer>,
    RawQuery(query): RawQuery,
) -> Answer<Reloaded> {
    no_parameters(query.as_deref())?;
    let gateway = state.gateway()?;
    let Some(reload) = state.reload.clone() else {
        return Err(Problem::new(Code::NoFile, "start it with `--config FILE` to have something to reload"));
    };
    let reloading = tokio::task::spawn_blocking(move || reload(&gateway)).await;
    let done = reloading.map_err(|_| Problem::new(Code::TimedOut, "the reload broke off"))?;
    let reloaded = done.map_err(|problems| {
        tracing::warn!(
            target: "nevertwice::audit",
            who = who.name(), %peer, problems = problems.all.len(),
            "reload refused: the configuration does not hold, what was live stays live"
        );
        Problem::configuration(&problems)
    })?;
    tracing::info!(
        target: "nevertwice::audit",
        who = who.name(), %peer, changed = ?reloaded.changed, restart_needed = reloaded.restart_needed,
        "reloaded: profiles"
    );
    Ok(Json(reloaded))
}

/// A path segment.
fn segment(path: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    path.map(|Path(segment)| segment).map_err(|_| Problem::bad("the path is not UTF-8"))
}

#[cfg(test)]
mod tests;
