//! The nemesis: draws what is done to the fleet, does it, heals it, waits until the fleet says that it is well, and probes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nevertwice_testkit::Fault;

use crate::fleet::{Fleet, REPLICAS, Topology};
use crate::history::{At, Recorder, What};
use crate::workload::{Probed, World, probe};

/// How often the healed fleet is probed: on a busy machine an answer of the store may take too long, which a replica admits.
const PROBES: usize = 8;

/// One thing that is done.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    KillGateway(usize),
    PauseGateway(usize),
    PauseNode(usize),
    KillNode {
        node: usize,
        keeps_data: bool,
    },
    /// To what goes through one proxy, or through all.
    Network(Option<usize>, Fault),
    FlushAll,
    Full,
    StepGateway(usize, i64),
    StepNode(usize, i64),
    Failover,
    /// The memory's slot goes to another node of the cluster, some of its keys at once and the others in the end.
    MoveSlot {
        from: usize,
        to: usize,
    },
}

impl Act {
    /// No two acts of one phase are at the same thing.
    fn target(self) -> (u8, usize) {
        match self {
            Self::KillGateway(n) | Self::PauseGateway(n) => (0, n),
            Self::PauseNode(_) | Self::KillNode { .. } | Self::Failover | Self::MoveSlot { .. } => (1, 0),
            Self::Network(..) => (2, 0),
            Self::FlushAll => (3, 0),
            Self::Full => (4, 0),
            Self::StepGateway(..) | Self::StepNode(..) => (5, 0),
        }
    }
}

fn draw(fleet: &Fleet, primary: usize, rng: &mut fastrand::Rng) -> Act {
    let gateway = rng.usize(0..REPLICAS);
    // most things are done to the node that counts
    let node = if rng.u32(0..5) == 0 { rng.usize(0..fleet.nodes.len()) } else { primary };
    match rng.u32(0..23) {
        0..3 => Act::KillGateway(gateway),
        3..5 => Act::PauseGateway(gateway),
        5..7 => Act::PauseNode(node),
        7..9 => Act::KillNode { node, keeps_data: true },
        9 => Act::KillNode { node, keeps_data: false },
        10..16 => {
            let fault = match rng.u32(0..6) {
                0 => Fault::Late(Duration::from_millis(rng.u64(5..400))),
                1 | 2 => Fault::Silence,
                3 => Fault::Reset,
                4 => Fault::Drip(Duration::from_millis(rng.u64(1..20))),
                _ => Fault::CutAfter(rng.usize(1..4000)),
            };
            let proxy = match fleet.topology {
                Topology::One => gateway,
                Topology::Sentinel | Topology::Cluster => node,
            };
            Act::Network((rng.u32(0..4) > 0).then_some(proxy), fault)
        }
        16 => Act::FlushAll,
        17 | 22 => Act::Full,
        18 => Act::StepGateway(gateway, [-200, -30, -2, 2, 30, 200, 200_000][rng.usize(0..7)]),
        19 => Act::StepNode(node, [-20, -3, 3, 20][rng.usize(0..4)]),
        _ if fleet.topology == Topology::Sentinel => Act::Failover,
        _ if fleet.topology == Topology::Cluster => {
            let to = (primary + rng.usize(1..fleet.nodes.len())) % fleet.nodes.len();
            Act::MoveSlot { from: primary, to }
        }
        _ => Act::PauseGateway(gateway),
    }
}

/// What was begun, and when.
struct Begun {
    act: Act,
    from: At,
}

/// Torments the fleet until the time is up.
pub async fn torment(
    fleet: &mut Fleet,
    world: &Arc<World>,
    rng: &mut fastrand::Rng,
    length: Duration,
) -> Result<usize, String> {
    let began = Instant::now();
    let mut phases = 0;
    let mut primary = Primary { failovers: fleet.failovers(), seen: world.history.now(), in_step: 0 };
    tokio::time::sleep(Duration::from_millis(500)).await;
    while began.elapsed() < length {
        primary.is_the_same(fleet, &world.history);
        phase(fleet, world, rng, &mut primary).await?;
        phases += 1;
    }
    primary.is_the_same(fleet, &world.history);
    Ok(phases)
}

/// What is known of the primary: sentinels change it when the nemesis makes them, and when the machine is too busy for its answers.
struct Primary {
    failovers: u64,
    /// When that was so.
    seen: At,
    /// What was written until then has been replicated.
    in_step: At,
}

impl Primary {
    /// Notes a failover since it was seen last.
    fn is_the_same(&mut self, fleet: &Fleet, history: &Recorder) {
        let (failovers, now) = (fleet.failovers(), history.now());
        if failovers != self.failovers {
            history.trouble(What::Failover { since: self.in_step }, self.seen, now);
        }
        (self.failovers, self.seen) = (failovers, now);
    }
}

