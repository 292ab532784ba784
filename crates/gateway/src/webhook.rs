//! Webhooks: the end of a job is told to the address that its owner named. Signed as Standard Webhooks has it, so that the receiver can
//! tell the gateway's word from anybody's; and never sent to addresses that are not public, unless that is allowed.
//!
//! What is still to be told, and how often it was tried, stands in the store of jobs: any gateway goes on where another one ended.

mod addresses;
mod call;
mod signature;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Uri;
use nevertwice_config::checked::Webhooks as Rules;
use nevertwice_domain::clock::Clock;
use nevertwice_domain::job::Job;
use nevertwice_store::StoreError;
use nevertwice_store::work::Untold;
use rustls::ClientConfig;
use tokio::sync::{Notify, Semaphore};

use crate::Shared;
use crate::facade::jobs::shape;
use crate::jobs::{Jobs, Shares, after};
use crate::metrics::{Metrics, WebhookMetrics};
use crate::tls;
use addresses::is_public;
use signature::Signer;

/// Calls at once.
const AT_ONCE: usize = 16;
/// Of those, one tenant's.
const AT_ONCE_OF_ONE: usize = AT_ONCE / 4;
/// Calls of one webhook at most.
const ATTEMPTS: u32 = 8;
/// How long one call may take.
const CALL_MAX: Duration = Duration::from_secs(10);
/// An end whose teller died comes again after this; it is longer than a call, and what is said of it, may take.
const AGAIN: Duration = Duration::from_secs(20);
/// How long it is tried to say what became of a call.
const SAY_FOR: Duration = Duration::from_secs(5);
/// After a store that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the store is asked, when nothing is heard of.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause before the second call; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The longest address.
const URL_MAX: usize = 2048;

/// Calls webhooks.
pub(crate) struct Webhooks {
    pub(crate) allow_private: bool,
    /// An end may be due, or a place is free for the next.
    news: Notify,
    at_once: Arc<Semaphore>,
    at_once_of: Shares,
    signer: Signer,
    tls: Arc<ClientConfig>,
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
    pub(crate) fn new(rules: &Rules, clock: Arc<dyn Clock>, metrics: &Metrics) -> Result<Self, String> {
        Ok(Self {
            allow_private: rules.allow_private,
            news: Notify::new(),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            at_once_of: Shares::new(AT_ONCE_OF_ONE),
            signer: Signer::new(&rules.secret),
            tls: Arc::new(tls::client(None, None)?),
            clock,
            metrics: metrics.webhooks(),
        })
    }

    /// An end has come that is to be told.
    pub(crate) fn wake(&self) {
        self.news.notify_one();
    }

    /// Calls the webhook of a job that has come to its end, for the `calls`th time.
    async fn tell(&self, job: &Job, calls: u32, base: &str) -> Told {
        // the last call was made by one who died before it said what became of it
        if calls > ATTEMPTS {
            return self.given_up(job, "nobody knows how the last call ended");
        }
        let checked = check(job.webhook.as_deref().unwrap_or_default(), self.allow_private);
        let called = match checked {
            Err(reason) => Err(Failure::Refused(reason)),
            Ok(to) => {
                let body = Bytes::from(shape::job(job, base).to_string());
                let id = message_id(job);
                let called = tokio::time::timeout(CALL_MAX, self.call(&to, &id, &body)).await;
                called.unwrap_or_else(|_| Err(Failure::Failed("no answer in time".into())))
            }
        };
        match called {
            Ok(()) => {
                self.metrics.delivered.inc();
                Told::Over
            }
            Err(Failure::Refused(reason)) => {
                self.metrics.refused.inc();
                tracing::warn!(job = %job.id, reason, "a webhook is not called");
                Told::Over
            }
            Err(Failure::Failed(reason)) if calls == ATTEMPTS => self.given_up(job, &reason),
            Err(Failure::Failed(reason)) => {
                self.metrics.retried.inc();
                tracing::debug!(job = %job.id, reason, calls, "a webhook failed and is called again");
                Told::AgainAfter(pause_after(calls).mul_f64(1.0 + 0.25 * fastrand::f64()))
            }
        }
    }

