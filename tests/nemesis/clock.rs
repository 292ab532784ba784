//! Clocks that can be stepped: each process has its own, by a library that is preloaded into it. The programs under test know
//! nothing of it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, compiled for this run.
pub struct Clocks {
    dir: tempfile::TempDir,
    library: PathBuf,
}

/// The wall clock of one process, over all its starts.
pub struct Clock {
    file: PathBuf,
    library: PathBuf,
}

impl Clocks {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("nemesis/clock.c");
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).output();
        let compiled = compiled.unwrap_or_else(|error| panic!("cc: {error}"));
        assert!(compiled.status.success(), "{compiled:?}");
        Self { dir, library }
    }

    pub fn clock(&self, name: &str) -> Clock {
        let clock = Clock { file: self.dir.path().join(name), library: self.library.clone() };
        clock.step(0);
        clock
    }
}

impl Clock {
    /// What a process is started with to go by it.
    pub fn env(&self) -> [(&'static str, String); 2] {
        let path = |path: &Path| path.display().to_string();
        [("LD_PRELOAD", path(&self.library)), ("NEMESIS_CLOCK", path(&self.file))]
    }

    /// From now on it is wrong by so much. The file is written in place: the process has it mapped.
    pub fn step(&self, seconds: i64) {
        use std::os::unix::fs::FileExt;
        let file =
            std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&self.file).unwrap();
        file.write_all_at(&(seconds * 1_000_000).to_ne_bytes(), 0).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use nevertwice_testkit::{Redis, Upstream};

    use super::*;
    use crate::fleet::gateway;

    #[tokio::test]
    async fn both_programs_go_by_their_own_clocks() {
        let clocks = Clocks::new();
        let (of_redis, of_gateway) = (clocks.clock("redis"), clocks.clock("gateway"));
        let (redis, upstream) = (Redis::with_env(&["--save", ""], &of_redis.env()), Upstream::start().await);
        let time = || redis.ask(&["time"]).lines().next().and_then(|s| s.parse::<i64>().ok()).unwrap();
        let before = time();
        of_redis.step(-1000);
        assert!((-1000..-900).contains(&(time() - before)));

        let gateway = gateway(&upstream, &redis.url(), &of_gateway).await;
        let day = async |n: usize| {
            nevertwice_testkit::get(gateway.addr, "/nowhere").await;
            gateway.wait_audit(n).await[n - 1]["ts"].as_str().unwrap()[..10].to_owned()
        };
        let today = day(1).await;
        of_gateway.step(10 * 86_400);
        let later = day(2).await;
        assert!(later > today, "{today}, {later}");
        of_gateway.step(0);
        assert!(day(3).await < later);
    }
}
