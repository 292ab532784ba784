//! What one tenant may have of something at once.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use nevertwice_domain::tenant::TenantId;
use tokio::sync::Semaphore;

use crate::lock::Lock;

/// An equal share for each tenant.
pub(crate) struct Shares {
    each: usize,
    /// Of tenants that have, or wait for, some of it.
    of: Lock<HashMap<TenantId, Weak<Semaphore>>>,
}

impl Shares {
    pub(crate) fn new(each: usize) -> Self {
        Self { each, of: Lock::default() }
    }

    /// How large a share is.
    pub(crate) fn each(&self) -> usize {
        self.each
    }

    /// A tenant's share. It lasts as long as somebody holds it, or a permit of it.
    pub(crate) fn of(&self, tenant: &TenantId) -> Arc<Semaphore> {
        let mut of = self.of.hold();
        if let Some(share) = of.get(tenant).and_then(Weak::upgrade) {
            return share;
        }
        of.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.each));
        of.insert(tenant.clone(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_its_own_share_and_none_is_kept_that_nobody_uses() {
        let shares = Shares::new(2);
        let tenant = |name: &str| TenantId::new(name).unwrap_or_else(|e| unreachable!("{e}"));
        let (a, b) = (tenant("a"), tenant("b"));
        let taken: Vec<_> = (0..3).map(|_| shares.of(&a).try_acquire_owned().ok()).collect();
        assert_eq!(taken.iter().flatten().count(), 2);
        let other = shares.of(&b).try_acquire_owned();
        assert!(other.is_ok() && shares.of.hold().len() == 2);
        drop((taken, other));
        assert!(shares.of(&a).try_acquire_owned().is_ok());
        assert_eq!(shares.of.hold().len(), 1);
    }
}
