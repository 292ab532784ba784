//! Memory for bodies that have to be in one piece, bounded: who finds none waits for its turn.

use std::sync::Arc;

use bytes::Bytes;
use nevertwice_domain::tenant::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Shares;

/// The unit in which room is counted, in bytes.
const UNIT: u64 = 1024;

/// The memory there is.
pub(crate) struct Room {
    units: Arc<Semaphore>,
    all: u32,
    /// What one tenant may have of it at once: half.
    shares: Shares,
}

/// Memory that was taken. Given back when dropped.
pub(crate) struct Taken {
    _units: Option<OwnedSemaphorePermit>,
    _share: Option<OwnedSemaphorePermit>,
}

/// Bytes, and the memory that they were counted in.
struct Held {
    bytes: Bytes,
    _room: Taken,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Room {
    pub(crate) fn new(bytes: u64) -> Self {
        let all =
            u32::try_from(bytes.div_ceil(UNIT).max(1)).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32);
        let shares = Shares::new((all / 2).max(1) as usize);
        Self { units: Arc::new(Semaphore::new(all as usize)), all, shares }
    }

    /// Room for so many bytes, in the order in which it is asked for. One that is longer than all there is gets all.
    pub(crate) async fn take(&self, bytes: u64) -> Taken {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.all);
        // never closed
        let units = Arc::clone(&self.units).acquire_many_owned(units).await.ok();
        Taken { _units: units, _share: None }
    }

    /// The same, of a tenant's share. Who waits for more of its share stands in nobody's way.
    pub(crate) async fn take_for(&self, tenant: &TenantId, bytes: u64) -> Taken {
        let each = u32::try_from(self.shares.each()).unwrap_or(u32::MAX);
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(each);
        // never closed
        let share = self.shares.of(tenant).acquire_many_owned(units).await.ok();
        Taken { _share: share, ..self.take(u64::from(units) * UNIT).await }
    }
}

impl Taken {
    /// The same bytes, which give this memory back when nobody holds any of them.
    pub(crate) fn holding(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Held { bytes, _room: self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_no_room_waits_until_there_is_some() {
        let room = Room::new(10 * UNIT);
        let bytes =
            room.take(6 * UNIT).await.holding(Bytes::from_static(b"as long as anybody has some of it"));
        let mut second = Box::pin(room.take(5 * UNIT));
        assert!(futures_util::poll!(&mut second).is_pending());
        let some = bytes.slice(3..5);
        drop(bytes);
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(some);
        let second = second.await;
        // more than there is: all of it, and in its turn
        let mut all = Box::pin(room.take(u64::MAX));
        assert!(futures_util::poll!(&mut all).is_pending());
        drop(second);
        drop(all.await);
    }

    #[tokio::test]
    async fn one_tenant_has_at_most_half() {
        let room = Room::new(10 * UNIT);
        let tenant = |name: &str| TenantId::new(name).unwrap_or_else(|e| unreachable!("{e}"));
        let (a, b) = (tenant("a"), tenant("b"));
        let first = room.take_for(&a, 5 * UNIT).await;
        let mut second = Box::pin(room.take_for(&a, UNIT));
        assert!(futures_util::poll!(&mut second).is_pending());
        let other = Box::pin(room.take_for(&b, 5 * UNIT));
        assert!(matches!(futures_util::poll!(other), std::task::Poll::Ready(_)));
        drop(first);
        drop(second.await);
    }
}
