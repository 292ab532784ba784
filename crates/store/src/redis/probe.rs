//! Looks at the server as a deployment does: whether its version, its rights, its eviction, its clock and its distance are fit
//! for a memory of refusals, and whether the keys under the prefix are this program's. It changes nothing but a few keys of its own, which it
//! removes, and it ends in bounded time.

mod advice;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nevertwice_domain::clock::Clock;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, Script, ServerErrorKind, Value, cmd};
use tokio::sync::mpsc;

use super::keys::Keys;
use super::link::{self, Wire};
use super::tending::LAYOUT;
use super::{RedisOptions, Shared};
use advice::{about, cure_of, lacks_right};

/// How long one command may take.
const STEP: Duration = Duration::from_secs(1);
/// How long all of them may take together.
const WHOLE: Duration = Duration::from_secs(3);
/// How far the clocks may be apart.
const SKEW_MS: i64 = 2000;
const PINGS: usize = 7;
/// The oldest version that has all commands.
const OLDEST: (u32, u32) = (6, 2);
/// How long keys of the probe live that it could not remove, in milliseconds.
const LEFT_MS: u64 = 60_000;
/// A message that says nothing: whoever hears it does not know it.
const NO_EVENT: &str = "?";

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The store cannot be used.
    Error,
    /// It can, but it will not do what is expected of it.
    Warning,
}

/// What of the settings a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Which server it is.
    Server,
    /// Who the gateway is there.
    Login,
    /// What its user may do.
    Rights,
    /// What the keys begin with.
    Prefix,
    /// How long a look-up may take.
    ReadTime,
}

/// Something about the server that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What has to be set in another way, if it is not the server.
    pub about: About,
    /// What it is.
    pub cause: String,
    /// What to do about it.
    pub cure: String,
}

/// Connects, looks, and says what is not as it should be; nothing when all is well. Takes a few seconds at most.
pub async fn probe(options: &RedisOptions, clock: &dyn Clock) -> Vec<Finding> {
    let (pushes, _pushed) = mpsc::unbounded_channel();
    match link::connect(options, 0, pushes).await {
        Ok(wire) => look(wire, options, clock).await,
        Err(error) => {
            let cure = cure_of(&error)
                .unwrap_or("check `url`, and that the server is up and can be reached from here");
            let cause = format!("no connection to the server: {error}");
            vec![Finding { severity: Severity::Error, about: about(&error), cause, cure: cure.to_owned() }]
        }
    }
}

/// Looks through a connection of its own, and says in the log what is not as it should be.
pub(super) async fn tell(shared: Arc<Shared>) {
    let looked = tokio::select! {
        looked = probe(&shared.options, shared.clock.as_ref()) => looked,
        () = shared.closing.cancelled() => return,
    };
    for Finding { severity, cause, cure, .. } in looked {
        match severity {
            Severity::Error => tracing::error!(cause, cure, "the refusal store is not fit for use"),
            Severity::Warning => tracing::warn!(cause, cure, "the refusal store is not as it should be"),
        }
    }
}

/// Looks through a connection that there is.
pub(super) async fn look(wire: Wire, options: &RedisOptions, clock: &dyn Clock) -> Vec<Finding> {
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
    let mut probe = Probe {
        wire,
        options,
        clock,
        keys: Keys::new(&options.prefix, options.db),
        scratch: Scratch::new(&options.prefix, random),
        found: Vec::new(),
    };
    match tokio::time::timeout(WHOLE, probe.run()).await {
        Ok(Ok(())) => {}
        Ok(Err(Stop)) => {}
        Err(_) => {
            let cause = format!("the server took more than {} s to be looked at", WHOLE.as_secs());
            probe.find(
                Severity::Error,
                About::Server,
                cause,
                "see what keeps it busy (SLOWLOG, LATENCY DOCTOR)",
            );
        }
    }
    probe.found
}

/// There is no sense in going on; why was told.
struct Stop;

/// Keys of the probe alone, one of each type.
struct Scratch {
    text: String,
    number: String,
    hash: String,
    sorted: String,
    set: String,
    stream: String,
}

impl Scratch {
    fn new(prefix: &str, random: u64) -> Self {
        let name = |kind: &str| format!("{{{prefix}}}:probe:{random:016x}:{kind}");
        Self {
            text: name("s"),
            number: name("n"),
            hash: name("h"),
            sorted: name("z"),
            set: name("t"),
            stream: name("x"),
        }
    }

