//! Where the address of an operation may point, and what the gateway's own is made of.

use nevertwice_testkit::client::h2_post;
use nevertwice_testkit::{Reply, Upstream};

use super::*;

/// Rule 54: an upstream's answer never sends the gateway, or a client, to another place.
#[tokio::test]
async fn an_address_elsewhere_is_malformed_and_nobody_connects_to_it() {
    let di = AzureDi::start().await;
    let elsewhere = AzureDi::beside(&di).await;
    let gateway = facade(&di, &[]).await;
    let (own, evil) = (di.addr(), elsewhere.addr());
    let locations = [
        // another port, host, scheme
        format!("http://{evil}@PATH@"),
        format!("http://localhost:{}@PATH@", evil.port()),
        format!("http://localhost:{}@PATH@", own.port()),
        "https://@AUTHORITY@@PATH@".to_owned(),
        "ftp://@AUTHORITY@@PATH@".to_owned(),
        // the own authority as a part of another
        format!("http://@AUTHORITY@@{evil}@PATH@"),
        format!("http://{evil}@@AUTHORITY@@PATH@"),
        "http://user:word@@AUTHORITY@@PATH@".to_owned(),
        "http://@AUTHORITY@.evil.test@PATH@".to_owned(),
        "http://@AUTHORITY@0@PATH@".to_owned(),
        format!("http://@AUTHORITY@\\@{evil}@PATH@"),
        format!("//{evil}@PATH@"),
        // no address of an operation
        "http://@AUTHORITY@/documentintelligence/info".to_owned(),
        "http://@AUTHORITY@".to_owned(),
        "http://".to_owned(),
        "nonsense".to_owned(),
        String::new(),
    ];
    for (n, location) in locations.iter().enumerate() {
        di.locate(location);
        let answer = submit(&gateway, ANALYZE, &DOC[..]).await;
        assert_own(&answer, 502, "UPSTREAM_MALFORMED");
        assert_eq!(answer.header("operation-location"), None, "{location}");
        let all = format!("{}{}", String::from_utf8_lossy(&answer.head_raw), answer.text());
        assert!(!all.contains(&evil.to_string()), "{location}: {all}");
        assert_eq!(di.submits().len(), n + 1);
    }
    assert_eq!((elsewhere.connections(), di.polls().len()), (0, 0));
    let lines = settle(&gateway, locations.len()).await;
    assert!(lines.iter().all(|line| line["code"] == "UPSTREAM_MALFORMED"), "{lines:#?}");
}

#[tokio::test]
async fn no_address_and_two_addresses_are_malformed() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let home = format!("{}/documentintelligence/documentModels/m/analyzeResults/7f", di.url());
    let two = Reply::status(202)
        .header("Operation-Location", &home)
        .header("Operation-Location", format!("{home}0"));
    for reply in [Reply::status(202), two] {
        di.upstream.always(reply);
        assert_own(&submit(&gateway, ANALYZE, &DOC[..]).await, 502, "UPSTREAM_MALFORMED");
    }
    assert_eq!(di.upstream.calls(), 2);
}

/// A service may answer from a regional host; which ones may be is configured.
#[tokio::test]
async fn a_listed_host_is_polled_and_no_other() {
    let di = AzureDi::start().await;
    let (region, other) = (AzureDi::beside(&di).await, AzureDi::beside(&di).await);
    let hosts = format!("poll_hosts: [\"{}\"]", region.addr());
    let gateway = facade(&di, &[("DI", &hosts)]).await;
    di.locate(&format!("{}@PATH@", region.url()));
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "succeeded");
    assert_eq!(call(&gateway, 1, "DELETE", &operation).await.status, 204);
    assert_eq!((region.polls().len(), di.polls().len()), (1, 0));
    di.locate(&format!("{}@PATH@", other.url()));
    assert_own(&submit(&gateway, ANALYZE, &DOC2[..]).await, 502, "UPSTREAM_MALFORMED");
    // listed for http at the scheme of the upstream, not for another
    di.locate(&format!("https://{}@PATH@", region.addr()));
    assert_own(&submit(&gateway, ANALYZE, &DOC2[..]).await, 502, "UPSTREAM_MALFORMED");
    assert_eq!(other.connections(), 0);
}

/// Other calls that answer with an operation: whatever the header says, no client is sent to the upstream.
#[tokio::test]
async fn no_answer_shows_the_upstreams_own_address() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let host = di.addr().to_string();
    for (path, kind) in [
        (
            "/documentintelligence/documentModels/m:analyzeBatch?api-version=2024-11-30",
            "documentModels/m/analyzeBatchResults",
        ),
        ("/documentintelligence/documentModels:build?api-version=2024-11-30", "operations"),
        ("/formrecognizer/v2.1/custom/models/m/copy", "custom/models/m/copyResults"),
    ] {
        let top = path.split('/').nth(1).unwrap();
        let theirs = format!("{}/{top}/{kind}/7f?api-version=2024-11-30", di.url());
        di.upstream
            .always(Reply::status(202).header("Operation-Location", &theirs).header("Retry-After", "1"));
        let answer = submit_as(&gateway, 1, path, "application/json", "{}").await;
        let head = String::from_utf8_lossy(&answer.head_raw).into_owned();
        assert!(!head.contains(&host), "{path}: {head}");
    }
}