#[expect(clippy::print_stderr, reason = "shown when the test fails")]
async fn phase(
    fleet: &mut Fleet,
    world: &Arc<World>,
    rng: &mut fastrand::Rng,
    known: &mut Primary,
) -> Result<(), String> {
    let history = Arc::clone(&world.history);
    let primary = fleet.primary();
    let mut acts: Vec<Act> = Vec::new();
    for _ in 0..rng.usize(1..4) {
        let act = draw(fleet, primary, rng);
        if acts.iter().all(|other| other.target() != act.target()) {
            acts.push(act);
        }
    }
    if fleet.topology == Topology::Sentinel {
        known.in_step = fleet.in_step_until(&history).await;
    }
    let start = history.now();
    let length = match rng.u32(0..10) {
        0..6 => rng.u64(100..1500),
        6..9 => rng.u64(1500..3500),
        // longer than a lease lives
        _ => rng.u64(5500..7500),
    };
    eprintln!("nemesis: {:>8} {acts:?} for {length} ms", crate::history::Shown(start).to_string());
    // a node that does not answer takes no orders
    acts.sort_by_key(|act| act.target().0 == 1);
    let mut begun = Vec::new();
    for act in acts {
        begun.push(begin(fleet, &history, act).await);
        tokio::time::sleep(Duration::from_millis(rng.u64(0..300))).await;
    }
    tokio::time::sleep(Duration::from_millis(length)).await;
    rng.shuffle(&mut begun);
    begun.sort_by_key(|begun| match begun.act {
        // a node that is full takes no keys
        Act::MoveSlot { .. } => 2,
        act => u8::from(act.target().0 != 1),
    });
    for begun in begun {
        heal(fleet, &history, begun).await;
        tokio::time::sleep(Duration::from_millis(rng.u64(0..200))).await;
    }
    fleet.settle().await?;
    known.is_the_same(fleet, &history);
    // a replica that hears nothing finds out in this time, and connects anew (docs/operating.md, "What happens when")
    let quiet = if fleet.topology == Topology::Cluster { 3 } else { 1 };
    tokio::time::sleep(Duration::from_secs(quiet)).await;
    history.settled();
    for _ in 0..PROBES {
        let began = history.now();
        let probed = probe(world, rng).await;
        let busy = fleet.admits_trouble(began, &history).await;
        if probed == Probed::Well || (probed == Probed::TooManyCalls && !busy) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    Err(format!("the store fails the healed fleet, {PROBES} times in a row"))
}

async fn begin(fleet: &mut Fleet, history: &Recorder, act: Act) -> Begun {
    let mut from = history.now();
    match act {
        Act::KillGateway(n) => from = fleet.kill_gateway(n, history).await,
        Act::PauseGateway(n) => fleet.gateways[n].signal("STOP"),
        Act::PauseNode(n) => fleet.nodes[n].pause(),
        Act::KillNode { node, .. } => fleet.nodes[node].kill(),
        Act::Network(proxy, fault) => match proxy {
            Some(n) => fleet.proxies[n].set(fault),
            None => fleet.proxies.iter().for_each(|proxy| proxy.set(fault)),
        },
        Act::FlushAll => {
            // while its slot moves, another node has some of it; one that cannot be reached, or is a replica, loses nothing
            for node in &fleet.nodes {
                let _ = node.try_ask(&["flushall"]);
            }
        }
        Act::Full => limit(fleet, "1"),
        Act::StepGateway(n, seconds) => fleet.gateway_clocks[n].step(seconds),
        Act::StepNode(n, seconds) => fleet.node_clocks[n].step(seconds),
        Act::Failover => fleet.ask_for_failover(),
        Act::MoveSlot { from, to } => fleet.begin_to_move_the_slot(from, to),
    }
    if let Act::FlushAll = act {
        history.trouble(What::Lost { since: 0 }, from, history.now());
    }
    Begun { act, from }
}

fn limit(fleet: &Fleet, bytes: &str) {
    for node in &fleet.nodes {
        let _ = node.try_ask(&["config", "set", "maxmemory", bytes]);
    }
}

async fn heal(fleet: &mut Fleet, history: &Recorder, Begun { act, from }: Begun) {
    let over = |what| history.trouble(what, from, history.now());
    match act {
        Act::KillGateway(n) => {
            fleet.start_gateway(n).await;
            over(What::Killed(n));
        }
        Act::PauseGateway(n) => {
            fleet.gateways[n].signal("CONT");
            over(What::Paused(n));
        }
        Act::PauseNode(n) => {
            fleet.nodes[n].resume();
            over(What::Unreachable(None));
        }
        Act::KillNode { node, keeps_data } => {
            if !keeps_data {
                // there may be none yet
                let _ = std::fs::remove_dir_all(fleet.nodes[node].dir().join("appendonlydir"));
            }
            fleet.nodes[node].restart();
            over(What::Unreachable(None));
            if !keeps_data {
                over(What::Lost { since: 0 });
            }
        }
        Act::Network(proxy, _) => {
            fleet.heal_network();
            over(What::Unreachable(proxy.filter(|_| fleet.topology == Topology::One)));
        }
        Act::Full => {
            limit(fleet, "0");
            over(What::Full);
        }
        Act::StepGateway(n, seconds) => {
            fleet.gateway_clocks[n].step(0);
            over(What::ReplicaClock(n, seconds));
        }
        Act::StepNode(n, seconds) => {
            fleet.node_clocks[n].step(0);
            over(What::StoreClock(seconds));
        }
        Act::MoveSlot { from, to } => {
            fleet.move_the_slot(from, to).await;
            over(What::Unreachable(None));
        }
        Act::FlushAll | Act::Failover => {}
    }
}