    fn all(&self) -> [&str; 6] {
        [&self.text, &self.number, &self.hash, &self.sorted, &self.set, &self.stream]
    }
}

struct Probe<'a> {
    wire: Wire,
    options: &'a RedisOptions,
    clock: &'a dyn Clock,
    keys: Keys,
    scratch: Scratch,
    found: Vec<Finding>,
}

/// What the user lacks.
#[derive(Default)]
struct Lacks {
    commands: Vec<&'static str>,
    /// Those that jobs alone need.
    of_jobs: Vec<&'static str>,
    unknown: Vec<&'static str>,
    keys: bool,
    channels: bool,
}

impl Probe<'_> {
    async fn run(&mut self) -> Result<(), Stop> {
        self.server().await?;
        self.layout().await?;
        self.rights().await?;
        self.clocks().await?;
        self.distance().await
    }

    fn find(&mut self, severity: Severity, about: About, cause: impl Into<String>, cure: impl Into<String>) {
        let finding = Finding { severity, about, cause: cause.into(), cure: cure.into() };
        if !self.found.contains(&finding) {
            self.found.push(finding);
        }
    }

    /// The answer to a command; a server that does not answer, or a connection that breaks, ends the probe.
    async fn ask(&mut self, command: Cmd) -> Result<RedisResult<Value>, Stop> {
        let home = self.keys.schema();
        let asked = ask_server_of(&mut self.wire, &home, command);
        let answer = tokio::time::timeout(STEP, asked).await;
        self.came(answer)
    }

    fn came<T>(
        &mut self,
        answer: Result<RedisResult<T>, tokio::time::error::Elapsed>,
    ) -> Result<RedisResult<T>, Stop> {
        match answer {
            Ok(Err(error)) if error.is_io_error() || error.is_connection_dropped() => {
                let cause = format!("the connection to the server was lost: {error}");
                self.find(Severity::Error, About::Server, cause, "see the log of the server");
                Err(Stop)
            }
            Ok(answer) => Ok(answer),
            Err(_) => {
                let cause = format!("the server did not answer within {} s", STEP.as_secs());
                self.find(
                    Severity::Error,
                    About::Server,
                    cause,
                    "see what keeps it busy (SLOWLOG, LATENCY DOCTOR)",
                );
                Err(Stop)
            }
        }
    }

    /// Version and eviction.
    async fn server(&mut self) -> Result<(), Stop> {
        let mut info = String::new();
        for section in ["server", "memory"] {
            let mut command = cmd("INFO");
            command.arg(section);
            match self.ask(command).await? {
                Ok(text) => info.push_str(&String::from_redis_value(text).unwrap_or_default()),
                Err(error) if lacks_right(&error) => {
                    let cause = "the server does not say its version and whether it evicts";
                    let cure = format!("as an administrator: ACL SETUSER {} +info", self.user());
                    self.find(Severity::Warning, About::Rights, cause, cure);
                    return Ok(());
                }
                Err(error) => {
                    self.refused(&error);
                    return Err(Stop);
                }
            }
        }
        let of =
            |key: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(key)?.strip_prefix(':'));
        if let Some(version) = of("redis_version").filter(|version| older(version, OLDEST)) {
            let cause = format!("the server is of version {version}");
            self.find(Severity::Error, About::Server, cause, "it takes Redis 6.2 or newer, or Valkey");
        }
        let policy = of("maxmemory_policy").unwrap_or("noeviction");
        if policy != "noeviction" && of("maxmemory").is_some_and(|bytes| bytes != "0") {
            let cause = format!(
                "the server evicts (maxmemory-policy {policy}): a refusal that it evicts is sent to the upstream again"
            );
            let cure = "give the gateways a server with maxmemory-policy noeviction; `max_entries` bounds what they keep";
            self.find(Severity::Warning, About::Server, cause, cure);
        }
        Ok(())
    }

    /// Whether what lies under the prefix is of this program and of this version.
    async fn layout(&mut self) -> Result<(), Stop> {
        let mut foreign = Vec::new();
        let keys = &self.keys;
        let shared = [
            ("GET", keys.schema()),
            ("GET", keys.epoch()),
            ("GET", keys.floor()),
            ("GET", keys.seq()),
            ("GET", keys.turn()),
            ("ZCARD", keys.index()),
            ("ZCARD", keys.expiry()),
            ("ZCARD", keys.strikes()),
            ("ZCARD", keys.wide()),
            ("ZCARD", keys.keyed()),
            ("SMEMBERS", keys.accepted()),
            ("HGETALL", keys.tripped()),
            ("HGETALL", keys.recovered()),
            ("ZCARD", keys.operations()),
            ("ZCARD", keys.minted()),
            ("ZCARD", keys.looks()),
            ("GET", keys.op_seq()),
            ("ZCARD", keys.jobs()),
            ("ZCARD", keys.ends()),
            ("ZCARD", keys.untold()),
            ("SMEMBERS", keys.job_upstreams()),
        ];
        let schema = keys.schema();
        for (name, key) in shared {
            let mut command = cmd(name);
            command.arg(&key);
            match self.ask(command).await? {
                Ok(layout) if key == schema => {
                    let layout: Option<String> = Option::from_redis_value(layout).unwrap_or_default();
                    if let Some(layout) = layout.filter(|layout| layout != LAYOUT) {
                        let cause = format!(
                            "the keys under the prefix `{}` have layout {}, this version knows {LAYOUT}",
                            self.options.prefix,
                            layout.chars().filter(char::is_ascii_graphic).take(20).collect::<String>()
                        );
                        self.find(
                            Severity::Error,
                            About::Prefix,
                            cause,
                            "give each version a `prefix` of its own",
                        );
                    }
                }
                Ok(_) => {}
                Err(error) if error.code() == Some("WRONGTYPE") => foreign.push(key),
                // what the user may not do is told by what follows
                Err(error) if lacks_right(&error) => {}
                Err(error) => self.refused(&error),
            }
        }
        if !foreign.is_empty() {
            let cause = format!("{} belong to another program", foreign.join(", "));
            self.find(Severity::Error, About::Prefix, cause, "give the gateways a `prefix` of their own");
        }
        Ok(())
    }

    /// Does once all that the store does.
    async fn rights(&mut self) -> Result<(), Stop> {
        let mut lacks = Lacks::default();
        for (name, command) in commands(&self.scratch, &self.keys.events()) {
            if let Err(error) = self.ask(command).await? {
                self.sort(name, &error, &mut lacks);
            }
        }
        let channel = self.keys.events();
        let subscribed = tokio::time::timeout(STEP, self.wire.subscribe(&channel)).await;
        if let Err(error) = self.came(subscribed)? {
            self.sort("SUBSCRIBE", &error, &mut lacks);
        }
        let (user, prefix) = (self.user().to_owned(), &self.options.prefix);
        let (keys, channels) = (format!("~{{{prefix}}}:*"), format!("&{{{prefix}}}:*"));
        if !lacks.unknown.is_empty() {
            let cause = format!("the server does not know {}", lacks.unknown.join(", "));
            self.find(
                Severity::Error,
                About::Server,
                cause,
                "it takes Redis 6.2 or newer, or Valkey, with all commands and Lua",
            );
        }
        let mut grant = Vec::new();
        if lacks.keys {
            grant.push(keys);
        }
        if lacks.channels {
            grant.push(channels);
        }
        let right = |name: &&str| format!("+{}", name.to_ascii_lowercase().replace(' ', "|"));
        grant.extend(lacks.commands.iter().map(right));
        if !grant.is_empty() {
            let mut not = Vec::new();
            if !lacks.commands.is_empty() {
                not.push(format!("run {}", lacks.commands.join(", ")));
            }
            if lacks.keys {
                not.push("use the keys under the prefix".to_owned());
            }
            if lacks.channels {
                not.push("use the channel under the prefix".to_owned());
            }
            let cause = format!("the user {user} may not {}", not.join(", nor "));
            self.find(
                Severity::Error,
                About::Rights,
                cause,
                format!("as an administrator: ACL SETUSER {user} {}", grant.join(" ")),
            );
        }
        if !lacks.of_jobs.is_empty() {
            let cause =
                format!("the user {user} may not run {}: no jobs are taken in", lacks.of_jobs.join(", "));
            let grant: Vec<_> = lacks.of_jobs.iter().map(right).collect();
            let cure =
                format!("where jobs are used, as an administrator: ACL SETUSER {user} {}", grant.join(" "));
            self.find(Severity::Warning, About::Rights, cause, cure);
        }
        Ok(())
    }

    fn sort(&mut self, name: &'static str, error: &RedisError, lacks: &mut Lacks) {
        let text = error.to_string().to_ascii_lowercase();
        let put = |names: &mut Vec<&'static str>| {
            if !names.contains(&name) {
                names.push(name);
            }
        };
        if lacks_right(error) {
            // the name of the user stands in some of the texts, so it is looked for whole phrases
            if text.contains("access a key") || text.contains("one of the keys") {
                lacks.keys = true;
            } else if text.contains("access a channel") || text.contains("one of the channels") {
                lacks.channels = true;
            } else if is_of_streams(name) {
                put(&mut lacks.of_jobs);
            } else {
                put(&mut lacks.commands);
            }
        } else if text.contains("unknown command") || text.contains("unknown subcommand") {
            put(&mut lacks.unknown);
        } else if error.kind() != ErrorKind::Server(ServerErrorKind::NoScript)
            && error.code() != Some("NOGROUP")
        {
            // a script that could not be loaded cannot be called either, nor is there a group that could not be made
            self.refused(error);
        }
    }

    /// What the server says to a command that it should take.
    fn refused(&mut self, error: &RedisError) {
        let cure = cure_of(error).unwrap_or("see the log of the server");
        self.find(Severity::Error, about(error), format!("the server refuses to work: {error}"), cure);
    }

    async fn clocks(&mut self) -> Result<(), Stop> {
        let before = self.clock.now();
        // without the right to ask, which was told
        let Ok(time) = self.ask(cmd("TIME")).await? else { return Ok(()) };
        let after = self.clock.now();
        let Ok((seconds, micros)) = <(i64, i64)>::from_redis_value(time) else { return Ok(()) };
        let there = seconds.saturating_mul(1000).saturating_add(micros / 1000);
        let half = (after.0.saturating_sub(before.0) / 2).max(0);
        let ahead = there.saturating_sub(before.0.saturating_add(half));
        if ahead.saturating_abs() > SKEW_MS.saturating_add(half) {
            let how = if ahead > 0 { "behind" } else { "ahead of" };
            let cause = format!(
                "the clock of this machine is {}.{} s {how} the server's",
                ahead.saturating_abs() / 1000,
                ahead.saturating_abs() % 1000 / 100
            );
            let cure = "set both by NTP: how long an entry lives goes by the clocks of the gateways";
            self.find(Severity::Warning, About::Server, cause, cure);
        }
        Ok(())
    }

    async fn distance(&mut self) -> Result<(), Stop> {
        let mut took = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let began = Instant::now();
            // the time alone is of interest, but for a server that is busy with itself: that was told
            if let Err(error) = self.ask(cmd("PING")).await?
                && matches!(error.code(), Some("LOADING" | "BUSY"))
            {
                return Ok(());
            }
            took.push(began.elapsed());
        }
        took.sort_unstable();
        let median = took.get(PINGS / 2).copied().unwrap_or_default();
        if median > self.options.read / 2 {
            let cause = format!(
                "an answer of the server takes {:.1} ms as a rule, more than half of `read_ms`",
                median.as_secs_f64() * 1000.0
            );
            let cure = "bring the server nearer or raise `read_ms`: a look-up that takes longer is none, and the document goes up";
            self.find(Severity::Warning, About::ReadTime, cause, cure);
        }
        Ok(())
    }

    fn user(&self) -> &str {
        self.options.username.as_deref().unwrap_or("default")
    }
}

