//! The audit: one JSON line per request, written by a thread of its own. Traffic never waits for it.
//!
//! Lines are formatted where the request ends and appended to a bounded buffer; the thread takes the buffer a few times a
//! second, or at once when it fills. A sink that fails is tried again and again with the lines that are still to be
//! written; when the buffer is full, further lines are dropped and counted. A file gets a line whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nevertwice_config::checked::{Audit as AuditConfig, AuditSink, OnFull};
use nevertwice_domain::audit::AuditEvent;
use tokio::sync::watch;

use crate::lock::Lock;
use crate::metrics::Metrics;

/// The most bytes that wait for the writer.
const BUFFER_BYTES: usize = 8 << 20;
/// The writer is woken early at this fill.
const WAKE_BYTES: usize = 256 << 10;
/// How often the writer looks.
const INTERVAL: Duration = Duration::from_millis(50);
/// How often the writer checks that its file is still the one at its path.
const REOPEN_CHECK: Duration = Duration::from_secs(2);

/// The audit's writing end.
pub(crate) struct Audit {
    shared: Arc<Shared>,
    writer: Lock<Option<JoinHandle<()>>>,
}

struct Shared {
    buffer: Mutex<Buffer>,
    wake: Condvar,
    failing: AtomicBool,
    reopen: AtomicBool,
    refuse: bool,
    /// Lines that got out so far.
    written: watch::Sender<u64>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Lines that were handed over so far.
    taken: u64,
    closed: bool,
}

