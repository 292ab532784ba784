//! Trouble with the store's disk costs memory, never a request: a refusal that cannot be recorded is answered live, counted,
//! and remembered again once there is room.

use std::fs;
use std::time::Duration;

use nevertwice_testkit::{DOC, DOC2, Gateway, Reply, Upstream, r400, random_document};

use crate::bench::{post, settle};
use crate::caller::{CLASSIFY, until};
use crate::tiny_disk::Tiny;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn sr_02_a_full_disk_of_the_store_fails_no_request_and_is_counted() {
    let Some(disk) = Tiny::mount(2 << 10) else { return };
    let upstream = Upstream::start().await;
    upstream.by(|seen, _| if seen.body_len == 3 { Reply::status(200) } else { r400() });
    let yaml = Gateway::simple_yaml(&upstream.url(), &[]);
    let yaml = yaml.replace("@DIR@/data", &disk.path("data").display().to_string());
    let mut gateway = Gateway::start(&yaml).await;
    let mut requests = 0;
    assert!(!post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    assert!(post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    requests += 2;

    let filler = disk.path("filler");
    // All that is left; that the last bytes do not fit is the point.
    let _ = fs::write(&filler, vec![0; 4 << 20]);
    let mut live = 0;
    while gateway.metric("gateway_negative_cache_store_errors_total", &[("op", "record")]).await == 0.0 {
        let answer = post(&gateway, CLASSIFY, random_document(requests, 1_000)).await;
        assert_eq!((answer.status, answer.is_hit()), (400, false));
        requests += 1;
        live += 1;
        assert!(live < 3_000, "the disk is never full");
    }
    // The one that failed goes up each time, as before there was a memory; what is known is still replayed.
    let last = random_document(requests - 1, 1_000);
    let calls = upstream.calls();
    for _ in 0..3 {
        let answer = post(&gateway, CLASSIFY, last.clone()).await;
        assert_eq!(
            (answer.status, answer.text().as_str(), answer.is_hit()),
            (400, "{\"error\":\"unreadable page\"}", false)
        );
    }
    assert_eq!(upstream.calls(), calls + 3);
    assert!(post(&gateway, CLASSIFY, &DOC[..]).await.is_hit());
    assert_eq!(post(&gateway, CLASSIFY, &b"new"[..]).await.status, 200);
    requests += 5;
    assert!(gateway.metric("gateway_negative_cache_not_recorded_total", &[("reason", "store")]).await >= 4.0);
    assert!(gateway.is_ready().await, "degraded, and in service");

    fs::remove_file(&filler).unwrap_or_else(|error| unreachable!("{error}"));
    let tried = std::cell::Cell::new(0);
    until("refusals to be remembered again", SOON, async || {
        tried.set(tried.get() + 1);
        post(&gateway, CLASSIFY, last.clone()).await.is_hit().then_some(())
    })
    .await;
    requests += tried.get();
    settle(&gateway, usize::try_from(requests).unwrap_or_default()).await;

    // And the file is sound.
    gateway.restart().await;
    assert!(
        post(&gateway, CLASSIFY, last).await.is_hit() && post(&gateway, CLASSIFY, &DOC[..]).await.is_hit()
    );
    assert!(!post(&gateway, CLASSIFY, &DOC2[..]).await.is_hit());
    settle(&gateway, usize::try_from(requests).unwrap_or_default() + 3).await;
}
