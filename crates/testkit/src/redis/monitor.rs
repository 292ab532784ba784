//! What a server is asked, in the order in which it is done.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Redis;

/// How long a command may take to be shown.
const PATIENCE: Duration = Duration::from_secs(20);

/// The commands that a server runs from now on, as its `MONITOR` shows them: those of scripts too, and each line with the time, the
/// database and the address it came from. For a server without TLS, and a test that asks some thousands of times at most.
pub struct Monitor {
    stream: TcpStream,
    lines: Arc<Mutex<Vec<String>>>,
    /// How often it was asked what there is.
    asked: AtomicU64,
    reading: Option<JoinHandle<()>>,
}

impl Redis {
    /// Shows what it is asked from now on.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        let begun = TcpStream::connect(self.addr()).and_then(|mut stream| {
            stream.write_all(b"MONITOR\r\n")?;
            let mut from = BufReader::new(stream.try_clone()?);
            let mut said = String::new();
            from.read_line(&mut said)?;
            if said.trim_end() == "+OK" { Ok((stream, from)) } else { Err(std::io::Error::other(said)) }
        });
        let (stream, mut from) = begun.unwrap_or_else(|error| panic!("redis: MONITOR: {error}"));
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let into = Arc::clone(&lines);
        let reading = thread::spawn(move || {
            let mut line = Vec::new();
            while from.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let shown = String::from_utf8_lossy(&line).trim_end().to_owned();
                into.lock().unwrap_or_else(PoisonError::into_inner).push(shown);
                line.clear();
            }
        });
        Monitor { stream, lines, asked: AtomicU64::new(0), reading: Some(reading) }
    }
}

impl Monitor {
    /// What was run until now.
    ///
    /// # Panics
    /// When the server shows nothing any more.
    #[must_use]
    pub fn lines(&self, redis: &Redis) -> Vec<String> {
        let mark = format!("monitored until {}.", self.asked.fetch_add(1, Ordering::Relaxed));
        redis.ask(&["echo", &mark]);
        let began = Instant::now();
        loop {
            let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(end) = lines.iter().rposition(|line| line.contains(&mark)) {
                return lines[..end].to_vec();
            }
            drop(lines);
            assert!(began.elapsed() < PATIENCE, "redis: MONITOR shows nothing");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // both fail only when the server has ended, and the reading with it
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
    }
}