/// What the server answers that has this key. In a cluster most of these commands could go to any.
async fn ask_server_of(wire: &mut Wire, key: &str, command: Cmd) -> RedisResult<Value> {
    match wire {
        Wire::One(wire) => command.query_async(wire).await,
        Wire::Many(wire) => {
            let route = Route::with_key(key, SlotAddr::Master);
            let to = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
            wire.route_command(command, to).await
        }
    }
}

/// Whether a command is one of streams, which hold jobs and nothing else.
fn is_of_streams(name: &str) -> bool {
    name.starts_with('X')
}

/// Whether a version such as `7.0.15` is older; one that cannot be read is not.
fn older(version: &str, than: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < than,
        _ => false,
    }
}

/// One of each command that the store sends, in scripts or outside of them, by the name that an ACL has for it.
fn commands(scratch: &Scratch, channel: &str) -> Vec<(&'static str, Cmd)> {
    const BODY: &str = "return KEYS[1]";
    let script = Script::new(BODY);
    let Scratch { text, number, hash, sorted, set, stream } = scratch;
    let mut list = Vec::new();
    let mut add = |name: &'static str, args: &[&str]| {
        let mut words = name.split(' ');
        let mut command = cmd(words.next().unwrap_or_default());
        for arg in words.chain(args.iter().copied()) {
            command.arg(arg);
        }
        list.push((name, command));
    };
    let left = LEFT_MS.to_string();
    add("PING", &[]);
    add("TIME", &[]);
    add("SET", &[text, "v", "PX", &left]);
    add("GET", &[text]);
    add("INCR", &[number]);
    add("HSET", &[hash, "f", "v", "n", "1"]);
    add("ZADD", &[sorted, "1", "a"]);
    add("SADD", &[set, "a"]);
    for key in [number, hash, sorted, set] {
        add("PEXPIRE", &[key, &left]);
    }
    add("PTTL", &[hash]);
    add("HGET", &[hash, "f"]);
    add("HMGET", &[hash, "f", "n"]);
    add("HGETALL", &[hash]);
    add("HSTRLEN", &[hash, "f"]);
    add("HINCRBY", &[hash, "n", "1"]);
    add("HDEL", &[hash, "f"]);
    add("ZCARD", &[sorted]);
    add("ZCOUNT", &[sorted, "-inf", "+inf"]);
    add("ZSCORE", &[sorted, "a"]);
    add("ZRANGE", &[sorted, "0", "-1"]);
    add("ZRANGEBYSCORE", &[sorted, "-inf", "+inf"]);
    add("ZREM", &[sorted, "b"]);
    add("ZPOPMIN", &[sorted]);
    add("SMEMBERS", &[set]);
    add("XADD", &[stream, "1-1", "f", "v"]);
    add("XGROUP CREATE", &[stream, "g", "0", "MKSTREAM"]);
    add("PEXPIRE", &[stream, &left]);
    add("XREADGROUP", &["GROUP", "g", "c", "COUNT", "1", "STREAMS", stream, ">"]);
    add("XPENDING", &[stream, "g"]);
    add("XCLAIM", &[stream, "g", "c", "0", "1-1", "JUSTID"]);
    add("XACK", &[stream, "g", "1-1"]);
    add("XDEL", &[stream, "1-1"]);
    add("XLEN", &[stream]);
    add("SCRIPT LOAD", &[BODY]);
    add("EVALSHA", &[script.get_hash(), "1", text]);
    add("PUBLISH", &[channel, NO_EVENT]);
    add("DEL", &scratch.all());
    list
}

