//! Whether the answer is known already; and if it is not, whose attempt it is to find out.

use std::sync::Arc;
use std::time::Instant;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use nevertwice_config::checked::Mode;
use nevertwice_domain::canonical::fields;
use nevertwice_domain::entry::Entry;
use nevertwice_domain::fingerprint::{DeploymentKey, Fingerprint, KeyBase, KeyInput, fingerprint};
use nevertwice_domain::operation::Operation;
use nevertwice_domain::tenant::UpstreamName;
use nevertwice_store::redis::RemoteLanding;
use nevertwice_store::{Fence, Lease};

use super::account::Record;
use super::intake::{Document, Taken};
use super::operation::{self, Minted, Polled};
use super::plan::Plan;
use super::{Rejection, headers, hold};
use crate::Shared;
use crate::body::outbound::{ClientBody, Outbound};
use crate::loop_breaker::Held;
use crate::memory::{Attempt, Boarding, Guarded, Landing, Memory, UpstreamGuard};
use crate::pool::Permit;
use crate::upstream::Upstream;

/// What the memory says.
pub(super) enum Recall {
    /// The answer.
    Known(Known),
    /// It has to be asked.
    Unknown(Box<Call>),
}

/// An answer that is there without the upstream.
pub(super) enum Known {
    /// The upstream has refused this before.
    Refused(Arc<Entry>),
    /// The upstream has failed on this again and again, and is spared it for a while.
    Held(Held),
    /// The upstream's operations on this have failed before: here is one that will have.
    Minted(Minted),
    /// An operation of the gateway's own making, polled.
    Failed(Arc<Operation>),
    /// One that was deleted.
    Removed,
}

/// A request that goes upstream.
pub(crate) struct Call {
    pub(crate) plan: Plan,
    /// Method and header fields as they go up.
    pub(super) head: Parts,
    pub(super) body: CallBody,
    /// What the memory has to do with it.
    pub(super) asked: Option<Asked>,
    /// As it goes up; the head is spent when the answer comes.
    pub(super) content_type: Option<HeaderValue>,
    /// Its body is in a content coding, or of several types: nobody here knows what it says.
    pub(super) is_opaque: bool,
    /// The operation that it asks for.
    pub(super) polled: Option<Box<Polled>>,
}

/// A body that goes upstream.
pub(super) enum CallBody {
    Document(Box<Document>),
    Passing(ClientBody),
    /// There is none.
    Nothing,
}

/// A guarded request that the memory does not know.
pub(super) struct Asked {
    pub(super) key: Guarded,
    /// The attempt that others may wait for; `None` once it has landed.
    pub(super) attempt: Option<Attempt>,
    /// `None` = the store could not be asked, and nothing will be recorded.
    pub(super) fence: Option<Fence>,
}

impl Call {
    /// Whether others wait for how this attempt lands.
    pub(super) fn leads(&self) -> bool {
        let teaches = self.polled.as_ref().is_some_and(|polled| polled.pending().is_some());
        teaches || self.asked.as_ref().and_then(|a| a.attempt.as_ref()).is_some_and(Attempt::leads)
    }

    /// Whether the client's body has not been read.
    pub(super) fn is_unread(&self) -> bool {
        matches!(self.body, CallBody::Passing(_))
    }

    /// The attempt ended without an answer: whoever waits goes upstream.
    pub(super) fn land_without_verdict(self) {
        if let Some(attempt) = self.asked.and_then(|a| a.attempt) {
            attempt.land(Landing::NoVerdict);
        }
    }

    /// The verdict is there: whoever waits looks it up.
    pub(super) fn land_with_verdict(self) {
        if let Some(attempt) = self.asked.and_then(|a| a.attempt) {
            attempt.land(Landing::Verdict);
        }
    }
}

impl CallBody {
    /// The body for one try.
    pub(super) fn outbound(&self, place: &Arc<Permit>) -> Outbound {
        match self {
            Self::Document(document) => Outbound::held(document.body.clone(), Arc::clone(place)),
            Self::Passing(body) => Outbound::client(body, Arc::clone(place)),
            Self::Nothing => Outbound::nothing(Arc::clone(place)),
        }
    }
}

