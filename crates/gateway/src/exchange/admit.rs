//! A place at the upstream, or a clear word that there is none.

use std::sync::Arc;
use std::time::Instant;

use nevertwice_domain::outcome::OwnCode;

use super::Rejection;
use super::account::Record;
use super::recall::Call;
use crate::pool::{Permit, Shed};

/// Waits for a place in the upstream's pool. Says also whether it had to.
pub(super) async fn place(call: &Call, record: &mut Record) -> Result<(Arc<Permit>, bool), Rejection> {
    let pool = &call.plan.upstream.pool;
    if let Some(permit) = pool.try_admit() {
        return Ok((Arc::new(permit), false));
    }
    let began = Instant::now();
    let admitted = tokio::select! {
        biased;
        admitted = pool.admit(&call.plan.tenant.id) => Some(admitted),
        // a body that has not been read hides that its client has left
        () = record.connection.left(), if call.is_unread() => None,
    };
    record.queue_wait = began.elapsed();
    let admitted = admitted.ok_or(OwnCode::ClientAborted)?;
    admitted.map(|permit| (Arc::new(permit), true)).map_err(|shed| Rejection {
        code: match shed {
            Shed::Full => OwnCode::PoolFull,
            Shed::TimedOut => OwnCode::QueueTimeout,
        },
        detail: None,
        retry_after_s: Some(pool.retry_after().as_secs()),
    })
}
