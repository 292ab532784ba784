//! A request body, held: gathered while it arrives, then complete.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use nevertwice_domain::canonical::form::Edit;

use super::budget::{Budget, Reservation};
use super::spill::Spill;
use crate::metrics::Metrics;

/// A body is copied into segments of this size at most: a slice of what the connection read would keep its whole read buffer
/// alive, which may be many times longer.
const SEGMENT: usize = 256 << 10;
/// The smallest segment of a body whose length is not known.
const SEGMENT_MIN: u64 = 4 << 10;
/// What is gathered before it is written to disk at once.
const SPILL_BATCH: usize = 128 << 10;
/// After a chunk of this size others get their turn.
const LARGE_CHUNK: usize = 64 << 10;

/// A body while it arrives.
pub(crate) struct Gathering {
    memory: Vec<Segment>,
    memory_length: u64,
    /// The segment that is being filled.
    open: BytesMut,
    /// The length that the client stated.
    stated: Option<u64>,
    reservation: Reservation,
    spill: Option<Spill>,
    batch: Vec<u8>,
}

/// A piece of the memory part and where it begins.
struct Segment {
    start: u64,
    bytes: Bytes,
}

/// A complete body: the beginning in memory, the rest in a file. Cheap to clone; memory and file are freed with the last one.
#[derive(Clone)]
pub(crate) struct Held {
    inner: Arc<Inner>,
    /// How the body is rewritten on its way up; empty for all but forms with neutral file names.
    edits: Arc<[Edit]>,
    /// Its length as it goes up.
    outbound_length: u64,
}

struct Inner {
    memory: Vec<Segment>,
    memory_length: u64,
    spill: Option<Spill>,
    /// `None` = counted elsewhere.
    _reservation: Option<Reservation>,
}

impl Inner {
    fn length(&self) -> u64 {
        self.memory_length + self.spill.as_ref().map_or(0, |s| s.length)
    }
}

impl Gathering {
    /// For a body of `stated` bytes, if the client said how many there will be.
    pub(crate) fn new(budget: &Arc<Budget>, stated: Option<u64>) -> Self {
        Self {
            memory: Vec::new(),
            memory_length: 0,
            open: BytesMut::new(),
            stated,
            reservation: budget.reserve(),
            spill: None,
            batch: Vec::new(),
        }
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub(crate) async fn push(
        &mut self,
        chunk: &[u8],
        dir: Option<&Path>,
        metrics: &Metrics,
    ) -> io::Result<()> {
        let mut rest = chunk;
        if self.spill.is_none() {
            rest = self.keep(chunk);
            if rest.is_empty() {
                return Ok(());
            }
            self.seal();
            self.spill = Some(Spill::create(dir).await?);
            self.batch.reserve_exact(SPILL_BATCH);
        }
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(SPILL_BATCH - self.batch.len()));
            self.batch.extend_from_slice(now);
            rest = later;
            if self.batch.len() == SPILL_BATCH {
                self.write_batch(metrics).await?;
            }
        }
        Ok(())
    }

    /// Keeps as much as the budget has room for, and returns the rest.
    fn keep<'a>(&mut self, mut chunk: &'a [u8]) -> &'a [u8] {
        while !chunk.is_empty() {
            if self.open.len() == self.open.capacity() {
                self.seal();
                // as much as is still to come, where that is known; else segments that grow with the body
                let room = match self.stated.and_then(|all| all.checked_sub(self.memory_length)) {
                    Some(left) if left > 0 => left,
                    _ => self.memory_length.max(SEGMENT_MIN),
                };
                let room = usize::try_from(room).unwrap_or(SEGMENT).min(SEGMENT);
                if !self.reservation.grow(room as u64) {
                    return chunk;
                }
                self.open = BytesMut::with_capacity(room);
            }
            let room = self.open.capacity() - self.open.len();
            let (now, later) = chunk.split_at(chunk.len().min(room));
            self.open.extend_from_slice(now);
            chunk = later;
        }
        chunk
    }

    /// Ends the segment that is being filled.
    fn seal(&mut self) {
        if !self.open.is_empty() {
            let bytes = std::mem::take(&mut self.open).freeze();
            let start = self.memory_length;
            self.memory_length += bytes.len() as u64;
            self.memory.push(Segment { start, bytes });
        }
    }

    async fn write_batch(&mut self, metrics: &Metrics) -> io::Result<()> {
        if let Some(spill) = self.spill.as_mut().filter(|_| !self.batch.is_empty()) {
            metrics.spilled_bytes.inc_by(self.batch.len() as u64);
            self.batch = spill.append(std::mem::take(&mut self.batch)).await?;
        }
        Ok(())
    }

    /// The body is complete.
    ///
    /// # Errors
    /// When the disk does not take the rest.
    pub(crate) async fn finish(mut self, metrics: &Metrics) -> io::Result<Held> {
        self.write_batch(metrics).await?;
        self.seal();
        let inner = Inner {
            memory: self.memory,
            memory_length: self.memory_length,
            spill: self.spill,
            _reservation: Some(self.reservation),
        };
        let outbound_length = inner.length();
        Ok(Held { inner: Arc::new(inner), edits: Arc::new([]), outbound_length })
    }
}

