//! The part of a body that did not fit into memory: a temporary file without a name, so that nothing is left behind
//! whatever happens to the process.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;

/// How much is read back at once.
const READ_BYTES: usize = 128 << 10;

/// How long one piece of disk work may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file that holds the end of one body.
#[derive(Clone)]
pub(crate) struct Spill {
    file: Arc<Unnamed>,
    /// Its length in bytes.
    pub(crate) length: u64,
}

/// The file itself. It has no name, so closing it gives its blocks back, which takes milliseconds for a large one.
struct Unnamed(Option<File>);

impl Unnamed {
    fn file(&self) -> io::Result<&File> {
        self.0.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if let (Some(file), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn_blocking(move || drop(file));
        }
    }
}

impl Spill {
    /// A new file in `dir`, or in the system's temporary directory.
    pub(crate) async fn create(dir: Option<&Path>) -> io::Result<Self> {
        let dir = dir.map(Path::to_owned);
        let file = blocking(move || match dir {
            Some(dir) => tempfile::tempfile_in(dir),
            None => tempfile::tempfile(),
        });
        Ok(Self { file: Arc::new(Unnamed(Some(file.await?))), length: 0 })
    }

    /// Appends `batch`, and gives the buffer back, empty.
    pub(crate) async fn append(&mut self, mut batch: Vec<u8>) -> io::Result<Vec<u8>> {
        let file = Arc::clone(&self.file);
        self.length += batch.len() as u64;
        blocking(move || {
            file.file()?.write_all(&batch)?;
            batch.clear();
            Ok(batch)
        })
        .await
    }

    /// The bytes from `at` on: at most 128 KiB, fewer at the end.
    pub(crate) async fn read(self, at: u64) -> io::Result<Bytes> {
        let wanted = usize::try_from(self.length.saturating_sub(at)).unwrap_or(READ_BYTES).min(READ_BYTES);
        blocking(move || {
            let mut buffer = vec![0; wanted];
            self.file.file()?.read_exact_at(&mut buffer, at)?;
            Ok(Bytes::from(buffer))
        })
        .await
    }
}

/// Disk work belongs to the blocking threads: a slow disk must not stop the other requests of a worker.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    match tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(work)).await {
        Ok(done) => done.map_err(io::Error::other)?,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
