//! An attempt that others may wait for runs to its end, whether or not its own client stays.
//!
//! As long as the client is there, the attempt is driven by the client's connection, at no extra cost. When the connection
//! drops it, the tracker takes over.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

type Attempt<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs `attempt` to its end even if the returned future is dropped; only `cut` ends it early. `abandon` gets a result that
/// nobody waits for any more.
pub(super) fn to_the_end<T: Send + 'static>(
    tracker: TaskTracker,
    cut: CancellationToken,
    attempt: impl Future<Output = T> + Send + 'static,
    abandon: fn(T),
) -> impl Future<Output = T> + Send {
    ToTheEnd { tracker, cut, attempt: Some(Box::pin(attempt)), abandon }
}

struct ToTheEnd<T: Send + 'static> {
    tracker: TaskTracker,
    cut: CancellationToken,
    attempt: Option<Attempt<T>>,
    abandon: fn(T),
}

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(attempt) = self.attempt.as_mut() else { return Poll::Pending };
        let result = attempt.as_mut().poll(cx);
        if result.is_ready() {
            self.attempt = None;
        }
        result
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        // at the end of the process there is no runtime left to run on
        if let (Some(attempt), Ok(runtime)) = (self.attempt.take(), tokio::runtime::Handle::try_current()) {
            let (cut, abandon) = (self.cut.clone(), self.abandon);
            self.tracker.spawn_on(
                async move {
                    tokio::select! {
                        biased;
                        result = attempt => abandon(result),
                        () = cut.cancelled() => {}
                    }
                },
                &runtime,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_ends_although_nobody_waits() {
        let tracker = TaskTracker::new();
        let (done, ended) = tokio::sync::oneshot::channel();
        let (go, gate) = tokio::sync::oneshot::channel::<()>();
        let mut attempt = Box::pin(to_the_end(
            tracker.clone(),
            CancellationToken::new(),
            async move {
                let _ = gate.await;
                let _ = done.send(());
            },
            drop,
        ));
        assert!(futures_util::poll!(&mut attempt).is_pending());
        drop(attempt);
        assert!(go.send(()).is_ok());
        assert_eq!(ended.await, Ok(()));
        tracker.close();
        tracker.wait().await;
    }
}