/// Looks the request up, and waits for an attempt that is under way.
pub(super) async fn recall(
    gateway: &Shared,
    plan: Plan,
    mut head: Parts,
    taken: Taken,
    record: &mut Record,
) -> Result<Recall, Rejection> {
    let upstream = Arc::clone(&plan.upstream);
    let (document, base) = match (taken, &plan.guarded) {
        (Taken::Document(document), Some(guarded)) => (document, Arc::clone(&guarded.base)),
        (taken, _) => {
            head.headers = headers::passing(&head.headers, &gateway.tenants, &upstream, &record.trace);
            headers::set_credential(&mut head.headers, &upstream);
            let body = match taken {
                Taken::Passing(body) => CallBody::passing(gateway, &plan, body),
                Taken::Document(document) => CallBody::Document(document),
            };
            let call =
                Call { plan, head, body, asked: None, content_type: None, is_opaque: true, polled: None };
            return Ok(Recall::Unknown(Box::new(call)));
        }
    };
    let (Some(memory), Some(guard)) = (&gateway.memory, &upstream.guard) else {
        return Err(nevertwice_domain::outcome::OwnCode::Internal.into());
    };
    headers::strip_named(&mut head.headers);
    let key = key(memory, guard, &base, &plan, &head, &document);
    record.fingerprint = Some(key.fingerprint);
    if let Some(known) = spared(gateway, memory, guard, &upstream, &key).await {
        return Ok(Recall::Known(operation::mint(gateway, &plan, known).await));
    }
    let mut asked = match guard.rules.mode {
        Mode::Enforce => match ask(memory, guard, &plan, key, record).await {
            Ok(asked) => asked,
            Err(entry) => {
                let known = operation::mint(gateway, &plan, Known::Refused(entry)).await;
                return Ok(Recall::Known(known));
            }
        },
        Mode::Observe => observe(memory, guard, &plan, key, record).await,
    };
    // the attempt that was waited for may have been one failure too many
    if let Some(held) = hold::look(gateway, &upstream, &asked.key) {
        if let Some(attempt) = asked.attempt.take() {
            attempt.land(Landing::NoVerdict);
        }
        return Ok(Recall::Known(Known::Held(held)));
    }
    head.headers = headers::guarded(&head.headers, &guard.rules.key_headers, &record.trace);
    let content_type = head.headers.get(header::CONTENT_TYPE).cloned();
    let is_opaque = headers::is_opaque(&head.headers);
    headers::set_credential(&mut head.headers, &upstream);
    let body = CallBody::Document(document);
    let asked = Some(asked);
    Ok(Recall::Unknown(Box::new(Call { plan, head, body, asked, content_type, is_opaque, polled: None })))
}

/// The refusal that this document is known to meet. Nobody is waited for, and no attempt begins; in `mode: observe` nothing is known.
pub(super) async fn remembered(
    gateway: &Shared,
    plan: &Plan,
    head: &Parts,
    document: &Document,
    record: &mut Record,
) -> Option<Arc<Entry>> {
    let (memory, guard) = (gateway.memory.as_ref()?, plan.upstream.guard.as_ref()?);
    let key = key(memory, guard, &plan.guarded.as_ref()?.base, plan, head, document);
    record.fingerprint = Some(key.fingerprint);
    match guard.rules.mode {
        Mode::Enforce => memory.known(&key, plan.upstream.name(), guard).await,
        Mode::Observe => None,
    }
}

/// The same for equal requests: of everything that goes up, and of nothing that an operator may change meanwhile.
pub(super) fn request_digest(plan: &Plan, head: &Parts, document: &Document) -> Fingerprint {
    let key_headers = plan.key_headers();
    let fields = canonical_fields(&head.headers, key_headers, document);
    let input = KeyInput {
        scope: plan.tenant.id.as_str(),
        upstream: plan.upstream.name().as_str(),
        identity: b"job request 1",
        generation: "",
        method: head.method.as_str(),
        path: plan.path.path().as_bytes(),
        query: plan.path.query().map(str::as_bytes),
        fields: &fields,
        body: document.digest,
    };
    fingerprint(&DeploymentKey::NONE, &input)
}

