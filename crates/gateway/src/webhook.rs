//! Webhooks: the end of a job is told to the address that its owner named. Signed as Standard Webhooks has it, so that the receiver can
//! tell the gateway's word from anybody's; retried; and never sent to addresses that are not public, unless that is allowed.

mod addresses;
mod call;
mod signature;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use nevertwice_config::checked::Webhooks as Rules;
use nevertwice_domain::clock::Clock;
use nevertwice_domain::job::Job;
use rustls::ClientConfig;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::facade::jobs::shape;
use crate::jobs::{Seldom, Shares};
use crate::metrics::{Metrics, WebhookMetrics};
use crate::serve::Stop;
use crate::tls;
use addresses::is_public;
use signature::Signer;

/// Webhooks that wait or are called, at most; what is beyond is dropped and counted.
const WAITING: usize = 1024;
/// Of those, one tenant's.
const WAITING_OF_ONE: usize = WAITING / 8;
/// Calls at once.
const AT_ONCE: usize = 16;
/// Of those, one tenant's.
const AT_ONCE_OF_ONE: usize = AT_ONCE / 4;
/// Calls of one webhook at most.
const ATTEMPTS: u32 = 8;
/// How long one call may take.
const CALL_MAX: Duration = Duration::from_secs(10);
/// The pause before the second call; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The longest address.
const URL_MAX: usize = 2048;

/// Calls webhooks.
pub(crate) struct Webhooks {
    pub(crate) allow_private: bool,
    waiting: Arc<Semaphore>,
    waiting_of: Shares,
    at_once_of: Shares,
    trouble: Seldom,
    tracker: TaskTracker,
    stop: Stop,
    caller: Arc<Caller>,
}

struct Caller {
    signer: Signer,
    allow_private: bool,
    tls: Arc<ClientConfig>,
    at_once: Semaphore,
    clock: Arc<dyn Clock>,
    metrics: WebhookMetrics,
}

/// Why a call came to nothing.
#[derive(Debug)]
enum Failure {
    /// It is not made, now or later.
    Refused(&'static str),
    /// It may go better next time.
    Failed(String),
}

/// Whether an address can be called: http or https, nothing but host and port in its authority, and no literal address that is not
/// public. Names are looked at when they are resolved.
pub(crate) fn check(url: &str, allow_private: bool) -> Result<Uri, &'static str> {
    if url.len() > URL_MAX {
        return Err("the Webhook-Url is longer than 2048 bytes");
    }
    let uri: Uri = url.parse().map_err(|_| "the Webhook-Url is no URL")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || url.contains('#') {
        return Err("the Webhook-Url has to be an http or https URL without a fragment");
    }
    let authority = uri.authority().filter(|a| !a.host().is_empty() && !a.as_str().contains('@'));
    let host = authority.ok_or("the Webhook-Url has to name a host, and no user")?.host();
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse();
    if literal.is_ok_and(|ip| !allow_private && !is_public(ip)) {
        return Err("the Webhook-Url leads to an address that is not public");
    }
    Ok(uri)
}

impl Webhooks {
    /// # Errors
    /// When there can be no TLS.
    pub(crate) fn new(
        rules: &Rules,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
        tracker: TaskTracker,
        stop: Stop,
    ) -> Result<Self, String> {
        let caller = Caller {
            signer: Signer::new(&rules.secret),
            allow_private: rules.allow_private,
            tls: Arc::new(tls::client(None, None)?),
            at_once: Semaphore::new(AT_ONCE),
            clock,
            metrics: metrics.webhooks(),
        };
        Ok(Self {
            allow_private: rules.allow_private,
            waiting: Arc::new(Semaphore::new(WAITING)),
            waiting_of: Shares::new(WAITING_OF_ONE),
            at_once_of: Shares::new(AT_ONCE_OF_ONE),
            trouble: Seldom::default(),
            tracker,
            stop,
            caller: Arc::new(caller),
        })
    }

    /// Tells the end of a job, beside the worker.
    pub(crate) fn send(&self, job: &Job, base: &str) {
        let Some(url) = &job.webhook else { return };
        let Ok(to) = check(url, self.allow_private) else { return self.lost("its address cannot be called") };
        let Ok(of_tenant) = self.waiting_of.of(&job.tenant).try_acquire_owned() else {
            return self.lost("too many of its tenant wait");
        };
        let Ok(place) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return self.lost("too many wait");
        };
        let (caller, stop, id) = (Arc::clone(&self.caller), self.stop.clone(), job.id.to_string());
        let (body, turns) = (Bytes::from(shape::job(job, base).to_string()), self.at_once_of.of(&job.tenant));
        self.tracker.spawn(async move {
            let _places = (of_tenant, place);
            stop.cut.run_until_cancelled(caller.deliver(&to, &id, &body, &turns, &stop)).await;
        });
    }

    /// One is not called.
    pub(crate) fn lost(&self, reason: &'static str) {
        self.caller.metrics.dropped.inc();
        if self.trouble.is_due() {
            tracing::warn!(reason, "a webhook is not called; more may not be, and only their number is told");
        }
    }
}

impl Caller {
    /// `turns` are those of the webhook's tenant.
    async fn deliver(&self, to: &Uri, id: &str, body: &Bytes, turns: &Semaphore, stop: &Stop) {
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            let called = {
                // its own first: who waits for its tenant's takes none from others
                let _turns = (turns.acquire().await, self.at_once.acquire().await);
                let call = self.call(to, id, body);
                let called = tokio::time::timeout(CALL_MAX, call).await;
                called.unwrap_or_else(|_| Err(Failure::Failed("no answer in time".into())))
            };
            match called {
                Ok(()) => {
                    self.metrics.delivered.inc();
                    return;
                }
                Err(Failure::Refused(reason)) => {
                    self.metrics.refused.inc();
                    tracing::warn!(job = id, reason, "a webhook is not called");
                    return;
                }
                // a stop does not wait for what may take minutes
                Err(Failure::Failed(reason)) if attempt == ATTEMPTS || stop.drain.is_cancelled() => {
                    self.metrics.given_up.inc();
                    tracing::warn!(job = id, reason, attempt, "a webhook was called in vain");
                    return;
                }
                Err(Failure::Failed(reason)) => {
                    self.metrics.retried.inc();
                    tracing::debug!(job = id, reason, attempt, "a webhook failed and is called again");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause.mul_f64(1.0 + 0.25 * fastrand::f64())) => {}
                () = stop.drain.cancelled() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_called_are_told_at_once() {
        for bad in [
            "",
            "ftp://a.test/",
            "a.test/x",
            "http://",
            "http://user@a.test/",
            "http://a.test@127.0.0.1/",
            "https://127.0.0.1/",
            "http://[::1]/",
            "http://169.254.169.254/latest",
            "http://[::ffff:10.0.0.1]:80/",
            "http://a.test/#x",
        ] {
            assert!(check(bad, false).is_err(), "{bad}");
        }
        for good in ["https://hooks.example.com/x?y=1", "http://8.8.8.8:8080/", "http://[2606:4700::1111]/"] {
            assert!(check(good, false).is_ok(), "{good}");
        }
        assert!(check("http://127.0.0.1:9/", true).is_ok() && check("file:///etc/passwd", true).is_err());
        assert!(check(&format!("http://a.test/{}", "x".repeat(URL_MAX)), true).is_err());
    }
}
