//! Trying again what failed: a gateway that restarts comes back.

use std::time::Duration;

use crate::exit::Failure;

/// How often a request is tried again.
const AGAIN: u32 = 3;
/// How long it is waited before.
const PAUSE: Duration = Duration::from_secs(1);

/// Tries again what failed, if it has `worked` before. For what may be asked for twice.
pub async fn patiently<T>(worked: bool, call: impl AsyncFnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    again(if worked { AGAIN } else { 0 }, PAUSE, call).await
}

async fn again<T>(
    mut left: u32,
    pause: Duration,
    mut call: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    loop {
        match call().await {
            Err(Failure { code: 1, .. }) if left > 0 => {
                left -= 1;
                tokio::time::sleep(pause).await;
            }
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_failed_is_tried_again_and_what_was_wrong_is_not() {
        for (left, code, expected) in [(0, 1, 1), (3, 1, 4), (3, 2, 1)] {
            let mut calls = 0;
            let ended = again(left, Duration::ZERO, async || -> Result<(), Failure> {
                calls += 1;
                Err(Failure { code, message: String::new() })
            });
            assert!(ended.await.is_err());
            assert_eq!(calls, expected, "{left} {code}");
        }
        let mut calls = 0;
        let ended = again(3, Duration::ZERO, async || {
            calls += 1;
            if calls < 3 { Err(Failure::failed("")) } else { Ok(calls) }
        });
        assert_eq!(ended.await.ok(), Some(3));
    }
}