#[cfg(test)]
mod tests {
    use super::super::event::Event;
    use super::super::scripts::Scripts;
    use super::*;

    #[test]
    fn every_command_of_every_script_is_tried() {
        let tried: Vec<_> = commands(&Scratch::new("p", 1), "c").into_iter().map(|(name, _)| name).collect();
        let texts = Scripts::texts();
        assert!(texts.len() >= 10);
        for text in texts {
            for call in text.split("redis.call('").chain(text.split("redis.pcall('")).skip(1) {
                let name = call.split('\'').next().unwrap_or_default();
                let is_name = name.bytes().all(|b| b.is_ascii_uppercase());
                let is_tried = tried.iter().any(|tried| tried.split(' ').next() == Some(name));
                assert!(!is_name || name.is_empty() || is_tried, "{name} is not tried");
            }
        }
    }

    #[test]
    fn its_message_says_nothing_and_its_keys_are_under_the_prefix() {
        assert!(Event::decode(NO_EVENT.as_bytes()).is_none());
        let scratch = Scratch::new("nevertwice", 7);
        assert!(scratch.all().iter().all(|key| key.starts_with("{nevertwice}:probe:")));
    }

    #[test]
    fn versions_are_compared_by_number() {
        for (version, old) in [
            ("6.0.20", true),
            ("5.0.7", true),
            ("6.2.0", false),
            ("7.0.15", false),
            ("10.1", false),
            ("x", false),
        ] {
            assert_eq!(older(version, OLDEST), old, "{version}");
        }
    }
}
