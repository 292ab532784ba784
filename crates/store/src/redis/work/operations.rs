//! Operations: what they are never changes after they were put; whether they are pending is whether they stand among the looks.

use nevertwice_domain::clock::Millis;
use nevertwice_domain::operation::{Operation, OperationId, Pending, Whereabouts};
use redis::pipe;

use super::super::Shared;
use super::super::operations::{corrupt, number, text};
use super::stored;
use crate::StoreError;
use crate::work::life;

/// How many operations make room at once.
const VICTIMS: u64 = 100;

fn pending_of(operation: &mut Operation) -> Option<&mut Option<Pending>> {
    match &mut operation.at {
        Whereabouts::Upstream { pending, .. } => Some(pending),
        Whereabouts::Known { .. } => None,
    }
}

/// The operation as it stands there; `next_look_at` is `None` where nothing is pending.
fn read(
    value: &[u8],
    id: &OperationId,
    looks: u64,
    next_look_at: Option<Millis>,
) -> Result<Operation, StoreError> {
    let mut operation: Operation = stored::decode(value)?;
    if operation.id != *id {
        return Err(corrupt("another operation"));
    }
    if let Some(pending) = pending_of(&mut operation) {
        match (next_look_at, pending.as_mut()) {
            (Some(at), Some(pending)) => {
                pending.looks = u32::try_from(looks).unwrap_or(u32::MAX);
                pending.next_look_at = at;
            }
            _ => *pending = None,
        }
    }
    Ok(operation)
}

/// A score of a sorted set.
fn score(value: f64) -> Millis {
    Millis(value as i64)
}

impl Shared {
    pub(super) async fn put_operation(&self, operation: &Operation) -> Result<(), StoreError> {
        let mut seen = operation.clone();
        let pending = pending_of(&mut seen).and_then(|pending| pending.clone());
        let next_look_at = pending.as_ref().map(|pending| pending.next_look_at.0.to_string());
        let keys = &self.keys;
        let value = stored::encode(operation)?;
        let minted = life::is_minted(operation);
        let (kind, other) = match minted {
            true => (keys.minted(), keys.operations()),
            false => (keys.operations(), keys.minted()),
        };
        let mut call = self.scripts.op_put.key(keys.operation(&operation.id));
        call.key(keys.looks())
            .key(kind)
            .key(other)
            .key(keys.op_seq())
            .arg(operation.id.to_string())
            .arg(&value)
            .arg(operation.expires_at.0)
            .arg(next_look_at.unwrap_or_default())
            .arg(pending.map_or(0, |pending| pending.looks))
            .arg(self.life_until(operation.expires_at))
            .arg(life::most_of(minted))
            .arg(VICTIMS);
        let victims: Vec<String> = self.link.call(&call, self.budget(value.len())).await?;
        for id in victims.iter().filter_map(|id| id.parse().ok()) {
            self.remove_operation(&id).await?;
        }
        Ok(())
    }

    pub(super) async fn operation(&self, id: &OperationId) -> Result<Option<Operation>, StoreError> {
        let mut get = pipe();
        get.cmd("HMGET").arg(self.keys.operation(id)).arg("v").arg("n");
        get.cmd("ZSCORE").arg(self.keys.looks()).arg(id.to_string());
        type Answer = ((Option<Vec<u8>>, Option<u64>), Option<f64>);
        let ((value, looks), at): Answer = self.link.ask(&get, self.budget(0)).await?;
        let Some(value) = value else { return Ok(None) };
        let operation = read(&value, id, looks.unwrap_or(0), at.map(score))?;
        Ok((operation.expires_at > self.now()).then_some(operation))
    }

    pub(super) async fn settle_operation(&self, id: &OperationId) -> Result<bool, StoreError> {
        let mut call = self.scripts.op_settle.key(self.keys.operation(id));
        call.key(self.keys.looks()).arg(id.to_string()).arg(self.now().0);
        let was: u64 = self.link.call(&call, self.budget(0)).await?;
        Ok(was == 1)
    }

    pub(super) async fn remove_operation(&self, id: &OperationId) -> Result<(), StoreError> {
        let keys = &self.keys;
        let mut call = self.scripts.op_remove.key(keys.operation(id));
        call.key(keys.looks()).key(keys.operations()).key(keys.minted()).arg(id.to_string());
        let _: u64 = self.link.call(&call, self.budget(0)).await?;
        Ok(())
    }

    pub(super) async fn due_operations(
        &self,
        now: Millis,
        again_at: Millis,
        limit: usize,
    ) -> Result<Vec<Operation>, StoreError> {
        let keys = &self.keys;
        let mut call = self.scripts.op_due.key(keys.looks());
        call.arg(now.0).arg(again_at.0).arg(limit);
        let ids: Vec<String> = self.link.call(&call, self.budget(0)).await?;
        let mut due = Vec::with_capacity(ids.len());
        for id in ids {
            // a member that is no id is nobody's operation; it is put off again and again, and goes with the key
            let Ok(id) = id.parse::<OperationId>() else { continue };
            let mut call = self.scripts.op_looked.key(keys.operation(&id));
            call.key(keys.looks()).key(keys.operations()).arg(id.to_string());
            let answer: Vec<Vec<u8>> = self.link.call(&call, self.budget(0)).await?;
            let [value, looks, at] = &answer[..] else { continue };
            let at = text(at).and_then(|at| at.parse().ok()).map(score);
            match read(value, &id, number(looks).unwrap_or(0), at) {
                Ok(operation) if operation.expires_at > self.now() => due.push(operation),
                Ok(_) => self.remove_operation(&id).await?,
                // one that cannot be read must not keep the others from being looked at
                Err(error) => {
                    if self.link.first_in_a_while("operation") {
                        tracing::error!(%id, %error, "an operation cannot be read");
                    }
                }
            }
        }
        Ok(due)
    }
}
