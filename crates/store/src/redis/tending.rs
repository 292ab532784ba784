//! The task that tends the connection: makes it, listens to what the fleet says, prolongs leases, tells replays, probes a server
//! that does not answer, and begins anew, with growing pauses, when the connection is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nevertwice_domain::tenant::UpstreamName;
use redis::{PushInfo, PushKind, Value, pipe};
use tokio::sync::mpsc;

use super::event::Event;
use super::link::{self, Wire};
use super::{Shared, leases, probe};
use crate::{StoreError, StoreErrorKind};

/// How often replays are told and the connection is looked after.
const TICK: Duration = Duration::from_millis(500);
/// How long a probe of a connection that seems dead may take.
const PROBE: Duration = Duration::from_secs(1);
/// Probes in a row that fail before the connection is made anew.
const PROBES: u32 = 3;
/// The pauses between attempts to connect: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How old a verdict may be that is written late.
const LATE_MS: u64 = 60 * 60 * 1000;
/// The layout of the keys that this version reads and writes.
pub(super) const LAYOUT: &str = "1";

/// Runs until the store is closed.
pub(super) async fn tend(shared: Arc<Shared>) {
    let mut pause = PAUSE;
    let mut told = false;
    while !shared.closed.load(Ordering::Acquire) {
        let (pushes, mut pushed) = mpsc::unbounded_channel();
        match begin(&shared, pushes).await {
            Ok(wire) => {
                (pause, told) = (PAUSE, false);
                // what was found wrong with a connection before says nothing of this one
                std::pin::pin!(shared.link.broken.notified()).as_mut().enable();
                // what was known may have been forgotten unheard
                shared.near.clear();
                shared.link.set(Some(wire.clone()));
                tracing::info!(topology = ?shared.options.topology, prefix = shared.options.prefix, "connected to the refusal store");
                shared.attempted.notify_waiters();
                shared.tasks.spawn(probe::tell(Arc::clone(&shared), wire.clone()));
                write_late(&shared).await;
                watch(&shared, wire, &mut pushed).await;
                shared.link.set(None);
                // those who wait look for themselves
                shared.leases.tell_all();
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%error, topology = ?shared.options.topology, "no connection to the refusal store, requests go on without it until there is one");
                }
                shared.attempted.notify_waiters();
            }
        }
        // replicas that lost the same server do not all come back in the same instant
        let jitter = pause
            .mul_f64(0.5 + f64::from(u16::try_from(shared.leases.jitter() & 0xfff).unwrap_or(0)) / 8192.0);
        tokio::select! {
            () = tokio::time::sleep(jitter) => {}
            () = shared.closing.notified() => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A connection that is ready to be used.
async fn begin(shared: &Shared, pushes: mpsc::UnboundedSender<PushInfo>) -> Result<Wire, StoreError> {
    let of = |error: redis::RedisError| shared.link.failed(&error);
    let mut wire = link::connect(&shared.options, pushes).await.map_err(of)?;
    let keys = &shared.keys;
    let mut commands = pipe();
    commands.cmd("SET").arg(keys.schema()).arg(LAYOUT).arg("NX").ignore();
    commands.get(keys.schema()).smembers(keys.accepted()).hgetall(keys.tripped());
    let starting = async {
        wire.subscribe(&keys.events()).await?;
        for script in shared.scripts.all() {
            script.load_async(&mut wire).await?;
        }
        let found: (String, Vec<String>, BTreeMap<String, i64>) = commands.query_async(&mut wire).await?;
        Ok(found)
    };
    let (layout, accepted, tripped) = match tokio::time::timeout(PROBE, starting).await {
        Ok(started) => started.map_err(of)?,
        Err(_) => {
            return Err(StoreErrorKind::Io.error("the refusal store took the connection and does not answer"));
        }
    };
    if layout != LAYOUT {
        return Err(StoreErrorKind::Newer.error(format!(
            "the keys under the prefix `{}` have layout {layout}, this version knows {LAYOUT}: give each its own prefix",
            shared.options.prefix
        )));
    }
    shared.heard_at_start(&tripped);
    shared.accepted().extend(accepted.iter().filter_map(|name| UpstreamName::new(name).ok()));
    Ok(wire)
}

/// Until the connection is lost or the store is closed.
async fn watch(shared: &Arc<Shared>, mut wire: Wire, pushed: &mut mpsc::UnboundedReceiver<PushInfo>) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut failed_probes = 0;
    loop {
        tokio::select! {
            push = pushed.recv() => match push {
                None => return,
                Some(push) if push.kind == PushKind::Disconnection => match wire {
                    Wire::One(_) => return,
                    // one node of many: the library looks for another; what it would have said is not known any more
                    Wire::Many(_) => {
                        shared.near.clear();
                        shared.leases.tell_all();
                    }
                },
                Some(push) => hear(shared, &push),
            },
            _ = tick.tick() => {
                let budget = if shared.link.is_up() { PROBE } else { shared.options.read };
                let ping = redis::cmd("PING");
                match tokio::time::timeout(budget, ping.query_async::<Value>(&mut wire)).await {
                    Ok(Ok(_)) => {
                        failed_probes = 0;
                        let was_up = shared.link.is_up();
                        shared.link.recovered();
                        if !was_up {
                            write_late(shared).await;
                        }
                    }
                    Ok(Err(_)) => return,
                    Err(_) => failed_probes += 1,
                }
                // a connection that leads nowhere is not worth keeping; a slow server gets its time
                if failed_probes >= PROBES * u32::try_from(PROBE.as_millis() / budget.as_millis().max(1)).unwrap_or(1).clamp(1, 10) {
                    return;
                }
                if shared.link.is_up() {
                    let leases = Arc::clone(shared);
                    shared.tasks.spawn(async move {
                        prolong(&leases).await;
                        leases.tell_judgements().await;
                        // what could not be told is told later
                        let _ = leases.tell_replays().await;
                    });
                }
            }
            () = shared.link.broken.notified() => return,
            () = shared.closing.notified() => {
                // for the loop around this one
                shared.closing.notify_one();
                return;
            }
        }
    }
}

/// A message of the fleet: kind `message`, the channel, and the payload.
fn hear(shared: &Shared, push: &PushInfo) {
    if let [_, Value::BulkString(payload)] = &push.data[..]
        && let Some(event) = Event::decode(payload)
    {
        shared.happened(&event);
    }
}

async fn prolong(shared: &Shared) {
    let held = shared.leases.all();
    for held in held.chunks(256) {
        let mut call = shared.scripts.renew.prepare_invoke();
        call.arg(u64::try_from(leases::LIFE.as_millis()).unwrap_or(u64::MAX));
        for (key, token) in held {
            call.key(shared.keys.lease(key)).arg(token);
        }
        // the next one is soon
        let _: Result<i64, _> = shared.link.call(&call, shared.options.write).await;
    }
}

/// Writes the verdicts that were learned while the store was away, unless they were forgotten since.
async fn write_late(shared: &Shared) {
    loop {
        let Some((candidate, fence, learned)) = shared.late().pop_front() else { return };
        if shared.clock.now().since_ms(learned) > LATE_MS {
            continue;
        }
        match shared.record(&candidate, fence).await {
            Ok(_) => {}
            Err(error) if matches!(error.kind, StoreErrorKind::Io | StoreErrorKind::Busy) => {
                shared.late().push_front((candidate, fence, learned));
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "a verdict learned while the refusal store was away is lost")
            }
        }
    }
}
