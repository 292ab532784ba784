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
    /// Those that the store has not taken yet.
    late: Lock<HashMap<OperationId, Arc<Operation>>>,
    /// Tells this process from those before.
    pub(crate) process: u64,
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
            late: Lock::default(),
            process: fastrand::u64(1..),
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
    pub(crate) async fn keep(self: &Arc<Self>, operation: Operation) {
        let operation = Arc::new(operation);
        let Err(error) = bounded(self.store.put(&operation)).await else {
            self.near.insert(operation.id, operation);
            return;
        };
        tracing::warn!(%error, "an operation could not be stored: until it is, only this process can be asked for it");
        let id = operation.id;
        {
            let mut late = self.late.hold();
            if late.len() >= LATE {
                drop(late);
                self.near.insert(id, operation);
                return;
            }
            late.insert(id, operation);
        }
        self.tracker.spawn(store_late(Arc::clone(self), id));
    }

    /// The operation with this id, if it has not expired.
    pub(crate) async fn find(&self, id: &OperationId) -> Result<Option<Arc<Operation>>, StoreError> {
        let waits = self.late.hold().get(id).cloned();
        let found = match waits.or_else(|| self.near.get(id)) {
            Some(at_hand) => Some(at_hand),
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
        let waited = self.late.hold().get_mut(id).map(settled);
        let stored = bounded(self.store.settle(id)).await;
        let first = match waited {
            // the store may have it and may not: this process is the only one that knows
            Some(was_pending) => was_pending,
            None => stored?,
        };
        if let Some(mut near) = self.near.get(id) {
            settled(&mut near);
            self.near.insert(*id, near);
        }
        Ok(first)
    }

    /// There is no such operation any more.
    pub(crate) async fn remove(&self, id: &OperationId) {
        self.late.hold().remove(id);
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
        // of the few that wait, all
        for late in self.late.hold().values_mut() {
            settled(late);
        }
        let forgotten = bounded(self.store.forget_pending(which)).await;
        // what is at hand may say that something is pending still; the store has the last word
        self.near.clear();
        forgotten
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
        // a call that cannot be accounted for is not made
        if looks.available_permits() == 0 || gateway.accepts_work().is_err() {
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

/// Nothing of it is pending from now on. Returns whether something was.
fn settled(operation: &mut Arc<Operation>) -> bool {
    match &mut Arc::make_mut(operation).at {
        Whereabouts::Upstream { pending, .. } => pending.take().is_some(),
        Whereabouts::Known { .. } => false,
    }
}

/// Stores an operation that the store did not take at once, as it is by then.
async fn store_late(operations: Arc<Operations>, id: OperationId) {
    for _ in 0..LATE_TRIES {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = operations.drain.cancelled() => {}
        }
        let waits = |operations: &Operations| operations.late.hold().get(&id).cloned();
        let Some(operation) = waits(&operations) else { return };
        if bounded(operations.store.put(&operation)).await.is_ok() {
            match waits(&operations) {
                // deleted while it was written
                None => return operations.remove(&id).await,
                Some(now) if Arc::ptr_eq(&now, &operation) => break,
                Some(_) => {}
            }
        }
        if operations.drain.is_cancelled() {
            break;
        }
    }
    // one that the store does not take in all this time is known here alone, as long as it is at hand
    if let Some(operation) = operations.late.hold().remove(&id) {
        operations.near.insert(id, operation);
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