    fn given_up(&self, job: &Job, reason: &str) -> Told {
        self.metrics.given_up.inc();
        tracing::warn!(job = %job.id, reason, "a webhook was called {ATTEMPTS} times in vain");
        Told::Over
    }
}

/// What became of a call.
enum Told {
    /// No other is made.
    Over,
    AgainAfter(Duration),
}

/// The pause after so many calls.
fn pause_after(calls: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(calls.saturating_sub(1));
    FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
}

/// What all calls for one end have in common, and for no other: a job that an operator has tried again has more than one.
fn message_id(job: &Job) -> String {
    match job.retries {
        0 => job.id.to_string(),
        retries => format!("{}-{}", job.id, retries.saturating_add(1)),
    }
}

/// Tells ends of jobs, this process's and others', until the gateway stops. What is still to be told then is told by others, or after the next
/// start.
pub(crate) async fn watch(gateway: Arc<Shared>, jobs: Arc<Jobs>) {
    let Some(webhooks) = jobs.webhooks() else { return };
    // what was handed out is told: the stop breaks off nothing but waits
    let drain = &gateway.stop.drain;
    while !drain.is_cancelled() {
        match hand_out(&gateway, &jobs, webhooks).await {
            // there may be more
            Ok(true) => {}
            Ok(false) => {
                let news = tokio::time::timeout(LOOK_EVERY, webhooks.news.notified());
                drain.run_until_cancelled(news).await;
            }
            Err(error) => {
                jobs.store_failed("webhooks that are due could not be listed", &error);
                drain.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
            }
        }
    }
}

/// One round: each tenant with ends that are to be told has its turn, as long as calls of its have places. Returns whether there was anything.
async fn hand_out(
    gateway: &Arc<Shared>,
    jobs: &Arc<Jobs>,
    webhooks: &Arc<Webhooks>,
) -> Result<bool, StoreError> {
    let mut any = false;
    for tenant in jobs.store.tenants_to_tell().await? {
        let share = webhooks.at_once_of.of(&tenant);
        let Ok(first) = Arc::clone(&share).try_acquire_owned() else { continue };
        let place = Arc::clone(&webhooks.at_once).acquire_owned();
        let Some(Ok(place)) = gateway.stop.drain.run_until_cancelled(place).await else { return Ok(false) };
        let mut places = vec![(first, place)];
        while let Ok(turn) = Arc::clone(&share).try_acquire_owned()
            && let Ok(place) = Arc::clone(&webhooks.at_once).try_acquire_owned()
        {
            places.push((turn, place));
        }
        let again_at = after(webhooks.clock.now(), AGAIN);
        let due = jobs.store.to_tell(&tenant, again_at, places.len()).await?;
        any |= !due.is_empty();
        for (untold, places) in due.into_iter().zip(places) {
            let (jobs, webhooks, cut) = (Arc::clone(jobs), Arc::clone(webhooks), gateway.stop.cut.clone());
            gateway.tracker.spawn(async move {
                cut.run_until_cancelled(tell(&jobs, &webhooks, &untold)).await;
                drop(places);
                webhooks.wake();
            });
        }
    }
    Ok(any)
}

/// Tells one end, and says what became of it. If that cannot be said, it is told once more.
async fn tell(jobs: &Jobs, webhooks: &Webhooks, untold: &Untold) {
    let again_at = match webhooks.tell(&untold.job, untold.calls, &jobs.base).await {
        Told::Over => None,
        Told::AgainAfter(pause) => Some(after(webhooks.clock.now(), pause)),
    };
    let until = Instant::now() + SAY_FOR;
    while let Err(error) = jobs.store.told(untold, again_at).await {
        jobs.store_failed("what became of a webhook could not be stored", &error);
        if Instant::now() >= until {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses: Vec<_> = (1..=10).map(|calls| pause_after(calls).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(pause_after(u32::MAX), LONGEST_PAUSE);
        assert!(CALL_MAX + SAY_FOR < AGAIN);
    }

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
