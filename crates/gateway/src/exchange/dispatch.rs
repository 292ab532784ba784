//! The call to the upstream: once, and never again after a byte of it may have been processed.

use std::sync::Arc;
use std::time::Instant;

use http::Response;
use hyper::body::Incoming;

use super::Rejection;
use super::account::Record;
use super::recall::Call;
use crate::pool::Permit;

/// Sends the request and returns the head of the answer.
pub(super) async fn send(
    call: &mut Call,
    place: &Arc<Permit>,
    record: &mut Record,
) -> Result<Response<Incoming>, Rejection> {
    let Call { plan, head, body, polled, .. } = call;
    let upstream = &plan.upstream;
    // taken back when nothing was sent; a call that is cut short stays one
    record.attempts = 1;
    let began = Instant::now();
    let mut outbound = || {
        let body = body.outbound(place);
        record.upload = Some(body.progress());
        body
    };
    let answer = match polled {
        Some(polled) => upstream.client.send_at(&polled.authority, &polled.path, head, outbound()).await,
        None => upstream.client.send(&plan.path, head, outbound).await,
    };
    record.upstream_wait = began.elapsed();
    answer.map_err(|error| {
        record.end = Some(error.detail);
        if error.unsent {
            record.attempts = 0;
        }
        error.code.into()
    })
}
