//! A Redis server of a test's own: on a free port, with its data in a folder that goes with it.

use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

mod monitor;
mod slots;

pub use monitor::Monitor;
pub use slots::SlotMove;

/// How long a server may take to start.
const START: Duration = Duration::from_secs(20);

/// How long a command may take; its answer is short enough for a pipe.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server.
pub struct Redis {
    process: Option<Child>,
    addr: SocketAddr,
    dir: tempfile::TempDir,
    /// A configuration file, if it has one.
    first: Vec<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// How redis-cli comes in.
    cli: Vec<String>,
}

/// What a server shows, and whom it trusts: files in PEM.
#[derive(Clone, Copy, Debug)]
pub struct TlsFiles<'a> {
    /// Its certificate.
    pub certificate: &'a str,
    /// The key of that.
    pub key: &'a str,
    /// Who signs the certificates of clients.
    pub authority: &'a str,
}

impl Redis {
    /// A server with nothing in it, that writes nothing to disk.
    ///
    /// # Panics
    /// When it cannot be started: `redis-server` must be installed.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&["--save", "", "--appendonly", "no"])
    }

    /// A server with these arguments beside its port and folder.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn with(args: &[&str]) -> Self {
        Self::with_env(args, &[])
    }

    /// As [`Redis::with`], with these variables in its environment.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn with_env(args: &[&str], env: &[(&str, String)]) -> Self {
        let (mut server, mut attempts) = (Self::stopped(), 0);
        server.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        server.env = env.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        // another test may have taken the port in the same moment
        while let Err(error) = server.try_restart() {
            attempts += 1;
            assert!(attempts < 5, "redis: {error}");
            server.addr = free_address();
        }
        server
    }

    /// A sentinel that watches `primary` under this name, alone: one vote is enough. It takes it for dead when it says nothing for
    /// `down_after_ms`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn sentinel(name: &str, primary: SocketAddr, down_after_ms: u32) -> Self {
        let mut server = Self::watching(name, primary, down_after_ms);
        server.restart();
        server
    }

    /// As [`Redis::sentinel`], with TLS to everybody.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn sentinel_with_tls(
        name: &str,
        primary: SocketAddr,
        down_after_ms: u32,
        files: TlsFiles<'_>,
    ) -> Self {
        let mut server = Self::watching(name, primary, down_after_ms);
        server.speak_tls(files);
        server.restart();
        server
    }

    fn watching(name: &str, primary: SocketAddr, down_after_ms: u32) -> Self {
        let mut server = Self::stopped();
        let file = server.dir.path().join("sentinel.conf");
        let lines = format!(
            "sentinel monitor {name} {} {} 1\nsentinel down-after-milliseconds {name} {down_after_ms}\n\
             sentinel failover-timeout {name} 3000\n",
            primary.ip(),
            primary.port()
        );
        std::fs::write(&file, lines).unwrap_or_else(|error| panic!("redis: {}: {error}", file.display()));
        server.first = vec![file.to_string_lossy().into_owned()];
        server.args = vec!["--sentinel".to_owned()];
        server
    }

    /// A server that speaks TLS alone, to replicas too, and asks for a certificate. `None` when it was built without.
    #[must_use]
    pub fn with_tls(files: TlsFiles<'_>, args: &[&str]) -> Option<Self> {
        let mut server = Self::stopped();
        server.args = [&["--save", ""], args].concat().iter().map(|arg| (*arg).to_owned()).collect();
        server.speak_tls(files);
        server.try_restart().is_ok().then_some(server)
    }

    fn speak_tls(&mut self, files: TlsFiles<'_>) {
        let port = self.addr.port().to_string();
        let TlsFiles { certificate, key, authority } = files;
        let words = [
            ["--tls-port", &port],
            ["--port", "0"],
            ["--tls-replication", "yes"],
            ["--tls-cert-file", certificate],
            ["--tls-key-file", key],
            ["--tls-ca-cert-file", authority],
        ];
        self.args.extend(words.as_flattened().iter().map(|word| (*word).to_owned()));
        let cli = ["--tls", "--cert", certificate, "--key", key, "--cacert", authority];
        self.cli = cli.iter().map(|word| (*word).to_owned()).collect();
    }

    fn stopped() -> Self {
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("redis: no folder: {error}"));
        Self {
            process: None,
            addr: free_address(),
            dir,
            first: Vec::new(),
            args: Vec::new(),
            cli: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Sets this in the running server, and whenever it starts again: for what has to name its address.
    ///
    /// # Panics
    /// When the server does not take it.
    pub fn configure(&mut self, name: &str, value: &str) {
        self.ask(&["config", "set", name, value]);
        self.args.extend([format!("--{name}"), value.to_owned()]);
    }

    /// Its address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its address as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// What redis-cli needs to come in, beside the address.
    #[must_use]
    pub fn cli(&self) -> &[String] {
        &self.cli
    }

    /// Ends it at once, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // both fail only for a process that has ended and was waited for
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Its folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts it (again) at the same address, with what it has on disk.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn restart(&mut self) {
        self.try_restart().unwrap_or_else(|error| panic!("redis: {error}"));
    }

    fn try_restart(&mut self) -> Result<(), String> {
        self.kill();
        let process = Command::new("redis-server")
            .args(&self.first)
            .args(["--port", &self.addr.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--dir", &self.dir.path().to_string_lossy()])
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start redis-server, is it installed? {error}"))?;
        let process = self.process.insert(process);
        let began = Instant::now();
        while TcpStream::connect_timeout(&self.addr, Duration::from_secs(1)).is_err() {
            if let Ok(Some(status)) = process.try_wait() {
                return Err(format!("it ended: {status}"));
            }
            if began.elapsed() > START {
                return Err(format!("it did not come up at {}", self.addr));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Stops it in its tracks: connections stay open and nothing is answered.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let pid = self.process.as_ref().map_or(0, Child::id);
        let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
        assert!(sent.as_ref().is_ok_and(std::process::ExitStatus::success), "redis: {name}: {sent:?}");
    }

    /// What the server answers to a command.
    ///
    /// # Panics
    /// When it does not.
    pub fn ask(&self, command: &[&str]) -> String {
        self.try_ask(command).unwrap_or_else(|answer| panic!("redis: {command:?}: {answer}"))
    }

    /// As [`Redis::ask`], also while it may fail: what it says then.
    ///
    /// # Errors
    /// When the server does not answer, or with an error.
    ///
    /// # Panics
    /// When there is no redis-cli.
    pub fn try_ask(&self, command: &[&str]) -> Result<String, String> {
        let port = self.addr.port().to_string();
        let mut cli = Command::new("redis-cli");
        cli.args(["-e", "-p", &port]).args(&self.cli).args(command).stdin(Stdio::null());
        let asked = cli.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut asked = asked.unwrap_or_else(|error| panic!("redis: cannot run redis-cli: {error}"));
        let began = Instant::now();
        // one that stands still does not answer
        while asked.try_wait().is_ok_and(|status| status.is_none()) {
            if began.elapsed() > PATIENCE {
                let _ = asked.kill();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let answer = asked.wait_with_output().unwrap_or_else(|error| panic!("redis: redis-cli: {error}"));
        let said = String::from_utf8_lossy(&answer.stdout).trim_end().to_owned();
        if answer.status.success() { Ok(said) } else { Err(said + &String::from_utf8_lossy(&answer.stderr)) }
    }

    /// What the server answers to a command whose words are any bytes: the bytes of the answer, or of the items of a list.
    ///
    /// # Panics
    /// When it does not answer, or with an error.
    pub fn ask_bytes(&self, command: &[&[u8]]) -> Vec<Vec<u8>> {
        let answer = TcpStream::connect(self.addr).and_then(|stream| {
            let mut stream = std::io::BufReader::new(stream);
            let mut out = format!("*{}\r\n", command.len()).into_bytes();
            for word in command {
                out.extend(format!("${}\r\n", word.len()).bytes());
                out.extend_from_slice(word);
                out.extend(b"\r\n");
            }
            stream.get_mut().write_all(&out)?;
            let mut items = Vec::new();
            read_answer(&mut stream, &mut items)?;
            Ok(items)
        });
        answer.unwrap_or_else(|error| {
            panic!("redis: {:?}: {error}", String::from_utf8_lossy(&command.concat()))
        })
    }

    /// How many commands of this name it has run, in scripts too.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.ask(&["info", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads one answer (RESP2); a list goes item by item.
fn read_answer(stream: &mut impl BufRead, items: &mut Vec<Vec<u8>>) -> std::io::Result<()> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let rest = line.get(1..).unwrap_or_default().trim_end();
    match line.as_bytes().first() {
        Some(b'+' | b':') => items.push(rest.as_bytes().to_vec()),
        Some(b'$') => {
            if let Ok(length) = rest.parse::<usize>() {
                let mut item = vec![0; length + 2];
                stream.read_exact(&mut item)?;
                item.truncate(length);
                items.push(item);
            }
        }
        Some(b'*') => {
            for _ in 0..rest.parse().unwrap_or(0) {
                read_answer(stream, items)?;
            }
        }
        _ => return Err(std::io::Error::other(line)),
    }
    Ok(())
}

/// An address that nobody listens on now, and below the range from which the system takes ports.
fn free_address() -> SocketAddr {
    use std::hash::BuildHasher;
    let start = std::collections::hash_map::RandomState::new().hash_one(std::process::id());
    (0..1000)
        .map(|step| 10_000 + u16::try_from(start.wrapping_add(step * 11) % 8_000).unwrap_or_default())
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .find(|addr| TcpListener::bind(addr).is_ok())
        .unwrap_or_else(|| panic!("redis: no free port"))
}
