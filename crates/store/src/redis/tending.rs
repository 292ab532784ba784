//! The task that tends the connection: makes it, listens to what the fleet says, prolongs leases, tells replays, removes jobs, probes a server
//! that does not answer, and begins anew, with growing pauses, when the connection is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nevertwice_domain::tenant::UpstreamName;
use redis::{PushInfo, PushKind, RedisError, RedisResult, Value, cmd};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::event::Event;
use super::link::{self, Connection, Failed, Then, Wire};
use super::news::Guards;
use super::{Shared, late, leases, probe};
use crate::{StoreError, StoreErrorKind};

/// How often replays are told and the connection is looked after.
const TICK: Duration = Duration::from_millis(500);
/// How long a probe of a connection that seems dead may take.
const PROBE: Duration = Duration::from_secs(1);
/// Probes in a row without an answer before the connection is made anew.
const PROBES: u32 = 3;
/// Ticks in a row in which nothing of what was said came back before the connection is made anew.
const DEAF: u32 = 2;
/// How often the store is asked which guards are on, and marks are tried again that could not be made.
const GUARDS: Duration = Duration::from_secs(5);
/// How long a new connection may take until it can be used.
const BEGINNING: Duration = Duration::from_secs(2);
/// The pauses between attempts to connect: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// The layout of the keys that this version reads and writes.
pub(super) const LAYOUT: &str = "1";

/// Runs until the store is closed. Says when the first attempt to connect has ended, well or not.
pub(super) async fn tend(shared: Arc<Shared>, first: oneshot::Sender<()>) {
    let mut first = Some(first);
    let mut in_a_row = 0_u32;
    for attempt in 0.. {
        let begun = tokio::select! {
            begun = begin(&shared, attempt) => begun,
            () = shared.closing.cancelled() => return,
        };
        let began = Instant::now();
        match begun {
            Ok(connection) => {
                // what was known may have been forgotten unheard
                shared.near.clear();
                shared.link.set(Some(connection.clone()));
                if shared.link.first_in_a_while("connected") {
                    tracing::info!(topology = ?shared.options.topology, prefix = shared.options.prefix, "connected to the refusal store");
                }
                first.take();
                shared.tasks.spawn(probe::tell(Arc::clone(&shared)));
                watch(&shared, &connection).await;
                shared.link.set(None);
                // nothing is heard any more; those who wait look for themselves
                shared.near.clear();
                shared.leases.tell_all();
            }
            Err((trouble, error)) => {
                if shared.link.first_in_a_while(trouble) {
                    tracing::warn!(%error, topology = ?shared.options.topology, "no connection to the refusal store: until there is one, requests go on without the memory, and jobs and operations are refused");
                    shared.link.is_news_again("connected");
                }
                first.take();
            }
        }
        // one that is lost as soon as it is made is not made all the time
        if began.elapsed() > LONGEST_PAUSE {
            in_a_row = 0;
        }
        tokio::select! {
            () = tokio::time::sleep(pause(in_a_row, shared.leases.jitter())) => {}
            () = shared.closing.cancelled() => return,
        }
        in_a_row = in_a_row.saturating_add(1);
    }
}

/// How long to wait with the next attempt to connect, after so many in a row that came to nothing: twice as long each time, up to a
/// bound. By `chance` it is any time from a half of that to all of it: replicas that lost the same server do not all come back in the
/// same instant.
fn pause(in_a_row: u32, chance: u64) -> Duration {
    let most = PAUSE.saturating_mul(2_u32.saturating_pow(in_a_row)).min(LONGEST_PAUSE);
    let half = most / 2;
    let [low, high, ..] = chance.to_le_bytes();
    most - half + half * u32::from(u16::from_le_bytes([low, high])) / u32::from(u16::MAX)
}

/// A connection that is ready to be used.
async fn begin(shared: &Arc<Shared>, attempt: usize) -> Result<Connection, (&'static str, StoreError)> {
    let of = |error: RedisError| {
        let failed = Failed::of(&error);
        (failed.trouble, failed.error(&error))
    };
    let broken = Arc::new(Notify::new());
    let hear = {
        let (shared, broken) = (Arc::downgrade(shared), Arc::clone(&broken));
        move |push: PushInfo| {
            if let Some(shared) = shared.upgrade() {
                hear(&shared, &broken, &push);
            }
            Ok::<(), std::convert::Infallible>(())
        }
    };
    let mut wire = link::connect(&shared.options, attempt, hear).await.map_err(of)?;
    let turns = shared.desk.turns();
    let (epoch, layout, accepted, guards) =
        match tokio::time::timeout(BEGINNING, prepare(shared, &mut wire)).await {
            Ok(prepared) => prepared.map_err(of)?,
            Err(_) => {
                let error = "the refusal store took the connection and does not answer";
                return Err(("silence", StoreErrorKind::Io.error(error)));
            }
        };
    if layout != LAYOUT {
        return Err((
            "layout",
            StoreErrorKind::Newer.error(format!(
                "the keys under the prefix `{}` have layout {layout}, this version knows {LAYOUT}: give each its own prefix",
                shared.options.prefix
            )),
        ));
    }
    shared.seen.store(epoch, Ordering::Relaxed);
    shared.heard_of_guards(&guards, turns);
    shared.desk.begin_anew();
    shared.accepted().extend(accepted.iter().filter_map(|name| UpstreamName::new(name).ok()));
    Ok(Connection { wire, broken })
}

