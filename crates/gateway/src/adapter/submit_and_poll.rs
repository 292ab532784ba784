//! The wire of Azure Document Intelligence: 202 with the address of an operation.

use http::StatusCode;
use nevertwice_domain::operation::{self, State};

use super::{Begun, malformed};
use crate::exchange::Rejection;
use crate::exchange::judge::Answer;
use crate::exchange::operation::News;

/// What an answer to a submit begins. Where it leads was looked at when it arrived: to the replica itself or to a poll host.
pub(super) fn begun(mut answer: Answer) -> Result<Begun, Rejection> {
    match answer.news.take() {
        Some(News::Begun(address)) => Ok(Begun::At(address, answer.head.headers)),
        None if answer.head.status == StatusCode::ACCEPTED => {
            Err(malformed("the upstream answered 202 without an Operation-Location"))
        }
        _ => Ok(Begun::Answered(answer)),
    }
}

/// What a poll's body says.
pub(super) fn state(body: &[u8]) -> Option<State> {
    operation::state(body)
}
