//! What other processes that share the store tell: their judgements count for the mass-refusal guard like one's own, and a guard
//! that is on, or off again, is so everywhere. What another one has seen accepted is not recorded as refused by an older attempt here.

use std::sync::Arc;

use nevertwice_domain::clock::Millis;
use nevertwice_domain::fingerprint::Fingerprint;
use nevertwice_store::News;
use tokio::sync::mpsc;

use super::UpstreamGuard;
use crate::Shared;

/// Hears the fleet until the drain.
pub(crate) async fn listen(gateway: Arc<Shared>, mut news: mpsc::Receiver<News>) {
    loop {
        let heard = tokio::select! {
            biased;
            () = gateway.stop.drain.cancelled() => return,
            heard = news.recv() => heard,
        };
        let Some(heard) = heard else { return };
        take(&gateway, &heard);
    }
}

fn take(gateway: &Shared, news: &News) {
    let (News::Judged { upstream, .. } | News::Tripped { upstream, .. } | News::Recovered { upstream }) =
        news;
    // another replica may have upstreams that this one has not
    let found = gateway.upstreams.iter().find(|u| u.name() == upstream);
    let Some(guard) = found.and_then(|u| u.guard.as_ref()) else { return };
    let now = gateway.clock.now();
    match news {
        News::Judged { document, refused, .. } => {
            // of an acceptance it is the fingerprint that is told
            if let (false, Some(memory)) = (*refused, &gateway.memory) {
                memory.accepted_elsewhere(Fingerprint::from_bytes(*document));
            }
            guard.mass_refusal.hold().judged_elsewhere(&guard.rules.guard, *document, *refused, now);
        }
        News::Tripped { since, .. } => {
            if guard.rules.guard.enabled && guard.trip(*since, now) {
                tracing::error!(%upstream, "mass-refusal guard on, as another replica found");
            }
        }
        News::Recovered { .. } => {
            if guard.recover(now) {
                tracing::warn!(%upstream, "mass-refusal guard off, as another replica found");
            }
        }
    }
}

impl UpstreamGuard {
    /// It is on elsewhere. Returns whether it was off here.
    fn trip(&self, since: Millis, now: Millis) -> bool {
        let tripped = self.mass_refusal.hold().trip(now);
        if tripped {
            self.distrust_from(since);
        }
        tripped
    }
}