/// Subscribes, loads the scripts, and reads the number of the latest forget (a failover may have lost some), the layout, which upstreams accepted something, and whose guard is on or off again.
async fn prepare(shared: &Shared, wire: &mut Wire) -> RedisResult<(u64, String, Vec<String>, Guards)> {
    let keys = &shared.keys;
    wire.subscribe(&keys.events()).await?;
    let mut loads = JoinSet::new();
    for script in shared.scripts.all() {
        let (script, mut wire) = (script.clone(), wire.clone());
        loads.spawn(async move { script.load_async(&mut wire).await.map(drop) });
    }
    // a script that a server does not have is loaded when it is called: some node of a cluster may be away now
    while loads.join_next().await.is_some() {}
    // a write, so that a replica shows itself
    if let Err(error) = mark(shared, wire).await {
        let failed = Failed::of(&error);
        // a server that is full still answers for what it knows
        if failed.kind != StoreErrorKind::Full {
            return Err(error);
        }
    }
    let epoch: Option<u64> = cmd("GET").arg(keys.epoch()).query_async(wire).await.unwrap_or_default();
    let layout: Option<String> = cmd("GET").arg(keys.schema()).query_async(wire).await?;
    let accepted = cmd("SMEMBERS").arg(keys.accepted()).query_async(wire).await?;
    let tripped = cmd("HGETALL").arg(keys.tripped()).query_async(wire).await?;
    let recovered = cmd("HGETALL").arg(keys.recovered()).query_async(wire).await?;
    Ok((epoch.unwrap_or(0), layout.unwrap_or_else(|| LAYOUT.to_owned()), accepted, (tripped, recovered)))
}

/// Says of what layout the keys are, where nobody has said it.
async fn mark(shared: &Shared, wire: &mut Wire) -> RedisResult<()> {
    let mut mark = cmd("SET");
    mark.arg(shared.keys.schema()).arg(LAYOUT).arg("NX").query_async::<Value>(wire).await.map(drop)
}

/// What the server says unasked. Runs in the connection's own task, in the order of what it reads, and keeps no queue.
fn hear(shared: &Shared, broken: &Notify, push: &PushInfo) {
    match push.kind {
        PushKind::Message => {
            // the channel, and the payload
            if let [_, Value::BulkString(payload)] = &push.data[..]
                && let Some(event) = Event::decode(payload)
            {
                shared.happened(&event);
            }
        }
        // what was said until now, or from now on, was not heard
        PushKind::Disconnection | PushKind::Subscribe => {
            shared.near.clear();
            shared.leases.tell_all();
            // one node of a cluster: the library connects and subscribes anew
            if push.kind == PushKind::Disconnection && !shared.options.topology.is_cluster() {
                broken.notify_one();
            }
        }
        _ => {}
    }
}

/// Until the connection is lost or the store is closed.
async fn watch(shared: &Arc<Shared>, connection: &Connection) {
    tokio::select! {
        () = connection.broken.notified() => {}
        () = shared.closing.cancelled() => {}
        () = look_after(shared, &connection.wire) => {}
    }
}

