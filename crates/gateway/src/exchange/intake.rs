//! Taking the request's body. On a guarded route it is read to its end and digested on the way: no complete body, no key.
//! Elsewhere it is passed on as it comes.

use std::io;
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use nevertwice_domain::canonical::fields::MediaType;
use nevertwice_domain::canonical::form::{FieldValue, FileNameRule, Form, FormReader};
use nevertwice_domain::fingerprint::BodyDigest;
use nevertwice_domain::outcome::OwnCode;

use super::Rejection;
use super::account::Record;
use super::plan::Plan;
use crate::Shared;
use crate::body::held::{Gathering, Held};
use crate::body::outbound::body_fault;

/// How much of a body that is at hand is digested before others get their turn.
const DIGEST_AT_ONCE: usize = 256 << 10;

/// A request's body, taken.
pub(super) enum Taken {
    /// Read to its end.
    Document(Box<Document>),
    /// Still coming.
    Passing(Incoming),
}

/// A complete body and what is known of it.
pub(super) struct Document {
    pub(super) body: Held,
    pub(super) digest: BodyDigest,
    /// Where the document is in the body: the file parts of a form, else all of it.
    pub(super) ranges: Vec<Range<u64>>,
    /// Whether the body was read as a form.
    pub(super) form: bool,
    /// A form's parts that are no files; `None` when they are too many to tell.
    pub(super) values: Option<Vec<FieldValue>>,
}

