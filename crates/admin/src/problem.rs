//! How the API says no: RFC 9457 problem documents with a closed list of codes.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use nevertwice_config::problem::Problems;
use nevertwice_store::{StoreError, StoreErrorKind};
use serde_json::json;

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    BadRequest,
    Unauthenticated,
    ForbiddenOrigin,
    NoPath,
    NoRefusal,
    NoUpstream,
    NoJob,
    MethodNotAllowed,
    MemoryOff,
    JobsOff,
    NoFile,
    BadConfiguration,
    BodyTooLarge,
    TooManyFailures,
    Starting,
    StoreFailed,
    TimedOut,
}

impl Code {
    /// Status, code and title; the only place that says them.
    fn facts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "BAD_REQUEST", "the request is not understood"),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "a valid token is needed"),
            Self::ForbiddenOrigin => {
                (StatusCode::FORBIDDEN, "FORBIDDEN_ORIGIN", "not open to web pages and foreign names")
            }
            Self::NoPath => (StatusCode::NOT_FOUND, "NO_PATH", "there is nothing at this path"),
            Self::NoRefusal => (StatusCode::NOT_FOUND, "NO_REFUSAL", "no such refusal is remembered"),
            Self::NoUpstream => (StatusCode::NOT_FOUND, "NO_UPSTREAM", "there is no such upstream"),
            Self::NoJob => (StatusCode::NOT_FOUND, "NO_JOB", "there is no such job"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", "the path does not know this method")
            }
            Self::MemoryOff => (StatusCode::CONFLICT, "MEMORY_OFF", "the refusal memory is off"),
            Self::JobsOff => (StatusCode::CONFLICT, "JOBS_OFF", "jobs are not served"),
            Self::NoFile => (StatusCode::CONFLICT, "NO_FILE", "the gateway was started without a file"),
            Self::BadConfiguration => {
                (StatusCode::UNPROCESSABLE_ENTITY, "BAD_CONFIGURATION", "the configuration does not hold")
            }
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", "the body is too large"),
            Self::TooManyFailures => {
                (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_FAILURES", "too many failed attempts to log in")
            }
            Self::Starting => (StatusCode::SERVICE_UNAVAILABLE, "STARTING", "the gateway is starting"),
            Self::StoreFailed => (StatusCode::SERVICE_UNAVAILABLE, "STORE_FAILED", "the store failed"),
            Self::TimedOut => (StatusCode::SERVICE_UNAVAILABLE, "TIMED_OUT", "the request took too long"),
        }
    }
}

/// A refusal of the API itself, for people (`detail`) and programs (`code`).
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    detail: String,
    /// What is wrong with a configuration, one by one.
    problems: Vec<String>,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), problems: Vec::new() }
    }

    /// A configuration that does not hold, with all that is wrong.
    pub(crate) fn configuration(problems: &Problems) -> Self {
        let all = problems.to_string();
        Self {
            code: Code::BadConfiguration,
            detail: match problems.all.len() {
                1 => "1 problem; what was live stays live".to_owned(),
                many => format!("{many} problems; what was live stays live"),
            },
            problems: all.lines().map(str::to_owned).collect(),
        }
    }

    /// Something in the request is wrong.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "the store failed an operator's request");
        let hint = if error.kind == StoreErrorKind::Closed { "the gateway is stopping" } else { "try again" };
        Self::new(Code::StoreFailed, format!("{error}; {hint}"))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, code, title) = self.code.facts();
        let mut body = json!({
            "type": format!("urn:nevertwice:admin:{code}"),
            "title": title,
            "status": status.as_u16(),
            "code": code,
            "detail": self.detail,
        });
        if !self.problems.is_empty() {
            body["problems"] = self.problems.into();
        }
        let mut response = (status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.code {
            Code::Unauthenticated => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Code::TooManyFailures | Code::Starting => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
