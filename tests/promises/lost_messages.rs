//! A forget whose message gets lost on the way to another replica: that one replays no longer than its near copy may be old, and
//! an attempt that it has under way records nothing, heard or not.
#![expect(clippy::unwrap_used, reason = "test")]

use std::time::{Duration, Instant};

use nevertwice_testkit::{
    Chaos, Fault, Gate, Gateway, Redis, Reply, Upstream, r400, random_document, sha256_hex,
};
use serde_json::{Value, json};

use crate::bench::settle;
use crate::caller::until;
use crate::fleet::{LOOK, RELEASE, post, replica, runs, script, send};

/// How old a near copy may be.
const FRESH: Duration = Duration::from_secs(5);

/// How often it is tried who waits is told.
const ROUNDS: usize = 9;

/// How the message gets lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// It alone.
    Message,
    /// Nothing comes from the server any more.
    BlackHole,
    /// The connection is cut as it is sent.
    Cut,
}

struct World {
    upstream: Upstream,
    redis: Redis,
    chaos: Chaos,
    a: Gateway,
    b: Gateway,
}

impl World {
    /// Two replicas; the second one's way to the server is unsafe.
    async fn start() -> Self {
        let (upstream, redis) = (Upstream::start().await, Redis::start());
        upstream.always(r400());
        let chaos = Chaos::start(redis.addr()).await;
        let a = replica(&upstream, &redis.url(), &[]).await;
        let b = replica(&upstream, &format!("redis://{}", chaos.addr()), &[]).await;
        Self { upstream, redis, chaos, a, b }
    }

    fn lose(&self, loss: Loss) {
        match loss {
            Loss::Message => self.chaos.set(Fault::Deaf),
            Loss::BlackHole => self.chaos.set(Fault::Silence),
            Loss::Cut => self.chaos.set(Fault::Reset),
        }
    }

    /// Forgets what is selected, or this key, at the first replica, as soon as that can; returns when it was said to be done, and
    /// how many went.
    async fn forget(&self, selection: &Value) -> (Instant, u64) {
        until("it can forget", Duration::from_secs(15), async || {
            let (status, said) = match selection.as_str() {
                Some(key) => self.a.admin_delete(&format!("/admin/v1/refusals/{key}")).await,
                None => self.a.admin_post("/admin/v1/refusals/forget", selection).await,
            };
            assert!(status == 200 || status == 503, "{said}");
            (status == 200).then(|| (Instant::now(), said["forgotten"].as_u64().unwrap()))
        })
        .await
    }
}

/// Waits until a gateway uses its store again.
async fn comes_back(gateway: &Gateway) {
    until("it comes back", Duration::from_secs(15), async || {
        (gateway.admin_get("/readyz").await.1["store"] == "ok").then_some(())
    })
    .await;
}