impl Document {
    /// Shows the body to `take`, piece by piece, as long as that wants more.
    pub(super) async fn read(&self, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        let mut at = 0;
        while let Some(chunk) = self.body.clone().chunk(at).await? {
            if !take(&chunk) {
                break;
            }
            at += chunk.len() as u64;
            // a long document must not hold up the other requests of this worker
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// Takes the body.
pub(super) async fn take(
    gateway: &Shared,
    plan: &Plan,
    head: &Parts,
    body: Incoming,
    record: &mut Record,
) -> Result<Taken, Rejection> {
    let limit = gateway.limits.body_max_bytes;
    if plan.guarded.is_none() {
        return match body.size_hint().lower() > limit {
            true => Err(OwnCode::BodyTooLarge.into()),
            false => Ok(Taken::Passing(body)),
        };
    }
    hold(gateway, plan, head, body, limit, record).await.map(Taken::Document)
}

/// Reads the body to its end, whether or not the memory wants it.
pub(super) async fn hold(
    gateway: &Shared,
    plan: &Plan,
    head: &Parts,
    body: Incoming,
    limit: u64,
    record: &mut Record,
) -> Result<Box<Document>, Rejection> {
    if body.size_hint().lower() > limit {
        return Err(OwnCode::BodyTooLarge.into());
    }
    let mut reading = Reading::new(gateway, plan, &head.headers, body.size_hint().exact(), limit);
    let read = read_all(gateway, body, &mut reading, record).await;
    record.bytes_in = reading.length;
    read?;
    record.body_unread = false;
    let Reading { gathering, digester, length, .. } = reading;
    let body = gathering.finish(&gateway.metrics).await.map_err(spill_failed)?;
    digester.finish(body, length).await
}

/// A body that is at hand in full, as [`hold`] would have it.
pub(super) async fn at_hand(
    gateway: &Shared,
    plan: &Plan,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Box<Document>, Rejection> {
    let mut digester = Digester::new(plan, headers);
    let mut length = 0;
    for chunk in body.chunks(DIGEST_AT_ONCE) {
        length += chunk.len() as u64;
        let turn = gateway.turns.take(length).await;
        digester.feed(chunk);
        drop(turn);
        tokio::task::yield_now().await;
    }
    digester.finish(Held::whole(body), length).await
}

/// How a body is digested.
enum Digester {
    Raw(Box<blake3::Hasher>),
    Form(Box<FormReader>),
}

struct Reading {
    gathering: Gathering,
    digester: Digester,
    length: u64,
    /// The most bytes.
    limit: u64,
}

async fn read_all(
    gateway: &Shared,
    mut body: Incoming,
    reading: &mut Reading,
    record: &mut Record,
) -> Result<(), Rejection> {
    let began = Instant::now();
    while !body.is_end_stream() {
        // what has arrived already is taken without looking at a clock
        let frame = match futures_util::future::poll_immediate(body.frame()).await {
            Some(frame) => frame,
            None => wait_for_frame(gateway, &mut body, began, reading.length, record).await?,
        };
        let chunk = match frame {
            None => return Ok(()),
            Some(Err(error)) => return Err(body_fault(&error).into()),
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        };
        reading.length += chunk.len() as u64;
        if reading.length > reading.limit {
            return Err(OwnCode::BodyTooLarge.into());
        }
        let _turn = gateway.turns.take(reading.length).await;
        reading.push(chunk, gateway).await?;
    }
    Ok(())
}

/// Waits for the next frame: not for ever, and not for a client that sends a byte now and then.
async fn wait_for_frame(
    gateway: &Shared,
    body: &mut Incoming,
    began: Instant,
    length: u64,
    record: &mut Record,
) -> Result<Option<Result<Frame<Bytes>, hyper::Error>>, Rejection> {
    let limits = &gateway.http;
    let waiting = Instant::now();
    let frame = tokio::time::timeout(limits.body_idle_timeout, body.frame()).await;
    record.read_wait += waiting.elapsed();
    if gateway.body_bounds(limits.body_idle_timeout).too_slow(began.elapsed(), length) {
        return Err(Rejection::with(
            OwnCode::BodyTimeout,
            "the body arrives more slowly than the gateway allows",
        ));
    }
    frame.map_err(|_| Rejection::with(OwnCode::BodyTimeout, "no byte of the body arrived for too long"))
}

impl Reading {
    fn new(gateway: &Shared, plan: &Plan, headers: &HeaderMap, stated: Option<u64>, limit: u64) -> Self {
        let gathering = Gathering::new(&gateway.budget, stated);
        Self { gathering, digester: Digester::new(plan, headers), length: 0, limit }
    }

    async fn push(&mut self, chunk: Bytes, gateway: &Shared) -> Result<(), Rejection> {
        self.digester.feed(&chunk);
        let pushed = self.gathering.push(&chunk, gateway.limits.spill_dir.as_deref(), &gateway.metrics).await;
        pushed.map_err(spill_failed)
    }
}

impl Digester {
    fn new(plan: &Plan, headers: &HeaderMap) -> Self {
        let mut types = headers.get_all(header::CONTENT_TYPE).iter();
        let coded = headers.contains_key(header::CONTENT_ENCODING);
        let boundary = match (types.next(), types.next(), coded) {
            (Some(one), None, false) => MediaType::boundary_of(one.as_bytes()),
            _ => None,
        };
        // what the memory does not look at goes up as it came
        let rules = plan.guarded.as_ref().and(plan.upstream.guard.as_ref());
        let rule = rules.map_or(FileNameRule::Keyed, |guard| guard.rules.filename);
        match boundary {
            Some(boundary) => Self::Form(Box::new(FormReader::new(&boundary, rule))),
            None => Self::Raw(Box::default()),
        }
    }

    fn feed(&mut self, chunk: &[u8]) {
        match self {
            Self::Raw(hasher) => {
                hasher.update(chunk);
            }
            Self::Form(reader) => reader.feed(chunk),
        }
    }

    /// The complete body and its digest.
    async fn finish(self, body: Held, length: u64) -> Result<Box<Document>, Rejection> {
        let whole = Range { start: 0, end: length };
        let (digest, form) = match self {
            Self::Raw(hasher) => (*hasher.finalize().as_bytes(), None),
            Self::Form(reader) => match reader.finish() {
                Ok(form) => (form.digest, Some(form)),
                // not a form after all: keyed raw, forwarded untouched
                Err(_) => {
                    let mut hasher = Box::<blake3::Hasher>::default();
                    let all = std::slice::from_ref(&whole);
                    let visited = body.visit(all, |bytes| {
                        hasher.update(bytes);
                    });
                    visited.await.map_err(spill_failed)?;
                    (*hasher.finalize().as_bytes(), None)
                }
            },
        };
        let document = match form {
            None if length == 0 => return Err(empty()),
            None => Document {
                body,
                digest: BodyDigest::Raw(digest),
                ranges: vec![whole],
                form: false,
                values: Some(Vec::new()),
            },
            Some(Form { empty: true, .. }) => return Err(empty()),
            Some(Form { files, edits, values, .. }) => Document {
                body: body.with_edits(edits),
                digest: BodyDigest::Form(digest),
                ranges: if files.is_empty() { vec![whole] } else { files },
                form: true,
                values,
            },
        };
        Ok(Box::new(document))
    }
}

fn empty() -> Rejection {
    Rejection::with(OwnCode::EmptyDocument, "send the document as the body, or as a file part of a form")
}

fn spill_failed(error: io::Error) -> Rejection {
    tracing::error!(%error, "a request body could not be kept on disk");
    OwnCode::SpillFailed.into()
}