/// Until the connection turns out to be of no use.
async fn look_after(shared: &Arc<Shared>, wire: &Wire) {
    let mut wire = wire.clone();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // a key in the slot of all others: that node has to answer, no other
    let probe = cmd("GET").arg(shared.keys.schema()).take();
    let (mut unanswered, mut unheard) = (0, 0);
    shared.echo.begin_anew();
    let (mut errands, mut late): (Option<JoinHandle<()>>, Option<JoinHandle<()>>) = (None, None);
    let mut tidying: Option<JoinHandle<()>> = None;
    let mut marking: Option<JoinHandle<()>> = None;
    let mut guards_read: Option<Instant> = None;
    loop {
        tick.tick().await;
        let asked = Instant::now();
        match tokio::time::timeout(PROBE, probe.query_async::<Option<String>>(&mut wire)).await {
            Ok(Ok(layout)) => {
                unanswered = 0;
                match layout.as_deref() {
                    Some(LAYOUT) => {}
                    // all data was lost: who comes with another layout shall find that the keys are ours
                    None => {
                        let mark = async { mark(shared, &mut wire).await };
                        let _ = tokio::time::timeout(PROBE, mark).await;
                    }
                    // and here the other one was first
                    Some(_) => return,
                }
                // one that answers too late for a request is not asked by requests
                if asked.elapsed() <= shared.options.read {
                    shared.link.recovered();
                }
            }
            Ok(Err(error)) => {
                shared.link.failed(&error);
                if Failed::of(&error).then == Then::Reconnect {
                    return;
                }
            }
            Err(_) => {
                unanswered += 1;
                if unanswered == PROBES {
                    return;
                }
            }
        }
        if shared.link.is_up() {
            // whatever is still unanswered: a lease does not wait until the replays are told
            let prolonging = Arc::clone(shared);
            shared.tasks.spawn(async move { prolong(&prolonging).await });
            if errands.as_ref().is_none_or(JoinHandle::is_finished) {
                unheard = if shared.echo.is_heard() { 0 } else { unheard + 1 };
                if unheard == DEAF {
                    if shared.link.first_in_a_while("deaf") {
                        tracing::warn!(
                            "the refusal store answers, and its messages do not arrive: connecting anew"
                        );
                    }
                    return;
                }
                let guards_due = guards_read.is_none_or(|at| at.elapsed() >= GUARDS);
                if guards_due {
                    guards_read = Some(Instant::now());
                    if shared.desk.owes_marks() && marking.as_ref().is_none_or(JoinHandle::is_finished) {
                        let shared = Arc::clone(shared);
                        marking =
                            Some(shared.clone().tasks.spawn(async move { shared.mark_suspects().await }));
                    }
                }
                let shared = Arc::clone(shared);
                errands = Some(shared.clone().tasks.spawn(async move {
                    shared.tell_guards().await;
                    shared.tell_judgements().await;
                    // what could not be told is told later
                    let _ = shared.tell_replays().await;
                    if guards_due {
                        // a message that was lost, or came while there was no connection
                        shared.read_guards().await;
                    }
                    shared.say().await;
                }));
            }
            if late.as_ref().is_none_or(JoinHandle::is_finished) {
                let shared = Arc::clone(shared);
                late = Some(shared.clone().tasks.spawn(async move { late::tell(&shared).await }));
            }
            if shared.work.is_used() && tidying.as_ref().is_none_or(JoinHandle::is_finished) {
                let shared = Arc::clone(shared);
                // what cannot be removed now is removed later
                tidying = Some(shared.clone().tasks.spawn(async move { _ = shared.sweep_jobs().await }));
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_are_spread_over_half_of_it() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut before = Duration::ZERO;
        for in_a_row in (0..100).chain([u32::MAX]) {
            let [least, most] = [0, u64::MAX].map(|chance| pause(in_a_row, chance));
            assert!(!least.is_zero() && most <= LONGEST_PAUSE, "{in_a_row}: {least:?} to {most:?}");
            assert!(most - least >= most / 2, "{in_a_row}: {least:?} to {most:?}");
            assert!(most == LONGEST_PAUSE || most >= before * 2, "{in_a_row}: {most:?} after {before:?}");
            before = most;
            // any part of that is drawn as often as any other
            let mut drawn = [0; 4];
            for _ in 0..1000 {
                let drawn_one = pause(in_a_row, rng.u64(..));
                assert!((least..=most).contains(&drawn_one));
                let part = (drawn_one - least).as_nanos() * 4 / ((most - least).as_nanos() + 1);
                drawn[usize::try_from(part).unwrap_or(0)] += 1;
            }
            assert!(drawn.iter().all(|times| (150..350).contains(times)), "{in_a_row}: {drawn:?}");
        }
        assert_eq!(before, LONGEST_PAUSE);
    }

    #[test]
    fn the_chance_of_a_pause_differs_from_call_to_call_and_among_processes() {
        let (a, b) = (leases::Leases::new(), leases::Leases::new());
        let pauses = |leases: &leases::Leases| (0..50).map(|_| pause(5, leases.jitter())).collect::<Vec<_>>();
        let (a, b) = (pauses(&a), pauses(&b));
        assert_ne!(a, b);
        for drawn in [a, b] {
            assert!(drawn.iter().any(|pause| *pause != drawn[0]));
        }
    }
}