#[tokio::test]
async fn slow_a_forget_that_is_not_heard_holds_within_five_seconds() {
    let world = World::start().await;
    let World { upstream, chaos, a, b, .. } = &world;
    let mut asked = [0, 0];
    for (n, (loss, selection)) in [
        (Loss::Message, Value::Null),
        (Loss::Message, json!({"upstream": "doc-classifier"})),
        (Loss::BlackHole, json!({"all": true})),
    ]
    .into_iter()
    .enumerate()
    {
        let document = random_document(n as u64, 512);
        upstream.always(r400());
        assert!(!post(a, &document).await.is_hit());
        let calls = upstream.calls();
        // the copy is as young as can be
        let hit = post(b, &document).await;
        assert!(hit.is_hit() && upstream.calls() == calls);
        upstream.always(Reply::status(200).body("fine"));
        world.lose(loss);
        let key = hit.header("x-negative-cache-entry").map(Value::from).unwrap();
        let selection = if selection.is_null() { key } else { selection };
        let (forgotten, count) = world.forget(&selection).await;
        assert_eq!(count, 1);
        let mut replays = 0;
        let fine = loop {
            let began = forgotten.elapsed();
            let answer = post(b, &document).await;
            if !answer.is_hit() {
                break answer;
            }
            replays += 1;
            assert!(began < FRESH, "{loss:?}: replayed {began:?} after it was forgotten");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        // what is tested is the near copy, so it has to be there
        assert!(replays > 0, "{loss:?}");
        assert_eq!((fine.status, fine.text()), (200, "fine".to_owned()));
        assert_eq!(upstream.calls(), calls + 1, "{loss:?}: one call for the first that was not replayed");
        chaos.set(Fault::None);
        // the one that forgot has nothing either
        assert_eq!(post(a, &document).await.text(), "fine");
        assert_eq!(upstream.calls(), calls + 2);
        asked[0] += 2;
        asked[1] += replays + 2;
        comes_back(b).await;
    }
    settle(a, asked[0]).await;
    settle(b, asked[1]).await;
}

#[tokio::test]
async fn a_connection_that_is_lost_around_a_forget_leaves_no_copy() {
    let world = World::start().await;
    let World { upstream, redis, chaos, a, b } = &world;
    for (n, kill) in [true, false].into_iter().enumerate() {
        let document = random_document(n as u64, 512);
        upstream.always(r400());
        assert!(!post(a, &document).await.is_hit());
        // the second time it may have to come back first
        until("it is replayed", Duration::from_secs(15), async || {
            post(b, &document).await.is_hit().then_some(())
        })
        .await;
        let calls = upstream.calls();
        upstream.always(Reply::status(200).body("fine"));
        if kill {
            // of both: the one that forgets comes back for it
            redis.ask(&["client", "kill", "type", "pubsub"]);
        } else {
            world.lose(Loss::Cut);
        }
        let (forgotten, count) = world.forget(&json!({"all": true})).await;
        assert_eq!(count, 1);
        loop {
            let began = forgotten.elapsed();
            if !post(b, &document).await.is_hit() {
                break;
            }
            assert!(began < Duration::from_secs(1), "kept over a lost connection");
        }
        assert_eq!(upstream.calls(), calls + 1);
        chaos.set(Fault::None);
        assert_eq!(post(a, &document).await.text(), "fine");
    }
}

#[tokio::test]
async fn slow_an_attempt_from_before_a_forget_that_was_not_heard_records_nothing() {
    let document = random_document(1, 512);
    for (loss, selection) in [
        (Loss::Message, json!({"upstream": "doc-classifier", "status": 400})),
        (Loss::BlackHole, json!({"document": sha256_hex(&[&document])})),
        (Loss::Cut, json!({"all": true})),
    ] {
        let world = World::start().await;
        let World { upstream, chaos, a, b, .. } = &world;
        let gate = Gate::new();
        upstream.always(r400().wait_for(&gate));
        let attempt = send(b, &document);
        gate.wait_waiting(1).await;
        world.lose(loss);
        assert_eq!(world.forget(&selection).await.1, 0, "there is nothing yet");
        gate.open();
        let answer = attempt.await.unwrap();
        assert_eq!((answer.status, answer.is_hit()), (400, false));
        assert_eq!(upstream.calls(), 1);
        chaos.set(Fault::None);
        // what could not be told then is told now, and is barred all the same
        comes_back(b).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(a.metric("gateway_negative_cache_entries", &[]).await, 0.0, "{loss:?}");
        upstream.always(Reply::status(200).body("fine"));
        for (n, gateway) in [b, a].into_iter().enumerate() {
            assert_eq!(post(gateway, &document).await.text(), "fine", "{loss:?}");
            assert_eq!(upstream.calls(), 2 + n as u64);
        }
        settle(a, 1).await;
        settle(b, 2).await;
    }
}

/// How often, of so many times, a replica that waited for another's attempt went on without another look once that had ended without
/// a verdict.
async fn told(world: &World, deaf: bool) -> usize {
    let World { upstream, redis, chaos, a, b } = world;
    let (look, release) = (script(redis, LOOK), script(redis, RELEASE));
    let mut told = 0;
    for n in 0..ROUNDS {
        let document = random_document((2 * n + usize::from(deaf)) as u64, 512);
        let (gate, calls) = (Gate::new(), upstream.calls());
        let first = Reply::status(503).wait_for(&gate);
        upstream.by(move |_, call| if call == 1 { first.clone() } else { Reply::status(200) });
        let monitor = redis.monitor();
        let looks = || monitor.lines(redis).iter().filter(|line| runs(line, &look)).count();
        let leader = send(a, &document);
        gate.wait_waiting(1).await;
        if deaf {
            world.lose(Loss::Message);
        }
        let waiting = send(b, &document);
        until("the other one has looked", Duration::from_secs(10), async || (looks() >= 2).then_some(()))
            .await;
        assert_eq!(upstream.calls(), calls + 1);
        gate.open();
        assert_eq!((leader.await.unwrap().status, waiting.await.unwrap().status), (503, 200));
        assert_eq!(upstream.calls(), calls + 2);
        let lines = monitor.lines(redis);
        let released = lines.iter().position(|line| runs(line, &release)).unwrap();
        told += usize::from(!lines[released..].iter().any(|line| runs(line, &look)));
        if deaf {
            chaos.set(Fault::None);
            comes_back(b).await;
        }
    }
    told
}

/// No clock says whether it was the message: without it, the one that waits has to look before it may go, and with it there is nothing
/// to look for. In a round now and then it may happen to look in the very moment in which it is told.
#[tokio::test]
async fn who_waits_on_another_replica_is_told_and_does_not_have_to_look() {
    let world = World::start().await;
    assert!(told(&world, false).await > ROUNDS / 2);
    assert!(told(&world, true).await <= ROUNDS / 2);
}
