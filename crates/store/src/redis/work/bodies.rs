//! Inputs and results: hashes with their length and their pieces. A large one goes piece by piece, so that look-ups on the same
//! connection, and other clients of the server, need not wait for all of it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::{Value, pipe};
use tokio::sync::{AcquireError, SemaphorePermit};

use super::super::Shared;
use super::super::operations::{corrupt, number};
use super::LONGEST;
use crate::{StoreError, StoreErrorKind};

/// The length of a piece.
const PIECE: usize = 256 << 10;
/// How long what was not taken over stays, in milliseconds: longer than it takes to bring it.
const ALONE_MS: u64 = 120_000;
/// No body is longer; a length that says so is damaged.
const MOST: u64 = 1 << 30;

/// Until when a body has to have moved.
struct Limit(Instant);

impl Limit {
    fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }
}

/// Whether it goes in one piece.
pub(super) fn is_small(body: &Bytes) -> bool {
    body.len() <= PIECE
}

impl Shared {
    /// Brings a body. It is to be taken over by a script soon, or it goes again.
    pub(super) async fn put_body(&self, key: &str, body: &Bytes) -> Result<(), StoreError> {
        let _turn = if is_small(body) { None } else { Some(self.turn().await?) };
        let _room = self.room(body.len().min(PIECE)).await?;
        let limit = Limit(Instant::now() + self.budget(body.len()));
        // an empty one has one piece too
        for piece in 0..body.len().div_ceil(PIECE).max(1) {
            let bytes = &body[piece * PIECE..body.len().min((piece + 1) * PIECE)];
            let mut put = pipe();
            let write = put.cmd("HSET").arg(key).arg(piece).arg(bytes);
            if piece == 0 {
                write.arg("m").arg(body.len());
            }
            // again with each: all data may be lost in between
            put.cmd("PEXPIRE").arg(key).arg(ALONE_MS);
            let _: Value = self.link.ask(&put, limit.left()).await?;
        }
        Ok(())
    }

    /// A body; `None` when it is not there, or not whole.
    pub(super) async fn body(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        let mut first = pipe();
        first.cmd("HMGET").arg(key).arg("m").arg(0);
        type Pair = (Option<Vec<u8>>, Option<Vec<u8>>);
        // how long it is, is not known yet
        let room = self.room(PIECE).await?;
        let (answer,): (Pair,) = self.link.ask(&first, self.budget(PIECE)).await?;
        let (Some(length), Some(piece)) = answer else { return Ok(None) };
        let length = number(&length).filter(|length| *length <= MOST).ok_or_else(|| corrupt("a body"))?;
        let length = usize::try_from(length).map_err(|_| corrupt("a body"))?;
        if piece.len() >= length {
            return if piece.len() == length { Ok(Some(piece.into())) } else { Err(corrupt("a body")) };
        }
        // who waits for a turn takes no room
        drop(room);
        let _turn = self.turn().await?;
        let _room = self.room(PIECE).await?;
        let limit = Limit(Instant::now() + self.budget(length));
        let mut body = Vec::with_capacity(length);
        body.extend_from_slice(&piece);
        for piece in 1..length.div_ceil(PIECE) {
            let mut get = pipe();
            get.cmd("HGET").arg(key).arg(piece);
            let (piece,): (Option<Vec<u8>>,) = self.link.ask(&get, limit.left()).await?;
            let Some(piece) = piece else { return Ok(None) };
            body.extend_from_slice(&piece);
        }
        if body.len() == length { Ok(Some(body.into())) } else { Err(corrupt("a body")) }
    }

    /// Removes a body that nothing refers to. It would go by itself.
    pub(super) async fn drop_body(&self, key: &str) {
        let mut drop = pipe();
        drop.cmd("DEL").arg(key);
        let _: Result<Value, _> = self.link.ask(&drop, self.options.write).await;
    }

    /// For a large body, as long as it moves.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        in_time(self.work.turns.acquire()).await
    }

    /// For any body, so many bytes of which move at once.
    async fn room(&self, bytes: usize) -> Result<SemaphorePermit<'_>, StoreError> {
        // an empty one needs a little too
        in_time(self.work.on_the_way.acquire_many(u32::try_from(bytes.max(1)).unwrap_or(u32::MAX))).await
    }
}

async fn in_time<'a>(
    place: impl Future<Output = Result<SemaphorePermit<'a>, AcquireError>>,
) -> Result<SemaphorePermit<'a>, StoreError> {
    match tokio::time::timeout(LONGEST, place).await {
        Ok(Ok(place)) => Ok(place),
        _ => Err(StoreErrorKind::Busy.error("too many bodies are on their way to or from the store")),
    }
}