/// The fields that go up, as they are keyed.
fn canonical_fields<'a>(
    client: &'a HeaderMap,
    key_headers: &'a [HeaderName],
    document: &Document,
) -> Vec<(&'a str, Vec<u8>)> {
    headers::keyed(client, key_headers)
        .map(|(name, value)| match name == header::CONTENT_TYPE {
            true => (name.as_str(), fields::content_type(value.as_bytes(), document.form)),
            false => (name.as_str(), value.as_bytes().to_vec()),
        })
        .collect()
}

/// The key of the outbound request. Of what a client chose, exactly what is in it goes upstream: both are made from
/// [`headers::keyed`].
fn key(
    memory: &Memory,
    guard: &UpstreamGuard,
    base: &KeyBase,
    plan: &Plan,
    head: &Parts,
    document: &Document,
) -> Guarded {
    let fields = canonical_fields(&head.headers, &guard.rules.key_headers, document);
    let query = plan.path.query().and_then(|q| fields::query(q.as_bytes(), &guard.rules.ignored_query));
    let input = KeyInput {
        scope: &base.scope,
        upstream: base.upstream.as_str(),
        identity: &base.identity,
        generation: &base.generation,
        method: head.method.as_str(),
        path: plan.path.path().as_bytes(),
        query: query.as_deref(),
        fields: &fields,
        body: document.digest,
    };
    Guarded { fingerprint: fingerprint(&memory.key, &input), scope: Arc::clone(&base.scope) }
}

/// A request that is held waits for no attempt and makes none. The memory is asked first all the same.
async fn spared(
    gateway: &Shared,
    memory: &Memory,
    guard: &UpstreamGuard,
    upstream: &Upstream,
    key: &Guarded,
) -> Option<Known> {
    hold::look(gateway, upstream, key)?;
    match memory.known(key, upstream.name(), guard).await {
        Some(entry) => Some(Known::Refused(entry)),
        None => hold::look(gateway, upstream, key).map(Known::Held),
    }
}

/// `Err` = the entry that answers the request.
async fn ask(
    memory: &Memory,
    guard: &UpstreamGuard,
    plan: &Plan,
    key: Guarded,
    record: &mut Record,
) -> Result<Asked, Arc<Entry>> {
    let name = plan.upstream.name();
    if let Some(entry) = memory.near(&key, name, guard) {
        return Err(entry);
    }
    let until = Instant::now() + guard.rules.single_flight_wait;
    // a verdict may have landed since the first look; from here on the fence counts
    let (attempt, entry, fence) = loop {
        break match wait_for_landing(memory, guard, &key, until, record).await {
            Turn::First(attempt) => look_for_all(memory, guard, &key, name, attempt, until, record).await,
            Turn::Released(attempt) => {
                let (entry, fence) = memory.recall(&key, name, guard).await;
                (attempt, entry, fence)
            }
            Turn::Verdict => match memory.known(&key, name, guard).await {
                Some(entry) => return Err(entry),
                // forgotten in this moment: one of those who waited for it goes first, not all at once
                None => continue,
            },
        };
    };
    if let Some(entry) = entry {
        attempt.land(Landing::Verdict);
        return Err(entry);
    }
    Ok(Asked { key, attempt: Some(attempt), fence })
}

/// Whose turn it is.
enum Turn {
    /// This request's: it finds out for all in this process.
    First(Attempt),
    /// Everybody's.
    Released(Attempt),
    /// Nobody's: a verdict has landed.
    Verdict,
}