#[tokio::test]
async fn without_a_public_address_it_is_the_host_that_was_asked() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let asked = |host: &str| {
        let request = Request::post(&format!("/di{ANALYZE}")).bearer("tok-1").header("Host", host);
        request
            .header("X-Forwarded-Host", "evil.test")
            .header("X-Forwarded-Proto", "https")
            .header("Forwarded", "host=evil.test;proto=https")
            .body(&DOC[..])
    };
    for host in ["gw.test", "gw.test:8443", "10.0.0.1:80", "[::1]:8080"] {
        // nobody said that this peer may speak for others
        let submitted = ask(&gateway, asked(host)).await;
        let operation = operation_below(&submitted, &format!("http://{host}"));
        assert_eq!(poll(&gateway, &operation).await.status, 200);
    }
}

#[tokio::test]
async fn over_http_2_it_is_the_authority() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[]).await;
    let fields = [("authorization", "Bearer tok-1"), ("x-forwarded-host", "evil.test")];
    let submitted = h2_post(gateway.addr, &format!("/di{ANALYZE}"), &fields, &DOC[..]).await;
    let operation = operation(&gateway, &submitted);
    assert_eq!(poll(&gateway, &operation).await.json()["status"], "succeeded");
}

#[tokio::test]
async fn a_trusted_hop_says_what_the_client_asked() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("TOP", "trusted_hops: [\"127.0.0.0/8\"]")]).await;
    let asked = |fields: &[(&str, &str)]| {
        let request = Request::post(&format!("/di{ANALYZE}")).bearer("tok-1").header("Host", "inner.test");
        fields.iter().fold(request, |request, (name, value)| request.header(name, value)).body(&DOC[..])
    };
    let (host, proto) = ("X-Forwarded-Host", "X-Forwarded-Proto");
    for (fields, base) in [
        (&[(host, "gw.test:8443"), (proto, "https")][..], "https://gw.test:8443"),
        (&[(host, "gw.test")], "http://gw.test"),
        (&[(proto, "https")], "https://inner.test"),
        (&[], "http://inner.test"),
    ] {
        let submitted = ask(&gateway, asked(fields)).await;
        let operation = operation_below(&submitted, base);
        assert_eq!(poll(&gateway, &operation).await.status, 200, "{fields:?}");
    }
    // what is no host and no scheme makes no address
    for fields in [
        [(host, "a@evil.test"), (proto, "https")],
        [(host, "evil.test/path?"), (proto, "https")],
        [(host, "gw.test"), (proto, "javascript")],
        [(host, ""), (proto, "")],
    ] {
        let answer = ask(&gateway, asked(&fields)).await;
        let location = answer.header("operation-location").unwrap_or_default();
        let is_safe = ["http://gw.test/di/", "http://inner.test/di/", "https://inner.test/di/"]
            .iter()
            .any(|base| location.starts_with(base));
        assert!(answer.status == 400 || is_safe, "{fields:?}: {} {location:?}", answer.status);
    }
    // what the configuration says, it says for all
    let fixed = "public_base_url: \"https://ocr.example.com\"\ntrusted_hops: [\"127.0.0.0/8\"]";
    let gateway = facade(&di, &[("TOP", fixed)]).await;
    let submitted = ask(&gateway, asked(&[(host, "gw.test"), (proto, "http")])).await;
    operation_below(&submitted, "https://ocr.example.com");
    let with_slash = "public_base_url: \"https://ocr.example.com/a/\"";
    let gateway = facade(&di, &[("TOP", with_slash)]).await;
    let submitted = ask(&gateway, asked(&[])).await;
    operation_below(&submitted, "https://ocr.example.com/a");
}

#[tokio::test]
async fn a_hop_that_is_not_listed_is_not_trusted() {
    let di = AzureDi::start().await;
    let gateway = facade(&di, &[("TOP", "trusted_hops: [\"10.0.0.0/8\"]")]).await;
    let request = Request::post(&format!("/di{ANALYZE}"))
        .bearer("tok-1")
        .header("X-Forwarded-Host", "evil.test")
        .header("X-Forwarded-Proto", "https")
        .body(&DOC[..]);
    let submitted = ask(&gateway, request).await;
    operation(&gateway, &submitted);
}

/// An upstream that redirects a poll sends nobody anywhere.
#[tokio::test]
async fn a_redirected_poll_is_not_followed() {
    let (di, elsewhere) = (AzureDi::start().await, Upstream::start().await);
    let gateway = facade(&di, &[]).await;
    let operation = operation(&gateway, &submit(&gateway, ANALYZE, &DOC[..]).await);
    di.upstream.always(Reply::status(302).header("Location", format!("{}/x", elsewhere.url())));
    poll(&gateway, &operation).await;
    assert_eq!(elsewhere.connections(), 0);
}
