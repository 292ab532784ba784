//! One upstream, one tenant, one gateway that cannot keep its audit: none of them takes from others.

use std::time::Duration;

use nevertwice_testkit::{DOC, DOC2, Gate, Gateway, Post, Reply, Setup, Upstream, random_document};
use serde_json::json;
use tokio::task::JoinSet;

use crate::caller::until;
use crate::job_caller::{JOB, attempts, end, get, hand, hand_as, show};
use crate::jobs::{accepted, id};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_slow_upstream_does_not_stop_the_jobs_of_others() {
    let (slow, quick) = (Upstream::start().await, Upstream::start().await);
    let other = format!("- name: other\n  adapter: classify\n  base_url: \"{}\"\n", quick.url());
    let slots = [("TOP", "jobs:\n  input_max_bytes: 300000"), ("UPSTREAMS", &other)];
    let yaml = Gateway::simple_yaml(&slow.url(), &slots);
    let gateway = Gateway::start(&format!("{yaml}\nlimits: {{buffer_memory_bytes: 1048576}}\n")).await;
    let gate = Gate::new();
    slow.always(accepted().wait_for(&gate));
    quick.always(accepted());
    // as much as all rooms together have, and more
    let mut stuck = Vec::new();
    for n in 0..8 {
        stuck.push(id(&hand(&gateway, JOB, &random_document(n, 290_000)).send().await));
    }
    slow.wait_calls(1).await;
    let job = id(&hand(&gateway, "/jobs/other/x", &random_document(9, 290_000)).send().await);
    assert_eq!(end(&gateway, &job).await["status"], "succeeded");
    gate.open();
    for job in &stuck {
        assert_eq!(end(&gateway, job).await["status"], "succeeded");
    }
    assert_eq!((slow.calls(), quick.calls()), (8, 1));
}

#[tokio::test]
async fn no_call_is_made_that_cannot_be_accounted_for() {
    let upstream = Upstream::start().await;
    let yaml = Gateway::simple_yaml(&upstream.url(), &[("TOP", "jobs:\n  retry_first_ms: 6000")]);
    let plain = "audit:\n  file: \"@DIR@/audit.jsonl\"\n";
    assert!(yaml.contains(plain), "{yaml}");
    let dir = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
    let (here, away) = (dir.path().join("here"), dir.path().join("away"));
    assert!(std::fs::create_dir(&here).is_ok());
    let audit = format!("audit: {{file: \"{}\", on_full: refuse}}\n", here.join("audit.jsonl").display());
    let gateway = Gateway::start(&yaml.replace(plain, &audit)).await;
    upstream.by(|_, n| if n == 1 { Reply::status(503) } else { accepted() });
    let job = id(&hand(&gateway, JOB, &DOC).send().await);
    upstream.wait_calls(1).await;
    // its next attempt is 4.5 to 6 s away; the audit looks for its file every other second
    assert!(std::fs::rename(&here, &away).is_ok());
    let refused = async || (get(&gateway, 1, "/jobs").await.status == 503).then_some(());
    until("the audit to refuse", SOON, refused).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(upstream.calls(), 1);
    assert!(std::fs::rename(&away, &here).is_ok());
    let served = async || (get(&gateway, 1, "/jobs").await.status == 200).then_some(());
    until("service to come back", SOON, served).await;
    assert_eq!(end(&gateway, &job).await["status"], "succeeded");
    assert_eq!(upstream.calls(), 2);
    let text = std::fs::read_to_string(here.join("audit.jsonl")).unwrap_or_default();
    let lines: Vec<_> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(attempts(&lines), 2);
}

#[tokio::test]
async fn jobs_that_find_no_place_are_not_tried_one_after_the_other() {
    const JOBS: u64 = 60;
    let upstream = Upstream::start().await;
    let pool = "pool:\n  max_in_flight: 1\n  max_queue: 0";
    let gateway = Gateway::with(&upstream.url(), &[("TOP", "jobs: {}"), ("UPSTREAM", pool)]).await;
    let gate = Gate::new();
    upstream.always(accepted().wait_for(&gate));
    // a request has the only place
    let direct = Post::to(gateway.addr, "/doc-classifier/classify").bearer("tok-1").body(&DOC2[..]);
    let mut requests = JoinSet::new();
    requests.spawn(direct.send());
    gate.wait_waiting(1).await;
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        jobs.push(id(&hand(&gateway, JOB, &random_document(n, 600)).send().await));
    }
    let shed = |gateway: &Gateway| gateway.audit().iter().filter(|line| line["code"] == "POOL_FULL").count();
    let some = async || (shed(&gateway) > 0).then_some(());
    until("a job that found no place", SOON, some).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    // one in a second, and a few that were in hand
    let tried = shed(&gateway);
    assert!(tried < 30, "{tried}");
    let waits = show(&gateway, &jobs[0]).await;
    assert_eq!((&waits["attempts"], upstream.calls()), (&json!(0), 1), "{waits}");
    gate.open();
    assert!(requests.join_next().await.is_some_and(|done| done.is_ok_and(|answer| answer.status == 200)));
    for job in &jobs {
        assert_eq!(end(&gateway, job).await["status"], "succeeded");
    }
    assert_eq!(upstream.calls(), JOBS + 1);
}

#[tokio::test]
async fn one_tenant_s_webhooks_leave_room_for_those_of_others() {
    let (upstream, hook, other) = (Upstream::start().await, Upstream::start().await, Upstream::start().await);
    let block = "jobs:\n  webhooks:\n    secret: env:HOOK_SECRET\n    allow_private: true";
    let yaml = Gateway::simple_yaml(&upstream.url(), &[("TOP", block)]);
    let gateway = Setup::new(&yaml).env("HOOK_SECRET", "a secret that is long enough").start().await;
    upstream.always(accepted());
    let gate = Gate::new();
    hook.always(Reply::status(204).wait_for(&gate));
    other.always(Reply::status(204));
    let mut last = String::new();
    for n in 0..140 {
        let post = hand(&gateway, JOB, &random_document(n, 300)).header("Webhook-Url", hook.url());
        last = id(&post.send().await);
    }
    end(&gateway, &last).await;
    hand_as(&gateway, 2, JOB, &DOC).header("Webhook-Url", other.url()).send().await;
    other.wait_complete(1).await;
    assert!(hook.open_connections() <= 4, "{}", hook.open_connections());
    gate.open();
    // however many wait, all are told
    let delivered = async || {
        let delivered = gateway.metric("gateway_webhooks_total", &[("result", "delivered")]).await;
        (delivered >= 141.0).then_some(())
    };
    until("all to be told", SOON, delivered).await;
    assert_eq!(hook.requests().len(), 140);
}
