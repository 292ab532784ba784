//! The operations of this process: the store that has them all, what is at hand of them, and the attempts whose outcome a poll
//! will show.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use nevertwice_domain::clock::{Clock, Millis};
use nevertwice_domain::entry::Selector;
use nevertwice_domain::operation::{Operation, OperationId, Whereabouts};
use nevertwice_store::work::OperationStore;
use nevertwice_store::{StoreError, StoreErrorKind};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lock::Lock;
use crate::memory::{Attempt, Landing};
use crate::{Shared, exchange};

/// How long an operation is kept: as long as the service keeps it (24 hours), and an hour for clocks and time zones of opinion.
pub(crate) const LIFE_MS: u64 = 25 * 3_600_000;
/// When the gateway first looks for an outcome that nobody has asked for.
pub(crate) const FIRST_LOOK_MS: u64 = 30_000;

/// How often operations are looked for that nobody asks about.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// After a look that showed no outcome, in milliseconds.
const AGAIN_MS: u64 = 60_000;
/// The most looks at one operation: about two hours.
const MOST_LOOKS: u32 = 120;
/// Looks at once.
const LOOKS: usize = 8;
/// How long the store may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// Memory for operations at hand, in bytes.
const NEAR_BYTES: u64 = 16 << 20;
/// Operations that are looked for at hand.
const NEAR_ITEMS: usize = 20_000;
/// Attempts that are held until their outcome is known.
const FLIGHTS: usize = 4096;
/// How often the store is asked whether another process knows the outcome.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Operations that wait to be stored.
const LATE: usize = 1024;
/// How often that is tried, once a second.
const LATE_TRIES: u32 = 60;

/// See the module.
pub(crate) struct Operations {
    store: Arc<dyn OperationStore>,
    near: Cache<OperationId, Arc<Operation>, Weight>,
    flights: Lock<HashMap<OperationId, Attempt>>,
    late: Arc<tokio::sync::Semaphore>,
    clock: Arc<dyn Clock>,
    tracker: TaskTracker,
    drain: CancellationToken,
}

#[derive(Clone)]
struct Weight;

impl Weighter<OperationId, Arc<Operation>> for Weight {
    fn weight(&self, _: &OperationId, operation: &Arc<Operation>) -> u64 {
        let body = match &operation.at {
            Whereabouts::Known { body, .. } => body.len(),
            Whereabouts::Upstream { path, .. } => path.len(),
        };
        1024 + body as u64
    }
}

impl Operations {
    pub(crate) fn new(
        store: Arc<dyn OperationStore>,
        clock: Arc<dyn Clock>,
        tracker: TaskTracker,
        drain: CancellationToken,
    ) -> Self {
        Self {
            store,
            near: Cache::with_weighter(NEAR_ITEMS, NEAR_BYTES, Weight),
            flights: Lock::default(),
            late: Arc::new(tokio::sync::Semaphore::new(LATE)),
            clock,
            tracker,
            drain,
        }
    }

