//! A place at an upstream: at most `max_in_flight` requests at once, a bounded queue with a deadline, fair among tenants.
//!
//! Free places go round the tenants that wait, one each, in turn. When the queue is full, a newcomer of a tenant with fewer
//! waiting requests takes the place of the latest request of the tenant with the most; so one tenant's flood sheds its own
//! requests. The pool knows nothing of HTTP.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nevertwice_domain::tenant::TenantId;
use tokio::sync::oneshot;

use crate::lock::Lock;

/// The pool of one upstream.
#[derive(Debug)]
pub(crate) struct Pool {
    limits: nevertwice_config::checked::Pool,
    state: Lock<State>,
}

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    queued: usize,
    /// Tenants with waiting requests; the front one is next.
    turns: VecDeque<Line>,
}

#[derive(Debug)]
struct Line {
    tenant: TenantId,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

/// A place in the pool. Freed when dropped, wherever that happens.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Pool>);

/// Why there was no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shed {
    /// The queue is full, or was needed by a tenant that waits for less.
    Full,
    /// None came free in time.
    TimedOut,
}

impl Pool {
    pub(crate) fn new(limits: nevertwice_config::checked::Pool) -> Arc<Self> {
        Arc::new(Self { limits, state: Lock::default() })
    }

    /// A place, if there is one now.
    pub(crate) fn try_admit(self: &Arc<Self>) -> Option<Permit> {
        let mut state = self.state.hold();
        let free = state.in_flight < self.limits.max_in_flight;
        state.in_flight += usize::from(free);
        drop(state);
        free.then(|| Permit(Arc::clone(self)))
    }

    /// A place for a request of `tenant`, at once or when its turn comes. Dropping the future gives the wait up.
    pub(crate) async fn admit(self: &Arc<Self>, tenant: &TenantId) -> Result<Permit, Shed> {
        let Some(turn) = self.enter(tenant)? else { return Ok(Permit(Arc::clone(self))) };
        match tokio::time::timeout(self.limits.queue_timeout, turn).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(Shed::Full),
            Err(_) => Err(Shed::TimedOut),
        }
    }

    /// Takes a place (`None`) or a turn in the queue.
    fn enter(self: &Arc<Self>, tenant: &TenantId) -> Result<Option<oneshot::Receiver<Permit>>, Shed> {
        let mut state = self.state.hold();
        if state.in_flight < self.limits.max_in_flight {
            state.in_flight += 1;
            return Ok(None);
        }
        state.drop_abandoned();
        if state.queued >= self.limits.max_queue && !state.make_room_for(tenant) {
            return Err(Shed::Full);
        }
        let (sender, receiver) = oneshot::channel();
        match state.turns.iter_mut().find(|line| line.tenant == *tenant) {
            Some(line) => line.waiting.push_back(sender),
            None => state.turns.push_back(Line { tenant: tenant.clone(), waiting: VecDeque::from([sender]) }),
        }
        state.queued += 1;
        Ok(Some(receiver))
    }

    /// Requests at the upstream, and waiting for a place.
    pub(crate) fn load(&self) -> (usize, usize) {
        let mut state = self.state.hold();
        state.drop_abandoned();
        (state.in_flight, state.queued)
    }

    /// The most requests at once.
    pub(crate) fn limit(&self) -> usize {
        self.limits.max_in_flight
    }

    /// What a shed caller is told to wait: the queue's own time-out, in whole seconds, at least one.
    pub(crate) fn retry_after(&self) -> Duration {
        Duration::from_secs(self.limits.queue_timeout.as_secs().clamp(1, 60))
    }
}

impl State {
    /// Forgets requests whose client left while they waited.
    fn drop_abandoned(&mut self) {
        for line in &mut self.turns {
            line.waiting.retain(|sender| !sender.is_closed());
        }
        self.turns.retain(|line| !line.waiting.is_empty());
        self.queued = self.turns.iter().map(|line| line.waiting.len()).sum();
    }

