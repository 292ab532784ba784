//! Operations.

use std::sync::Arc;

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::entry::Selector;
use nevertwice_domain::operation::{Operation, Whereabouts};
use tokio::task::JoinSet;

use super::{Bench, Work, samples};
use crate::suite::samples::status;
use crate::work::MAX_MINTED;

impl<S: Work> Bench<S> {
    /// Puts the `n`th operation; it is due from now on.
    async fn put_due(&self, n: u64) -> Operation {
        let mut operation = samples::operation(n, self.now());
        if let Whereabouts::Upstream { pending: Some(pending), .. } = &mut operation.at {
            pending.next_look_at = self.now();
        }
        self.put(&operation).await;
        operation
    }

    async fn operation(&self, n: u64) -> Option<Operation> {
        self.store.operation(&samples::operation_id(n)).await.expect("operation")
    }

    async fn is_pending(&self, n: u64) -> bool {
        self.operation(n).await.is_some_and(|operation| samples::pending(&operation).is_some())
    }

    async fn settle(&self, n: u64) -> bool {
        self.store.settle(&samples::operation_id(n)).await.expect("settle")
    }
}

/// An operation that is answered from the memory.
fn known(n: u64, now: Millis) -> Operation {
    let at = Whereabouts::Known {
        fingerprint: samples::fingerprint(n),
        body: Bytes::from_static(b"{\"status\":\"failed\",\"\xff\":0}"),
        content_type: Some("application/json".into()),
        recorded_at: Millis(1_600_000_000_000),
        valid_until: now.plus_ms(1),
    };
    Operation { at, ..samples::operation(n, now) }
}

pub(super) async fn what_was_put_is_there_as_it_was<S: Work>(bench: &Bench<S>) {
    let (upstream, known) = (samples::operation(1, bench.now()), known(2, bench.now()));
    let mut bare = samples::operation(3, bench.now());
    if let Whereabouts::Upstream { pending: Some(pending), .. } = &mut bare.at {
        (pending.content_type, pending.profile, pending.fence) = (None, None, None);
        pending.referenced = true;
    }
    for operation in [&upstream, &known, &bare] {
        bench.put(operation).await;
    }
    assert_eq!(bench.operation(1).await, Some(upstream));
    assert_eq!(bench.operation(2).await, Some(known));
    assert_eq!(bench.operation(3).await, Some(bare));
    assert_eq!(bench.operation(4).await, None);
}

pub(super) async fn an_operation_that_expired_is_not_there<S: Work>(bench: &Bench<S>) {
    bench.put_due(1).await;
    bench.clock.advance_ms(samples::LIFE_MS.cast_signed() - 1);
    assert!(bench.operation(1).await.is_some());
    bench.clock.advance_ms(1);
    assert_eq!(bench.operation(1).await, None);
    assert!(!bench.settle(1).await);
    assert_eq!(bench.due(1, 10).await, []);
}

pub(super) async fn a_removed_operation_is_gone<S: Work>(bench: &Bench<S>) {
    bench.put_due(1).await;
    bench.put_due(2).await;
    for _ in 0..2 {
        bench.store.remove(&samples::operation_id(1)).await.expect("remove");
    }
    assert_eq!(bench.operation(1).await, None);
    let due: Vec<_> = bench.due(1, 10).await.iter().map(|operation| operation.id).collect();
    assert_eq!(due, [samples::operation_id(2)]);
}

pub(super) async fn one_of_many_settles<S: Work>(bench: &Bench<S>) {
    bench.put_due(1).await;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(&bench.store);
        tasks.spawn(async move { store.settle(&samples::operation_id(1)).await.expect("settle") });
    }
    let told: Vec<bool> = tasks.join_all().await;
    assert_eq!(told.into_iter().filter(|first| *first).count(), 1);
    let settled = bench.operation(1).await.expect("it stays");
    assert_eq!(samples::pending(&settled), None);
    assert!(matches!(settled.at, Whereabouts::Upstream { .. }), "where it is stays known");
    bench.put(&known(2, bench.now())).await;
    assert!(!bench.settle(2).await, "nothing is pending of one that is known");
    assert!(!bench.settle(3).await, "nor of one that is not there");
}

pub(super) async fn what_is_due_is_handed_to_one_alone<S: Work>(bench: &Bench<S>) {
    for n in 0..40 {
        bench.put_due(n).await;
    }
    bench.put(&samples::operation(100, bench.now())).await;
    bench.put(&known(101, bench.now())).await;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(&bench.store);
        let (now, again_at) = (bench.now(), bench.later(1000));
        tasks.spawn(async move { store.due(now, again_at, 7).await.expect("due") });
    }
    let mut seen: Vec<_> =
        tasks.join_all().await.into_iter().flatten().map(|operation| operation.id).collect();
    seen.sort_unstable();
    let mut expected: Vec<_> = (0..40).map(samples::operation_id).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

