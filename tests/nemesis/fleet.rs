//! The fleet under attack: three replicas of the gateway, a store with chaos proxies before it, and an upstream that writes
//! down what reaches it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nevertwice_testkit::{Chaos, Client, Fault, Gateway, Redis, Reply, Request, Setup, SlotMove, Upstream};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::clock::{Clock, Clocks};
use crate::history::{At, Recorder, Sample};

pub const REPLICAS: usize = 3;
/// What the replicas are told: how long a look-up and a record may take, how long one waits for another's attempt (longer than a
/// lease lives by itself, so that one that lapses shows), how long an answer's head is held.
pub const READ_MS: u64 = 500;
pub const WRITE_MS: u64 = 500;
pub const WAIT_MS: u64 = 7000;
pub const JUDGE_MS: u64 = 2000;
const PRIMARY: &str = "memory";
/// What is in the slot of all that the memory has.
const MEMORY: &str = "{nevertwice}:schema";
/// So many keys move at once.
const AT_ONCE: usize = 20;
/// How long a primary may be silent before sentinels or a cluster take it for dead.
const DOWN_AFTER_MS: u32 = 1000;

/// How the store is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server, and a proxy for each replica.
    One,
    /// A primary with a replica, each behind a proxy, and three sentinels.
    Sentinel,
    /// Three primaries, each behind a proxy.
    Cluster,
}

pub struct Fleet {
    pub topology: Topology,
    pub gateways: Vec<Gateway>,
    pub gateway_clocks: Vec<Clock>,
    pub nodes: Vec<Redis>,
    pub node_clocks: Vec<Clock>,
    sentinels: Vec<Redis>,
    pub proxies: Vec<Chaos>,
    _upstream: Upstream,
    pub counters: Vec<Arc<Mutex<Counters>>>,
    _clocks: Clocks,
}

/// What of the fleet is needed to use it.
#[derive(Clone)]
pub struct Addresses {
    pub gateways: Vec<SocketAddr>,
    pub admins: Vec<SocketAddr>,
}

/// A replica's counters when they were looked at last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    at: At,
    unknown: usize,
    not_recorded: usize,
    fenced: usize,
    /// Between its death and its next start there is nothing to look at.
    dead: bool,
}

impl Fleet {
    pub async fn start(topology: Topology, seed: u64, history: &Arc<Recorder>) -> Self {
        let clocks = Clocks::new();
        let upstream = upstream(seed, history).await;
        let node_clocks: Vec<Clock> =
            (0..nodes(topology)).map(|n| clocks.clock(&format!("node-{n}"))).collect();
        let mut nodes: Vec<Redis> = node_clocks.iter().map(|clock| node(topology, clock)).collect();
        let targets: Vec<SocketAddr> = match topology {
            Topology::One => vec![nodes[0].addr(); REPLICAS],
            Topology::Sentinel | Topology::Cluster => nodes.iter().map(Redis::addr).collect(),
        };
        let mut proxies = Vec::new();
        for target in targets {
            proxies.push(Chaos::start(target).await);
        }
        let sentinels = match topology {
            Topology::One => Vec::new(),
            Topology::Sentinel => replicate(&mut nodes, &proxies).await,
            Topology::Cluster => {
                join(&mut nodes, &proxies).await;
                Vec::new()
            }
        };
        let behind =
            |servers: Vec<SocketAddr>| servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let (mut gateways, mut gateway_clocks) = (Vec::new(), Vec::new());
        for n in 0..REPLICAS {
            let url = match topology {
                Topology::One => format!("redis://{}", proxies[n].addr()),
                Topology::Sentinel => {
                    format!(
                        "redis-sentinel://{}/{PRIMARY}",
                        behind(sentinels.iter().map(Redis::addr).collect())
                    )
                }
                Topology::Cluster => {
                    format!("redis-cluster://{}", behind(proxies.iter().map(Chaos::addr).collect()))
                }
            };
            let clock = clocks.clock(&format!("gateway-{n}"));
            gateways.push(gateway(&upstream, &url, &clock).await);
            gateway_clocks.push(clock);
        }
        let counters = (0..REPLICAS).map(|_| Arc::default()).collect();
        Self {
            topology,
            gateways,
            gateway_clocks,
            nodes,
            node_clocks,
            sentinels,
            proxies,
            _upstream: upstream,
            counters,
            _clocks: clocks,
        }
    }

    pub fn addresses(&self) -> Addresses {
        Addresses {
            gateways: self.gateways.iter().map(|gateway| gateway.addr).collect(),
            admins: self.gateways.iter().map(|gateway| gateway.admin).collect(),
        }
    }