impl Audit {
    /// Opens the sink and starts the writer.
    ///
    /// # Errors
    /// When the file cannot be opened: better known at start than at the first request.
    pub(crate) fn start(config: &AuditConfig, metrics: Arc<Metrics>) -> io::Result<Self> {
        let mut sink = match &config.sink {
            AuditSink::Stdout => Sink::Stdout,
            AuditSink::File(path) => Sink::File(LogFile::open(path, config)?),
        };
        let shared = Arc::new(Shared {
            buffer: Mutex::default(),
            wake: Condvar::new(),
            failing: AtomicBool::new(false),
            reopen: AtomicBool::new(false),
            refuse: config.on_full == OnFull::Refuse,
            written: watch::Sender::new(0),
            metrics,
        });
        let for_writer = Arc::clone(&shared);
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || for_writer.write_until_closed(&mut sink))?;
        Ok(Self { shared, writer: Lock::new(Some(writer)) })
    }

    /// Hands a line over. Never waits for I/O.
    pub(crate) fn emit(&self, event: &AuditEvent) {
        let mut buffer = self.shared.hold();
        if buffer.bytes.len() >= BUFFER_BYTES || buffer.closed {
            drop(buffer);
            // the sink hangs: it does not even fail
            self.shared.failing.store(true, Ordering::Relaxed);
            self.shared.metrics.audit_dropped.inc();
            return;
        }
        let before = buffer.bytes.len();
        event.write_line(&mut buffer.bytes);
        buffer.taken += 1;
        let after = buffer.bytes.len();
        drop(buffer);
        if before < WAKE_BYTES && after >= WAKE_BYTES {
            self.shared.wake.notify_one();
        }
    }

    /// Waits until every line that was handed over has got out, `within` at most.
    pub(crate) async fn flush(&self, within: Duration) {
        let taken = self.shared.hold().taken;
        let mut written = self.shared.written.subscribe();
        self.shared.wake.notify_one();
        // what cannot be written is counted and tried again by the writer
        let _ = tokio::time::timeout(within, written.wait_for(|written| *written >= taken)).await;
    }

    /// Whether requests must be refused now because lines cannot be written (`on_full: refuse`).
    pub(crate) fn must_refuse(&self) -> bool {
        self.shared.refuse && self.shared.failing.load(Ordering::Relaxed)
    }

    /// Opens the file again, as after an outside rotation.
    pub(crate) fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Relaxed);
        self.shared.wake.notify_one();
    }

    /// Writes what is left and ends the writer. Waits at most as long as one write takes.
    pub(crate) fn close(&self) {
        self.shared.hold().closed = true;
        self.shared.wake.notify_one();
        if let Some(writer) = self.writer.hold().take() {
            let _ = writer.join();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn hold(&self) -> std::sync::MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_until_closed(&self, sink: &mut Sink) {
        // what is being written; after a failure, what still has to be
        let mut pending = Vec::new();
        let mut reported = false;
        loop {
            let closed = {
                let mut buffer = self.hold();
                if !buffer.closed && (buffer.bytes.len() < WAKE_BYTES || !pending.is_empty()) {
                    buffer =
                        self.wake.wait_timeout(buffer, INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
                }
                if pending.is_empty() {
                    std::mem::swap(&mut pending, &mut buffer.bytes);
                }
                buffer.closed
            };
            let asked = self.reopen.swap(false, Ordering::Relaxed);
            let (written, failure) = sink.write(&pending, asked);
            let lines = count_lines(&pending[..written]);
            self.metrics.audit_written.inc_by(lines);
            if lines > 0 {
                self.written.send_modify(|written| *written += lines);
            }
            pending.drain(..written);
            match failure {
                None => {
                    self.failing.store(false, Ordering::Relaxed);
                    if std::mem::take(&mut reported) {
                        tracing::info!("audit lines are written again");
                    }
                    pending.shrink_to(2 * WAKE_BYTES);
                }
                Some(error) => {
                    self.metrics.audit_errors.inc();
                    self.failing.store(true, Ordering::Relaxed);
                    if !std::mem::replace(&mut reported, true) {
                        tracing::error!(
                            %error,
                            requests_refused = self.refuse,
                            "audit lines cannot be written, they are kept as long as there is room"
                        );
                    }
                }
            }
            let rest = self.hold().bytes.len();
            if closed && (reported || (pending.is_empty() && rest == 0)) {
                let mut buffer = self.hold();
                let lost = count_lines(&pending) + count_lines(&std::mem::take(&mut buffer.bytes));
                self.metrics.audit_dropped.inc_by(lost);
                if lost > 0 {
                    tracing::error!(
                        lines = lost,
                        "audit lines are lost: they could not be written before the end"
                    );
                }
                return;
            }
        }
    }
}

enum Sink {
    Stdout,
    File(LogFile),
}

impl Sink {
    /// Writes whole lines, and says how many bytes of them got out.
    fn write(&mut self, lines: &[u8], reopen: bool) -> (usize, Option<io::Error>) {
        match self {
            Self::Stdout => {
                match append(&mut io::stdout().lock(), lines) {
                    Ok(()) => (lines.len(), None),
                    // what follows completes the line that was cut
                    Err((error, written)) => (written, Some(error)),
                }
            }
            Self::File(file) => file.write(lines, reopen),
        }
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// The audit file, which may be renamed, deleted or rotated under the writer's hands.
struct LogFile {
    path: PathBuf,
    file: Option<File>,
    /// Bytes in the file.
    length: u64,
    /// The length at which it is rotated.
    limit: u64,
    rotate_bytes: Option<u64>,
    keep: u32,
    checked_at: Instant,
}

impl LogFile {
    fn open(path: &Path, config: &AuditConfig) -> io::Result<Self> {
        let (file, length) = open_append(path)?;
        Ok(Self {
            path: path.to_owned(),
            file: Some(file),
            length,
            limit: config.rotate_bytes.unwrap_or(u64::MAX),
            rotate_bytes: config.rotate_bytes,
            keep: config.keep,
            checked_at: Instant::now(),
        })
    }

    fn write(&mut self, lines: &[u8], reopen: bool) -> (usize, Option<io::Error>) {
        if reopen || self.file.is_none() || self.moved_away() {
            self.file = None;
            if let Err(error) = self.reopen() {
                return (0, Some(error));
            }
        }
        if let (false, Some(file)) = (lines.is_empty(), &self.file) {
            // an operator may have cut the file to make room
            match file.metadata() {
                Ok(found) => self.length = found.len(),
                Err(error) => return (0, Some(error)),
            }
        }
        let mut at = 0;
        while at < lines.len() {
            match self.write_batch(&lines[at..]) {
                Ok(written) => at += written,
                Err((error, written)) => return (at + written, Some(error)),
            }
        }
        (at, None)
    }

    /// Writes as many whole lines as fit into this file, rotating first when none does. On failure says how many bytes of
    /// whole lines got out.
    fn write_batch(&mut self, lines: &[u8]) -> Result<usize, (io::Error, usize)> {
        let fits = self.limit.saturating_sub(self.length);
        let mut end = lines.len();
        if end as u64 > fits {
            let within = &lines[..usize::try_from(fits).unwrap_or(end)];
            end = memchr::memrchr(b'\n', within).map_or(0, |i| i + 1);
            if end == 0 && self.length > 0 {
                if let Err(error) = self.rotate() {
                    // it cannot be moved: the lines matter more, and it is tried again after as many bytes
                    tracing::error!(%error, path = %self.path.display(), "the audit file cannot be rotated");
                    self.limit = self.length.saturating_add(self.rotate_bytes.unwrap_or(u64::MAX));
                }
                return Ok(0);
            }
            if end == 0 {
                // longer than a whole file may be: it gets one of its own
                end = memchr::memchr(b'\n', lines).map_or(lines.len(), |i| i + 1);
            }
        }
        let Some(file) = self.file.as_mut() else { return Err((io::Error::other("not open"), 0)) };
        match append(file, &lines[..end]) {
            Ok(()) => {
                self.length += end as u64;
                Ok(end)
            }
            Err((error, written)) => {
                // a half line must not be joined with the next one
                let whole = memchr::memrchr(b'\n', &lines[..written]).map_or(0, |i| i + 1);
                if file.set_len(self.length + whole as u64).is_err() {
                    self.file = None;
                }
                self.length += whole as u64;
                Err((error, whole))
            }
        }
    }

    /// Looks, every other second, whether the path still names the open file.
    fn moved_away(&mut self) -> bool {
        if self.checked_at.elapsed() < REOPEN_CHECK {
            return false;
        }
        self.checked_at = Instant::now();
        use std::os::unix::fs::MetadataExt;
        let id = |m: std::fs::Metadata| (m.dev(), m.ino());
        let open = self.file.as_ref().and_then(|f| f.metadata().ok()).map(id);
        let named = std::fs::metadata(&self.path).ok().map(id);
        open != named
    }

    fn reopen(&mut self) -> io::Result<()> {
        let (file, length) = open_append(&self.path)?;
        self.file = Some(file);
        self.length = length;
        self.limit = self.rotate_bytes.unwrap_or(u64::MAX);
        Ok(())
    }

    /// `audit.jsonl` becomes `audit.jsonl.1`, that becomes `.2`, and so on up to `keep`.
    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |n: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        };
        for n in (1..self.keep).rev() {
            match std::fs::rename(numbered(n), numbered(n + 1)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        if self.keep == 0 {
            std::fs::remove_file(&self.path)?;
        } else {
            std::fs::rename(&self.path, numbered(1))?;
        }
        self.reopen()
    }
}

fn append(sink: &mut impl Write, mut bytes: &[u8]) -> Result<(), (io::Error, usize)> {
    let total = bytes.len();
    while !bytes.is_empty() {
        match sink.write(bytes) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), total - bytes.len())),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err((e, total - bytes.len())),
        }
    }
    Ok(())
}

