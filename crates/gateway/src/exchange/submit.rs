//! A document is handed over as a job: the line up to the question whether its outcome is known already.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::Incoming;
use nevertwice_domain::entry::Entry;
use nevertwice_domain::job::{JobField, JobRequest, ResultFacts};
use nevertwice_domain::outcome::OwnCode;

use super::account::Record;
use super::identify::Tenant;
use super::intake::{self, Document};
use super::{Rejection, headers, plan, recall, reply};
use crate::Shared;
use crate::upstream::Upstream;

/// A document that is to become a job.
pub(crate) struct Handed {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) request: JobRequest,
    document: Box<Document>,
    /// The refusal that it is known to meet.
    pub(crate) known: Option<Arc<Entry>>,
}

/// Takes it. What is asked of the memory is what a request to the path itself would ask.
pub(crate) async fn take(
    gateway: &Shared,
    tenant: Arc<Tenant>,
    (upstream, path): (&str, PathAndQuery),
    (mut head, body): (Parts, Incoming),
    limit: u64,
    record: &mut Record,
) -> Result<Handed, Rejection> {
    let plan = plan::of_job(gateway, tenant, upstream, path)?;
    record.plan(&plan);
    headers::strip_named(&mut head.headers);
    let document = intake::hold(gateway, &plan, &head, body, limit, record).await?;
    let known = recall::remembered(gateway, &plan, &head, &document, record).await;
    let request = JobRequest {
        path: plan.path.as_str().to_owned(),
        fields: headers::keyed(&head.headers, plan.key_headers()).map(|(n, v)| field(n, v)).collect(),
        bytes: document.body.length(),
        digest: recall::request_digest(&plan, &head, &document),
        document: known.as_ref().map(|entry| entry.document.digest),
    };
    Ok(Handed { upstream: plan.upstream, request, document, known })
}

impl Handed {
    /// The body as it came, in one piece.
    pub(crate) async fn input(&self) -> Result<Bytes, Rejection> {
        let piece = self.document.body.in_one_piece().await;
        piece.map_err(|error| {
            tracing::error!(%error, "a request body could not be read back from disk");
            OwnCode::SpillFailed.into()
        })
    }
}

/// A refusal is told to somebody who asked with a job.
pub(crate) fn count_replay(gateway: &Shared, entry: &Entry, record: &mut Record) {
    let _ = reply::count_replay(gateway, entry, record);
}

/// What is known of an entry as a result.
pub(crate) fn result_of(entry: &Entry) -> ResultFacts {
    let kept = [
        ("content-type", &entry.fields.content_type),
        ("content-encoding", &entry.fields.content_encoding),
        ("content-language", &entry.fields.content_language),
    ];
    let fields = kept
        .into_iter()
        .filter_map(|(name, value)| Some(JobField { name: name.into(), value: value.clone()? }));
    ResultFacts { status: entry.status.get(), fields: fields.collect(), bytes: entry.body.len() as u64 }
}

fn field(name: &HeaderName, value: &HeaderValue) -> JobField {
    JobField { name: name.as_str().to_owned(), value: Bytes::copy_from_slice(value.as_bytes()) }
}

/// The fields that a job goes up with.
pub(super) fn headers_of(fields: &[JobField]) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(fields.len());
    for JobField { name, value } in fields {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_maybe_shared(value.clone()))
        {
            out.append(name, value);
        }
    }
    out
}