    /// The node that has the memory now.
    pub fn primary(&self) -> usize {
        let has_it = |node: &Redis| {
            node.try_ask(&["role"]).is_ok_and(|role| role.starts_with("master"))
                && node.try_ask(&["get", MEMORY]).is_ok_and(|layout| layout == "1")
        };
        self.nodes.iter().position(has_it).unwrap_or(0)
    }

    /// How often there was a new primary.
    pub fn failovers(&self) -> u64 {
        let epoch = |sentinel: &Redis| {
            let said = sentinel.try_ask(&["sentinel", "master", PRIMARY]).ok()?;
            let mut lines = said.lines().skip_while(|line| *line != "config-epoch");
            lines.nth(1)?.parse().ok()
        };
        self.sentinels.iter().filter_map(epoch).max().unwrap_or(0)
    }

    pub fn ask_for_failover(&self) {
        // refused when there is one under way, or was one a moment ago
        let _ = self.sentinels[0].try_ask(&["sentinel", "failover", PRIMARY]);
    }

    /// Half of the memory's keys go to another node of the cluster.
    pub fn begin_to_move_the_slot(&self, from: usize, to: usize) {
        let moving = SlotMove::new(&self.nodes, MEMORY, from, to);
        moving.begin(&self.nodes);
        let half = moving.left(&self.nodes).unwrap_or(0) / 2;
        for _ in 0..half.div_ceil(AT_ONCE) {
            // a node that is full takes none
            let _ = moving.step(&self.nodes, AT_ONCE);
        }
    }

    /// And now the others.
    pub async fn move_the_slot(&self, from: usize, to: usize) {
        let moving = SlotMove::new(&self.nodes, MEMORY, from, to);
        until("all keys have moved", || moving.step(&self.nodes, AT_ONCE) == Ok(false)).await;
        moving.finish(&self.nodes);
    }