/// Opens for appending, mode 0600. A last line without its end, left by a crash, is closed first.
fn open_append(path: &Path) -> io::Result<(File, u64)> {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let mut file = OpenOptions::new().append(true).create(true).read(true).mode(0o600).open(path)?;
    let mut length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 && file.read_exact_at(&mut last, length - 1).is_ok() && last != *b"\n" {
        file.write_all(b"\n")?;
        length += 1;
    }
    Ok((file, length))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that breaks should stop")]
mod tests {
    use super::*;

    fn config(rotate_bytes: Option<u64>) -> AuditConfig {
        AuditConfig { sink: AuditSink::Stdout, on_full: OnFull::Drop, rotate_bytes, keep: 2 }
    }

    fn write(file: &mut LogFile, lines: &[u8], reopen: bool) {
        let (written, failure) = file.write(lines, reopen);
        assert!(failure.is_none() && written == lines.len());
    }

    fn read(dir: &Path, name: &str) -> String {
        std::fs::read_to_string(dir.join(name)).unwrap_or_default()
    }

    #[test]
    fn rotation_keeps_lines_whole_and_files_few() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = LogFile::open(&dir.path().join("a"), &config(Some(10))).unwrap();
        for n in 0..4 {
            write(&mut file, format!("line{n}a\nline{n}b\n").as_bytes(), false);
        }
        assert_eq!(read(dir.path(), "a"), "line3b\n");
        assert_eq!(read(dir.path(), "a.1"), "line3a\n");
        assert_eq!(read(dir.path(), "a.2"), "line2b\n");
        assert!(!dir.path().join("a.3").exists());
        write(&mut file, b"a line that is longer than the limit\nx\n", false);
        assert_eq!(read(dir.path(), "a.1"), "a line that is longer than the limit\n");
    }

    #[test]
    fn a_renamed_file_is_left_and_a_new_one_begun_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = LogFile::open(&path, &config(None)).unwrap();
        write(&mut file, b"one\n", false);
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        write(&mut file, b"two\n", true);
        assert_eq!((read(dir.path(), "old"), read(dir.path(), "a")), ("one\n".into(), "two\n".into()));
    }

    #[test]
    fn a_torn_last_line_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "{\"half").unwrap();
        let mut file = LogFile::open(&path, &config(None)).unwrap();
        write(&mut file, b"{}\n", false);
        assert_eq!(read(dir.path(), "a"), "{\"half\n{}\n");
    }
}