    /// Sheds the latest request of the tenant that waits with the most, if that is more than `tenant` waits with.
    fn make_room_for(&mut self, tenant: &TenantId) -> bool {
        let waits = |line: &Line| line.waiting.len();
        let own = self.turns.iter().find(|line| line.tenant == *tenant).map_or(0, waits);
        match self.turns.iter_mut().max_by_key(|line| line.waiting.len()) {
            Some(longest) if longest.waiting.len() > own + 1 => {
                longest.waiting.pop_back();
                self.queued -= 1;
                true
            }
            _ => false,
        }
    }

    /// The request whose turn it is.
    fn next(&mut self) -> Option<oneshot::Sender<Permit>> {
        while let Some(mut line) = self.turns.pop_front() {
            let next = line.waiting.pop_front();
            if !line.waiting.is_empty() {
                self.turns.push_back(line);
            }
            if let Some(sender) = next {
                self.queued -= 1;
                if !sender.is_closed() {
                    return Some(sender);
                }
            }
        }
        None
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.state.hold();
            let next = state.next();
            if next.is_none() {
                state.in_flight -= 1;
            }
            next
        };
        // a receiver that went in this instant drops the new permit, which passes the place on
        if let Some(sender) = next {
            let _ = sender.send(Permit(Arc::clone(&self.0)));
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that breaks should stop")]
mod tests {
    use super::*;

    fn tenant(n: u8) -> TenantId {
        TenantId::new(&format!("t{n}")).unwrap()
    }

    fn pool(max_in_flight: usize, max_queue: usize) -> Arc<Pool> {
        Pool::new(nevertwice_config::checked::Pool {
            max_in_flight,
            max_queue,
            queue_timeout: Duration::from_millis(20),
            connection_idle: Duration::from_secs(1),
        })
    }

    #[tokio::test]
    async fn places_go_round_the_tenants() {
        let pool = pool(1, 10);
        let first = pool.admit(&tenant(0)).await.unwrap();
        let mut flood: Vec<_> = (0..5).map(|_| pool.enter(&tenant(0)).unwrap().unwrap()).collect();
        let mut other = pool.enter(&tenant(1)).unwrap().unwrap();
        drop(first);
        let permit = flood[0].try_recv().unwrap();
        drop(permit);
        let _second = other.try_recv().unwrap();
        assert_eq!(pool.load(), (1, 4), "the other tenant came second, not sixth");
    }

    #[tokio::test]
    async fn a_full_queue_sheds_the_flood_and_not_the_neighbour() {
        let pool = pool(1, 3);
        let held = pool.admit(&tenant(0)).await.unwrap();
        let mut flood: Vec<_> = (0..3).map(|_| pool.enter(&tenant(0)).unwrap().unwrap()).collect();
        assert_eq!(pool.enter(&tenant(0)).unwrap_err(), Shed::Full);
        let mut other = pool.enter(&tenant(1)).unwrap().unwrap();
        assert!(flood[2].try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Closed));
        assert_eq!(pool.load(), (1, 3));
        drop(held);
        drop(flood[0].try_recv().unwrap());
        assert!(other.try_recv().is_ok());
    }

    #[tokio::test]
    async fn waiting_ends_at_the_deadline() {
        let pool = pool(1, 3);
        let _held = pool.admit(&tenant(0)).await.unwrap();
        assert_eq!(pool.admit(&tenant(0)).await.unwrap_err(), Shed::TimedOut);
        assert_eq!(pool.load(), (1, 0));
    }

    #[tokio::test]
    async fn a_place_offered_to_one_who_left_is_passed_on() {
        let pool = pool(1, 3);
        let held = pool.admit(&tenant(0)).await.unwrap();
        let gone = pool.enter(&tenant(0)).unwrap().unwrap();
        let mut stays = pool.enter(&tenant(0)).unwrap().unwrap();
        drop(gone);
        drop(held);
        let permit = stays.try_recv().unwrap();
        assert_eq!(pool.load(), (1, 0));
        drop(permit);
        assert_eq!(pool.load(), (0, 0));
    }
}