    /// Until when the other node has all that was written; 0 when it lags behind.
    pub async fn in_step_until(&self, history: &Recorder) -> At {
        let now = history.now();
        let primary = self.primary();
        let offset = |node: &Redis, field: &str| {
            let info = node.try_ask(&["info", "replication"]).ok()?;
            info.lines().find_map(|line| line.strip_prefix(field)?.trim().parse::<u64>().ok())
        };
        let Some(written) = offset(&self.nodes[primary], "master_repl_offset:") else { return 0 };
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            if offset(&self.nodes[1 - primary], "slave_repl_offset:").is_some_and(|has| has >= written) {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        0
    }

    /// Waits until the store is whole and every replica says that it has it. Says what is missing when that takes too long.
    pub async fn settle(&self) -> Result<(), String> {
        let limit = Duration::from_secs(90);
        let began = Instant::now();
        loop {
            let missing = match self.store_is_whole() {
                Ok(()) => self.replicas_are_well().await,
                Err(missing) => Err(missing),
            };
            let Err(missing) = missing else { return Ok(()) };
            if began.elapsed() > limit {
                return Err(format!("not well {limit:?} after all was healed: {missing}"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn store_is_whole(&self) -> Result<(), String> {
        let said = |node: &Redis, command: &[&str]| node.try_ask(command).unwrap_or_else(|error| error);
        for node in &self.nodes {
            let pong = said(node, &["ping"]);
            if pong != "PONG" {
                return Err(format!("{}: {pong}", node.addr()));
            }
        }
        match self.topology {
            Topology::One => Ok(()),
            Topology::Cluster => {
                let mut states = self.nodes.iter().map(|node| said(node, &["cluster", "info"]));
                let broken = states.find(|state| !state.contains("cluster_state:ok"));
                broken.map_or(Ok(()), Err)
            }
            Topology::Sentinel => {
                let roles: Vec<String> = self.nodes.iter().map(|node| said(node, &["role"])).collect();
                let primary = roles.iter().position(|role| role.starts_with("master"));
                let follows =
                    roles.iter().filter(|role| role.starts_with("slave") && role.contains("connected"));
                let (Some(primary), 1) = (primary, follows.count()) else { return Err(format!("{roles:?}")) };
                let port = self.proxies[primary].addr().port().to_string();
                for sentinel in &self.sentinels {
                    let told = said(sentinel, &["sentinel", "get-master-addr-by-name", PRIMARY]);
                    let knows = said(sentinel, &["sentinel", "master", PRIMARY]);
                    let flags = knows.lines().skip_while(|line| *line != "flags").nth(1).unwrap_or_default();
                    if !told.contains(&port) || flags != "master" {
                        return Err(format!("a sentinel says {told:?} {flags}, and it is {port}"));
                    }
                }
                Ok(())
            }
        }
    }

    async fn replicas_are_well(&self) -> Result<(), String> {
        for (n, gateway) in self.gateways.iter().enumerate() {
            let Ok(client) = Client::try_connect(gateway.admin).await else {
                return Err(format!("replica {n} cannot be reached"));
            };
            let ready = client.patience(Duration::from_secs(3)).try_request(Request::get("/readyz")).await;
            let ready = ready.map(|answer| answer.text()).unwrap_or_else(|failure| failure.to_string());
            let said: Value = serde_json::from_str(&ready).unwrap_or_default();
            if said["store"] != "ok" {
                return Err(format!("replica {n} says {ready}\n{}", tail(&gateway.log())));
            }
        }
        Ok(())
    }

    pub fn heal_network(&self) {
        for proxy in &self.proxies {
            proxy.set(Fault::None);
        }
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// Looks at a replica's counters, and notes by how much they rose.
pub async fn look_at(counters: &Mutex<Counters>, replica: usize, admin: SocketAddr, history: &Recorder) {
    let mut counters = counters.lock().await;
    note(&mut counters, replica, admin, history).await;
}

async fn note(counters: &mut Counters, replica: usize, admin: SocketAddr, history: &Recorder) {
    if counters.dead {
        return;
    }
    // what is counted while it answers may be in this answer or in the next
    let at = history.now();
    let Ok(client) = Client::try_connect(admin).await else { return };
    let asked = client.patience(Duration::from_secs(10)).try_request(Request::get("/metrics")).await;
    let (Ok(answer), to) = (asked, history.now()) else { return };
    let text = answer.text();
    let count = |series: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok());
        value.unwrap_or(0.0) as usize
    };
    let unknown = count("gateway_negative_cache_store_errors_total{op=\"recall\"}");
    let not_recorded = count("gateway_negative_cache_not_recorded_total{reason=\"store\"}");
    let fenced = count("gateway_negative_cache_not_recorded_total{reason=\"fenced\"}");
    history.get().samples.push(Sample {
        replica,
        from: counters.at,
        to,
        unknown: unknown.saturating_sub(counters.unknown),
        not_recorded: not_recorded.saturating_sub(counters.not_recorded),
        fenced: fenced.saturating_sub(counters.fenced),
        blind: false,
    });
    *counters = Counters { at, unknown, not_recorded, fenced, dead: false };
}

impl Fleet {
    /// Kills a replica, after a last look at its counters. Says when.
    pub async fn kill_gateway(&mut self, n: usize, history: &Recorder) -> At {
        let admin = self.gateways[n].admin;
        let mut counters = self.counters[n].lock().await;
        note(&mut counters, n, admin, history).await;
        let from = history.now();
        self.gateways[n].signal("KILL");
        self.gateways[n].wait_exit(Duration::from_secs(10)).await;
        let to = history.now();
        let unseen =
            Sample { replica: n, from: counters.at, to, unknown: 0, not_recorded: 0, fenced: 0, blind: true };
        history.get().samples.push(unseen);
        *counters = Counters { at: to, dead: true, ..Counters::default() };
        from
    }

    /// Whether a replica counts a failure of the store since then.
    pub async fn admits_trouble(&self, since: At, history: &Recorder) -> bool {
        for (n, counters) in self.counters.iter().enumerate() {
            look_at(counters, n, self.gateways[n].admin, history).await;
        }
        history.get().samples.iter().any(|s| s.to >= since && s.unknown + s.not_recorded > 0)
    }

    pub async fn start_gateway(&mut self, n: usize) {
        self.gateways[n].restart().await;
        self.counters[n].lock().await.dead = false;
    }
}

fn nodes(topology: Topology) -> usize {
    match topology {
        Topology::One => 1,
        Topology::Sentinel => 2,
        Topology::Cluster => 3,
    }
}

/// What it has answered for is with the system: a kill of the process loses nothing. (With `everysec` a write may wait for the
/// disk while its answer goes out.)
fn node(topology: Topology, clock: &Clock) -> Redis {
    let mut args =
        vec!["--save", "", "--appendonly", "yes", "--appendfsync", "no", "--repl-diskless-sync-delay", "0"];
    if topology == Topology::Cluster {
        args.extend(["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]);
    }
    Redis::with_env(&args, &clock.env())
}

/// The second node follows the first. All that speaks to one of them, the other and the sentinels too, goes through its proxy.
async fn replicate(nodes: &mut [Redis], proxies: &[Chaos]) -> Vec<Redis> {
    for (node, proxy) in nodes.iter_mut().zip(proxies) {
        node.configure("replica-announce-ip", "127.0.0.1");
        node.configure("replica-announce-port", &proxy.addr().port().to_string());
    }
    let port = proxies[0].addr().port().to_string();
    nodes[1].ask(&["replicaof", "127.0.0.1", &port]);
    let sentinels: Vec<Redis> =
        (0..3).map(|_| Redis::sentinel(PRIMARY, proxies[0].addr(), DOWN_AFTER_MS)).collect();
    let second = proxies[1].addr().port().to_string();
    for sentinel in &sentinels {
        until("the sentinels know all", || {
            let knows = sentinel.try_ask(&["sentinel", "replicas", PRIMARY]).unwrap_or_default();
            let others = sentinel.try_ask(&["sentinel", "master", PRIMARY]).unwrap_or_default();
            let others =
                others.lines().skip_while(|line| *line != "num-other-sentinels").nth(1).map(str::to_owned);
            knows.contains(&second) && others.as_deref() == Some("2")
        })
        .await;
    }
    sentinels
}

/// Makes a cluster of the nodes, which tell clients the addresses of their proxies.
async fn join(nodes: &mut [Redis], proxies: &[Chaos]) {
    let slots = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
    for ((node, proxy), (first, last)) in nodes.iter_mut().zip(proxies).zip(slots) {
        node.configure("cluster-announce-ip", "127.0.0.1");
        node.configure("cluster-announce-port", &proxy.addr().port().to_string());
        let bus = node.addr().port() + 10_000;
        node.configure("cluster-announce-bus-port", &bus.to_string());
        node.ask(&["cluster", "addslotsrange", first, last]);
    }
    for node in &nodes[1..] {
        nodes[0].ask(&["cluster", "meet", "127.0.0.1", &node.addr().port().to_string()]);
    }
    for node in &*nodes {
        until("the cluster is complete", || {
            let info = node.try_ask(&["cluster", "info"]).unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains("known_nodes:3")
        })
        .await;
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn gateway(upstream: &Upstream, redis: &str, clock: &Clock) -> Gateway {
    let memory = format!(
        "pool:\n  max_in_flight: 1000\nnegative_cache:\n  single_flight_wait_ms: {WAIT_MS}\n  judge_wait_ms: {JUDGE_MS}\n  \
         mass_refusal_guard: {{enabled: false}}"
    );
    let yaml = Gateway::simple_yaml(&upstream.url(), &[("UPSTREAM", &memory)]);
    let embedded = "embedded:\n    path: \"@DIR@/data\"";
    assert!(yaml.contains(embedded));
    let shared = format!("redis:\n    url: \"{redis}\"\n    read_ms: {READ_MS}\n    write_ms: {WRITE_MS}");
    let mut setup = Setup::new(&yaml.replace(embedded, &shared));
    for (name, value) in clock.env() {
        setup = setup.env(name, &value);
    }
    setup.start().await
}

/// Answers by the kind of the document, each attempt with a body of its own, and writes down every call.
async fn upstream(seed: u64, history: &Arc<Recorder>) -> Upstream {
    let upstream = Upstream::start().await;
    let (history, mut rng) = (Arc::clone(history), fastrand::Rng::with_seed(seed));
    upstream.by(move |seen, _| {
        let text = String::from_utf8_lossy(&seen.body).into_owned();
        let document = text.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok());
        let trace = seen.header("traceparent").unwrap_or_default();
        let op = trace.split('-').nth(1).and_then(|trace| usize::from_str_radix(trace, 16).ok());
        let (Some(document), Some(op)) = (document, op) else { return Reply::status(500) };
        let delay = Duration::from_millis(match rng.u32(0..100) {
            0..75 => rng.u64(0..40),
            75..95 => rng.u64(100..800),
            // longer than a lease lives by itself, and than one waits
            _ => rng.u64(1000..9000),
        });
        // a probe is about one call, and nobody's time is up
        let delay = if history.get().documents[document].probe {
            delay.min(Duration::from_millis(500))
        } else {
            delay
        };
        // 0 is no trace
        let (attempt, outcome) = history.arrived(document, op - 1, delay);
        let body = format!("{{\"document\":{document},\"attempt\":{attempt}}}");
        let reply = Reply::status(outcome.status()).header("Content-Type", "application/json").body(body);
        reply.delay(delay)
    });
    upstream
}