impl Held {
    /// A body that is at hand already, and counted elsewhere.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        let length = bytes.len() as u64;
        let memory = if bytes.is_empty() { Vec::new() } else { vec![Segment { start: 0, bytes }] };
        let inner = Inner { memory, memory_length: length, spill: None, _reservation: None };
        Self { inner: Arc::new(inner), edits: Arc::new([]), outbound_length: length }
    }

    /// All of it as it arrived, in one piece of memory. The caller has made sure that there is room.
    ///
    /// # Errors
    /// When it cannot be read back.
    pub(crate) async fn in_one_piece(&self) -> io::Result<Bytes> {
        if let ([one], None) = (self.inner.memory.as_slice(), &self.inner.spill) {
            return Ok(one.bytes.clone());
        }
        let mut out = Vec::with_capacity(usize::try_from(self.length()).unwrap_or(0));
        let whole = Range { start: 0, end: self.length() };
        self.visit(std::slice::from_ref(&whole), |bytes| out.extend_from_slice(bytes)).await?;
        Ok(out.into())
    }

    /// The same body, rewritten by `edits` on its way up.
    pub(crate) fn with_edits(self, edits: Vec<Edit>) -> Self {
        let removed: u64 = edits.iter().map(|e| e.remove).sum();
        let inserted: u64 = edits.iter().map(|e| e.insert.len() as u64).sum();
        let outbound_length = (self.length() + inserted).saturating_sub(removed);
        Self { edits: edits.into(), outbound_length, ..self }
    }

    /// Length as it arrived.
    pub(crate) fn length(&self) -> u64 {
        self.inner.length()
    }

    /// Length as it goes up.
    pub(crate) fn outbound_length(&self) -> u64 {
        self.outbound_length
    }

    pub(crate) fn edits(&self) -> &Arc<[Edit]> {
        &self.edits
    }

    /// The chunk that begins at or holds position `at`, from there on; `None` at the end. Reads from disk where needed.
    pub(crate) async fn chunk(self, at: u64) -> io::Result<Option<Bytes>> {
        if let Some(chunk) = self.memory_chunk(at) {
            return Ok(Some(chunk));
        }
        match &self.inner.spill {
            Some(spill) if at < self.length() => {
                spill.clone().read(at - self.inner.memory_length).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// As [`Held::chunk`], for what is in memory.
    pub(crate) fn memory_chunk(&self, at: u64) -> Option<Bytes> {
        if at >= self.inner.memory_length {
            return None;
        }
        let after = self.inner.memory.partition_point(|segment| segment.start <= at);
        let segment = self.inner.memory.get(after.checked_sub(1)?)?;
        Some(segment.bytes.slice(usize::try_from(at - segment.start).ok()?..))
    }

    /// Feeds the bytes of these ranges of the body, as it arrived, to `sink`.
    ///
    /// # Errors
    /// When they cannot be read back.
    pub(crate) async fn visit(&self, ranges: &[Range<u64>], mut sink: impl FnMut(&[u8])) -> io::Result<()> {
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let Some(chunk) = self.clone().chunk(at).await? else {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                };
                let wanted = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(chunk.len());
                sink(&chunk[..wanted]);
                at += wanted as u64;
                if wanted >= LARGE_CHUNK {
                    // hashing a long document must not hold up the other requests of this worker
                    tokio::task::yield_now().await;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that breaks should stop")]
mod tests {
    use super::*;

    async fn hold(budget: u64, chunks: &[Vec<u8>], stated: Option<u64>) -> Held {
        let metrics = Arc::new(Metrics::new(false));
        let budget = Budget::new(budget, Arc::clone(&metrics));
        let mut gathering = Gathering::new(&budget, stated);
        for chunk in chunks {
            gathering.push(chunk, None, &metrics).await.unwrap();
        }
        gathering.finish(&metrics).await.unwrap()
    }

    #[tokio::test]
    async fn a_body_comes_back_as_it_came_wherever_it_was_held() {
        let mut n = 0_u32;
        let chunks: Vec<Vec<u8>> = [1, 70_000, 3, 5000, 4095, 4096, 300_000, 17, 0, 9]
            .iter()
            .map(|length| {
                (0..*length)
                    .map(|_| {
                        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        n.to_be_bytes()[0]
                    })
                    .collect()
            })
            .collect();
        let whole = chunks.concat();
        for budget in [0, 9, 34, 80_003, 600_000, 4_000_001, 100_000_002, 100_000_003] {
            // what a client states is a hint, right or wrong
            let stated = [None, Some(whole.len() as u64), Some(10), Some(0)][budget as usize % 4];
            let held = hold(budget, &chunks, stated).await;
            assert_eq!(held.length(), whole.len() as u64);
            let mut back = Vec::new();
            while let Some(chunk) = held.clone().chunk(back.len() as u64).await.unwrap() {
                back.extend_from_slice(&chunk);
            }
            assert!(back == whole, "budget {budget}");
            let mut part = Vec::new();
            held.visit(&[69_990..80_000, 0..5], |bytes| part.extend_from_slice(bytes)).await.unwrap();
            assert!(part == [&whole[69_990..80_000], &whole[..5]].concat());
        }
    }
}