    /// An id that nobody can guess; `None` when the system has no randomness to give.
    pub(crate) fn new_id() -> Option<OperationId> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(OperationId::from_random(bytes))
    }

    /// Keeps an operation: durably, or, while the store fails, in this process until the store takes it. The upstream has it either
    /// way, and its caller has to be able to ask.
    pub(crate) async fn keep(&self, operation: Operation) {
        let operation = Arc::new(operation);
        self.near.insert(operation.id, Arc::clone(&operation));
        let Err(error) = bounded(self.store.put(&operation)).await else { return };
        tracing::warn!(%error, "an operation could not be stored: until it is, only this process can be asked for it");
        let Ok(place) = Arc::clone(&self.late).try_acquire_owned() else { return };
        let (store, drain) = (Arc::clone(&self.store), self.drain.clone());
        self.tracker.spawn(async move {
            for _ in 0..LATE_TRIES {
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                    () = drain.cancelled() => {}
                }
                if bounded(store.put(&operation)).await.is_ok() || drain.is_cancelled() {
                    break;
                }
            }
            drop(place);
        });
    }

    /// The operation with this id, if it has not expired.
    pub(crate) async fn find(&self, id: &OperationId) -> Result<Option<Arc<Operation>>, StoreError> {
        let found = match self.near.get(id) {
            Some(near) => Some(near),
            None => {
                let stored = bounded(self.store.operation(id)).await?.map(Arc::new);
                if let Some(stored) = &stored {
                    self.near.insert(*id, Arc::clone(stored));
                }
                stored
            }
        };
        Ok(found.filter(|operation| operation.expires_at > self.clock.now()))
    }

    /// Its outcome is known. Returns whether this is the first to say so, and nothing has been forgotten since.
    pub(crate) async fn settle(&self, id: &OperationId) -> Result<bool, StoreError> {
        let first = bounded(self.store.settle(id)).await?;
        if let Some(near) = self.near.get(id) {
            let mut settled = Operation::clone(&near);
            if let Whereabouts::Upstream { pending, .. } = &mut settled.at {
                *pending = None;
            }
            self.near.insert(*id, Arc::new(settled));
        }
        Ok(first)
    }

    /// There is no such operation any more.
    pub(crate) async fn remove(&self, id: &OperationId) {
        self.near.remove(id);
        if let Some(attempt) = self.take_flight(id) {
            attempt.land(Landing::NoVerdict);
        }
        if let Err(error) = bounded(self.store.remove(id)).await {
            tracing::debug!(%error, "a deleted operation stays in the store until it expires");
        }
    }

    /// What is forgotten is not recorded by a poll that comes later.
    pub(crate) async fn forget_pending(&self, which: &Selector) -> Result<(), StoreError> {
        bounded(self.store.forget_pending(which)).await?;
        // what is at hand may say that something is pending still; the store has the last word
        self.near.clear();
        Ok(())
    }

    /// Operations that nobody has asked for; each is handed to one process.
    pub(crate) async fn due(&self, again_ms: u64, limit: usize) -> Result<Vec<Operation>, StoreError> {
        let now = self.clock.now();
        bounded(self.store.due(now, now.plus_ms(again_ms), limit)).await
    }

    /// The attempt lands when the outcome of the operation is known, or after `wait`: by then nobody waits for it any more.
    pub(crate) fn hold_flight(self: &Arc<Self>, id: OperationId, attempt: Attempt, wait: Duration) {
        let mut flights = self.flights.hold();
        if wait.is_zero() || flights.len() >= FLIGHTS {
            drop(flights);
            return attempt.land(Landing::NoVerdict);
        }
        flights.insert(id, attempt);
        drop(flights);
        let (operations, drain) = (Arc::clone(self), self.drain.clone());
        self.tracker.spawn(async move {
            let until = tokio::time::Instant::now() + wait;
            let is_held = || operations.flights.hold().contains_key(&id);
            while tokio::time::Instant::now() < until && !drain.is_cancelled() && is_held() {
                tokio::select! {
                    () = tokio::time::sleep_until(until.min(tokio::time::Instant::now() + ASK_AGAIN)) => {}
                    () = drain.cancelled() => {}
                }
                // the poll that showed it may have come to another process
                if is_held() && operations.is_over(&id).await {
                    // it is known before it is recorded
                    tokio::time::sleep(ASK_AGAIN).await;
                    break;
                }
            }
            // whoever waited asks the memory before it goes upstream
            if let Some(attempt) = operations.take_flight(&id) {
                attempt.land(Landing::NoVerdict);
            }
        });
    }

    /// Whether the store says that there is nothing more to be learned from it.
    async fn is_over(&self, id: &OperationId) -> bool {
        match bounded(self.store.operation(id)).await {
            Ok(Some(operation)) => !matches!(operation.at, Whereabouts::Upstream { pending: Some(_), .. }),
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// The attempt that this operation is, if it is held still.
    pub(crate) fn take_flight(&self, id: &OperationId) -> Option<Attempt> {
        self.flights.hold().remove(id)
    }

    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }
}

/// Looks for outcomes that nobody asks for, until the gateway stops.
pub(crate) async fn watch(gateway: Arc<Shared>) {
    let Some(operations) = gateway.operations.clone() else { return };
    let looks = Arc::new(tokio::sync::Semaphore::new(LOOKS));
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = gateway.stop.drain.cancelled() => return,
        }
        if looks.available_permits() == 0 {
            continue;
        }
        let due = match operations.due(AGAIN_MS, looks.available_permits()).await {
            Ok(due) => due,
            Err(error) => {
                tracing::debug!(%error, "operations whose outcome is open could not be listed");
                continue;
            }
        };
        for operation in due {
            let Whereabouts::Upstream { pending: Some(pending), .. } = &operation.at else { continue };
            if pending.looks > MOST_LOOKS {
                // it hangs: nothing more is expected of it
                let _ = operations.settle(&operation.id).await;
                continue;
            }
            let Ok(place) = Arc::clone(&looks).try_acquire_owned() else { break };
            let gateway = Arc::clone(&gateway);
            let tracker = gateway.tracker.clone();
            tracker.spawn(async move {
                let cut = gateway.stop.cut.clone();
                tokio::select! {
                    () = exchange::look(gateway, operation) => {}
                    () = cut.cancelled() => {}
                }
                drop(place);
            });
        }
    }
}

async fn bounded<T>(asked: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    match tokio::time::timeout(DEADLINE, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError {
            kind: StoreErrorKind::Busy,
            message: "the store of operations did not answer in time".into(),
        }),
    }
}