pub(super) async fn due_comes_again_and_counts_looks<S: Work>(bench: &Bench<S>) {
    bench.put(&samples::operation(1, bench.now())).await;
    assert_eq!(bench.due(1000, 10).await, [], "its time has not come");
    for looks in 1..4 {
        bench.clock.advance_ms(1000);
        let due = bench.due(1000, 10).await;
        let pending = due.first().and_then(samples::pending).expect("it is due");
        assert_eq!((due.len(), pending.looks, pending.next_look_at), (1, looks, bench.later(1000)));
        assert_eq!(bench.operation(1).await.as_ref(), due.first(), "and so it is kept");
        assert_eq!(bench.due(1000, 10).await, []);
    }
    for (n, at) in [(2, 300), (3, 100), (4, 200)] {
        let mut operation = samples::operation(n, bench.now());
        if let Whereabouts::Upstream { pending: Some(pending), .. } = &mut operation.at {
            pending.next_look_at = bench.later(at);
        }
        bench.put(&operation).await;
    }
    bench.clock.advance_ms(500);
    let mut order = Vec::new();
    for limit in [2, 2] {
        order.extend(bench.due(5000, limit).await.iter().map(|operation| operation.id));
    }
    assert_eq!(order, [3, 4, 2].map(samples::operation_id), "the longest due come first");
}

pub(super) async fn what_is_settled_is_not_due<S: Work>(bench: &Bench<S>) {
    bench.put_due(1).await;
    bench.put_due(2).await;
    assert!(bench.settle(1).await);
    assert_eq!(bench.due(1000, 10).await.len(), 1);
    assert!(bench.settle(2).await, "between two looks");
    bench.clock.advance_ms(1000);
    assert_eq!(bench.due(1000, 10).await, []);
}

pub(super) async fn the_gateways_own_operations_make_room_for_each_other_alone<S: Work>(bench: &Bench<S>) {
    const MORE: u64 = 5;
    let at_upstreams = MAX_MINTED + MORE..MAX_MINTED + 2 * MORE;
    for n in at_upstreams.clone() {
        bench.put(&samples::operation(n, bench.now())).await;
    }
    for n in 0..MORE {
        bench.put(&known(n, bench.now())).await;
    }
    let mut tasks = JoinSet::new();
    for task in 0..100 {
        let (store, now) = (Arc::clone(&bench.store), bench.now());
        tasks.spawn(async move {
            for n in (MORE + task..MAX_MINTED).step_by(100) {
                store.put(&known(n, now)).await.expect("put");
            }
        });
    }
    tasks.join_all().await;
    assert!(bench.operation(0).await.is_some(), "so many there may be");
    for n in 0..MORE {
        bench.put(&known(MAX_MINTED + n, bench.now())).await;
        assert_eq!(bench.operation(n).await, None, "the oldest made room");
        assert!(bench.operation(MAX_MINTED + n).await.is_some());
    }
    assert!(bench.operation(MORE).await.is_some());
    bench.put(&samples::operation(MORE, bench.now())).await;
    bench.put(&known(0, bench.now())).await;
    assert!(
        bench.operation(MORE + 1).await.is_some(),
        "the place of one that is of another kind now is free"
    );
    for n in at_upstreams {
        assert!(bench.operation(n).await.is_some(), "an operation at the upstream stays");
    }
}

pub(super) async fn a_forget_ends_what_it_might_match<S: Work>(bench: &Bench<S>) {
    let key = Selector::key(samples::fingerprint(1));
    let document = Selector { document: Some(samples::document(1)), ..Selector::default() };
    let upstream = |name| Selector { upstream: Some(samples::upstream(name)), ..Selector::default() };
    let cases = [
        (key.clone(), [false, true]),
        (Selector { upstream: Some(samples::upstream("tika")), ..key.clone() }, [true, true]),
        (Selector { document: Some(samples::document(2)), ..key.clone() }, [true, true]),
        (Selector { status: Some(status(400)), before: Some(Millis(1)), ..key }, [false, true]),
        (document, [false, true]),
        (upstream("ocr"), [false, false]),
        (upstream("tika"), [true, true]),
        (Selector { status: Some(status(422)), ..Selector::default() }, [false, false]),
        (Selector { before: Some(bench.now()), ..Selector::default() }, [false, false]),
    ];
    for (which, expected) in cases {
        bench.put_due(1).await;
        bench.put_due(2).await;
        bench.store.forget_pending(&which).await.expect("forget");
        assert_eq!([bench.is_pending(1).await, bench.is_pending(2).await], expected, "{which:?}");
        let due = expected.iter().filter(|pending| **pending).count();
        assert_eq!(bench.due(1000, 10).await.len(), due, "{which:?}");
    }
}