/// Waits for the attempt that is under way in this process, if there is one.
async fn wait_for_landing(
    memory: &Memory,
    guard: &UpstreamGuard,
    key: &Guarded,
    until: Instant,
    record: &mut Record,
) -> Turn {
    let began = Instant::now();
    if guard.rules.single_flight_wait.is_zero() || memory.accepted_lately(&key.fingerprint) {
        return Turn::Released(memory.flights.join(key.fingerprint));
    }
    loop {
        let mut landing = match memory.flights.board(key.fingerprint) {
            Boarding::Attempt(attempt) => return Turn::First(attempt),
            Boarding::Wait(landing) => landing,
        };
        let landed = landing.wait_for(|l| *l != Landing::InFlight);
        let landed = tokio::time::timeout_at(until.into(), landed).await;
        record.flight_wait = began.elapsed();
        match landed {
            Ok(Ok(landing)) if *landing == Landing::Verdict => {
                memory.waited("verdict");
                return Turn::Verdict;
            }
            Ok(Ok(landing)) if *landing == Landing::GivenUp => memory.waited("given_up"),
            Ok(_) => {
                memory.waited("released");
                return Turn::Released(memory.flights.join(key.fingerprint));
            }
            Err(_) => {
                memory.waited("timed_out");
                return Turn::Released(memory.flights.join(key.fingerprint));
            }
        }
    }
}

/// Looks the request up for all of this process that ask the same, and waits while another process finds out.
async fn look_for_all(
    memory: &Memory,
    guard: &UpstreamGuard,
    key: &Guarded,
    upstream: &UpstreamName,
    mut attempt: Attempt,
    until: Instant,
    record: &mut Record,
) -> (Attempt, Option<Arc<Entry>>, Option<Fence>) {
    let began = Instant::now();
    let mut waited = false;
    loop {
        let (entry, fence, lease) = memory.look(key, upstream, guard).await;
        let elsewhere = match lease {
            Lease::Elsewhere(elsewhere) if entry.is_none() => elsewhere,
            Lease::Held(lease) => {
                attempt.hold(lease);
                return (attempt, entry, fence);
            }
            Lease::Elsewhere(_) | Lease::NotNeeded => {
                if waited && entry.is_some() {
                    memory.waited("verdict");
                }
                return (attempt, entry, fence);
            }
        };
        waited = true;
        let landed = tokio::time::timeout_at(until.into(), elsewhere.landed()).await;
        record.flight_wait = began.elapsed();
        memory.waited(match landed {
            Ok(RemoteLanding::LookAgain) => continue,
            Ok(RemoteLanding::Released) => {
                // those who wait here waited for the same
                attempt.release_waiting();
                "released"
            }
            // their time is not up: from now on they wait for this one
            Err(_) => "timed_out",
        });
        return (attempt, None, fence);
    }
}

/// Whether a verdict became known, or a hold began, while this request waited for its place: then it does not go up any more.
pub(super) async fn look_again(gateway: &Shared, call: &mut Call) -> Option<Known> {
    let upstream = &call.plan.upstream;
    let (memory, guard) = (gateway.memory.as_ref()?, upstream.guard.as_ref()?);
    let asked = call.asked.as_mut()?;
    if guard.rules.mode == Mode::Observe {
        return None;
    }
    if let Some(attempt) = &mut asked.attempt {
        attempt.begins_now();
    }
    let (entry, fence) = memory.recall(&asked.key, upstream.name(), guard).await;
    asked.fence = fence;
    match entry {
        Some(entry) => Some(operation::mint(gateway, &call.plan, Known::Refused(entry)).await),
        None => hold::look(gateway, upstream, &asked.key).map(Known::Held),
    }
}

/// `mode: observe`: counts what would have been replayed; nobody waits and nothing is replayed.
async fn observe(
    memory: &Memory,
    guard: &UpstreamGuard,
    plan: &Plan,
    key: Guarded,
    record: &mut Record,
) -> Asked {
    // others are not made to wait, but what is under way has to be known when one of them is accepted
    let attempt = memory.flights.join(key.fingerprint);
    let (entry, fence) = memory.recall(&key, plan.upstream.name(), guard).await;
    record.would_replay = Some(entry.is_some());
    if let Some(entry) = entry {
        plan.upstream.metrics.would_replay(entry.status);
    }
    Asked { key, attempt: Some(attempt), fence }
}
