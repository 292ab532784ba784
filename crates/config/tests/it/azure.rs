//! Azure Document Intelligence: how it is mounted, polled and remembered, and by which address callers know the gateway.

use std::time::Duration;

use nevertwice_config::checked::{Adapter, Checked, Drive, Facade};

use super::{good, load, problems, refused, top, warned};

/// One upstream with these keys, and lines at the top level.
fn di(keys: &str, lines: &str) -> String {
    format!("{lines}\nupstreams: [{{name: di, base_url: https://h.example, {keys}}}]\n")
}

fn facade(keys: &str) -> String {
    di(&format!("adapter: azuredi-facade, {keys}"), "")
}

#[test]
fn every_adapter_has_a_facade_and_a_drive() {
    use Adapter::{AzureDi, AzureDiFacade, Classify, GpuServerJob, OpenAi, SyncFacade};
    for (name, adapter, facade, drive) in [
        ("sync-facade", SyncFacade, Facade::Sync, Drive::OnePost),
        ("openai", OpenAi, Facade::OpenAi, Drive::OnePost),
        ("azuredi-facade", AzureDiFacade, Facade::AzureDi, Drive::SubmitAndPoll),
        ("classify", Classify, Facade::Sync, Drive::OnePost),
        ("azure-di", AzureDi, Facade::AzureDi, Drive::SubmitAndPoll),
        ("gpuserver-job", GpuServerJob, Facade::Sync, Drive::JobApi),
    ] {
        let checked = good(&di(&format!("adapter: {name}"), ""));
        let upstream = &checked.upstreams[0];
        assert_eq!((upstream.adapter, upstream.adapter.name()), (adapter, name));
        assert_eq!((adapter.facade(), adapter.drive()), (facade, drive), "{name}");
        let for_jobs = [Classify, AzureDi, GpuServerJob].contains(&adapter);
        assert_eq!(adapter.for_jobs(), for_jobs);
        let mount = if for_jobs { None } else { Some("/di") };
        assert_eq!((upstream.mount.as_deref(), checked.jobs.is_some()), (mount, for_jobs), "{name}");
        let mounted = good(&di(&format!("adapter: {name}, mount: /x"), ""));
        assert_eq!(mounted.upstreams[0].mount.as_deref(), Some("/x"));
    }
}

#[test]
fn how_it_is_polled() {
    let usual = &good(&facade("")).upstreams[0];
    assert_eq!(usual.poll_interval, Duration::from_secs(1));
    assert_eq!(usual.operation_timeout, Duration::from_secs(600));
    assert!(usual.poll_hosts.is_empty());
    let keys = "poll_hosts: [West.API.example, 'h:8443', '[2001:DB8::1]', '[::1]:9'], poll_interval_ms: 10, operation_timeout_ms: 500";
    let own = &good(&di(&format!("adapter: azuredi-facade, {keys}"), "jobs: {}")).upstreams[0];
    let hosts: Vec<_> = own.poll_hosts.iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["west.api.example", "h:8443", "[2001:db8::1]", "[::1]:9"]);
    assert_eq!(
        (own.poll_interval, own.operation_timeout),
        (Duration::from_millis(10), Duration::from_millis(500))
    );
    good(&di("adapter: azure-di, poll_hosts: [a], poll_interval_ms: 10, operation_timeout_ms: 20", ""));
    good(&di("adapter: gpuserver-job, poll_interval_ms: 10, operation_timeout_ms: 20", ""));
}

#[test]
fn what_is_no_poll_host() {
    for (host, words) in [
        ("https://h", "this is a URL; write the host alone"),
        ("h/path", "this is not a host"),
        ("'h?x'", "this is not a host"),
        ("'a b'", "this is not a host"),
        ("''", "no host"),
        ("':80'", "no host"),
        ("user@h", "no user name or password"),
        ("'*.example'", "there are no wildcards"),
        ("'h:'", "no port after the `:`"),
        ("'h:0'", "the port is not a number from 1 to 65535"),
        ("'h:x'", "the port is not a number from 1 to 65535"),
        ("'::1'", "brackets"),
        ("'[::1'", "the bracket is not closed"),
        ("'[fe80::1%25lo]'", "zone ids"),
        ("bücher.example", "this is not a host"),
        ("5", "expected a text"),
    ] {
        refused(&facade(&format!("poll_hosts: [{host}]")), "upstreams[0].poll_hosts[0]", words);
    }
    refused(
        &facade("poll_hosts: [h, a, H]"),
        "upstreams[0].poll_hosts[2]",
        "the same host is listed at line 2 already",
    );
}

#[test]
fn keys_that_mean_nothing_to_an_adapter_are_refused() {
    for (adapter, key) in [
        ("azuredi-facade", "sync_paths: [/x]"),
        ("azuredi-facade", "strict_paths: true"),
        ("azure-di", "sync_paths: [/x]"),
        ("azure-di", "strict_paths: true"),
        ("gpuserver-job", "sync_paths: [/x]"),
        ("gpuserver-job", "strict_paths: true"),
        ("gpuserver-job", "poll_hosts: [h]"),
        ("classify", "poll_hosts: [h]"),
        ("classify", "poll_interval_ms: 20"),
        ("classify", "operation_timeout_ms: 2000"),
        ("openai", "poll_hosts: [h]"),
        ("openai", "poll_interval_ms: 20"),
        ("sync-facade", "poll_hosts: [h]"),
        ("sync-facade", "operation_timeout_ms: 2000"),
    ] {
        let name = key.split(':').next().unwrap_or_default();
        let words = format!("`{name}` has no meaning for the adapter `{adapter}`; remove it");
        for mount in ["", "mount: /m, "] {
            refused(
                &di(&format!("adapter: {adapter}, {mount}{key}"), ""),
                &format!("upstreams[0].{name}"),
                &words,
            );
        }
    }
    // an adapter that could not be read says nothing of them
    refused(&di("adapter: azuredi, sync_paths: [/x], poll_hosts: [h]", ""), "upstreams[0].adapter", "azure");
    // all at once
    let all = problems(&di(
        "adapter: azure-di, sync_paths: [/x], strict_paths: true, poll_hosts: ['*'], poll_interval_ms: 1",
        "",
    ));
    assert_eq!(all.len(), 4, "{all:#?}");
}

#[test]
fn polls_come_before_the_time_is_over() {
    let words = "lower `poll_interval_ms` or raise `operation_timeout_ms`";
    refused(&di("adapter: azure-di, poll_interval_ms: 600000", ""), "upstreams[0].poll_interval_ms", words);
    refused(
        &di("adapter: azure-di, operation_timeout_ms: 1000", ""),
        "upstreams[0].operation_timeout_ms",
        words,
    );
    refused(
        &di("adapter: azure-di, poll_interval_ms: 9, operation_timeout_ms: 5", ""),
        "upstreams[0].poll_interval_ms",
        "write a number from 10 to 3600000",
    );
    warned(
        &facade("poll_interval_ms: 20"),
        "upstreams[0].poll_interval_ms",
        "it is for jobs, and there are none",
    );
}

#[test]
fn it_has_the_memory_by_its_own_rules() {
    let memory = |adapter: &str, rest: &str| {
        let text = di(&format!("adapter: {adapter}, {rest}"), "negative_cache: {enabled: true}");
        good(&text).upstreams.remove(0).memory.map(|m| m.profile.name().to_owned())
    };
    let di = Some("azure-document-intelligence".to_owned());
    assert_eq!(memory("azuredi-facade", ""), di);
    assert_eq!(memory("azure-di", ""), di);
    assert_eq!(memory("azuredi-facade", "negative_cache: {enabled: false}"), None);
    let older = memory("azure-di", "negative_cache: {profile: azure-form-recognizer-v2.1}");
    assert_eq!(older.as_deref(), Some("azure-form-recognizer-v2.1"));
    for adapter in ["classify", "gpuserver-job"] {
        assert_eq!(memory(adapter, "").as_deref(), Some("status"), "{adapter}");
    }
    assert!(good(&facade("")).upstreams[0].memory.is_none());
}

#[test]
fn the_address_by_which_callers_know_the_gateway() {
    let public = |value: &str| top(&format!("public_base_url: {value}"));
    let there = |value: &str| good(&public(value)).public_base_url.map(|uri| uri.to_string());
    assert_eq!(good(super::LEAST).public_base_url, None);
    assert_eq!(there("https://GW.example:443/").as_deref(), Some("https://gw.example/"));
    assert_eq!(there("http://gw:8080/ai/x/").as_deref(), Some("http://gw:8080/ai/x"));
    assert_eq!(there("\"http://[::1]:1\"").as_deref(), Some("http://[::1]:1/"));
    for (value, words) in [
        ("gw.example", "begin with http:// or https://"),
        ("ftp://gw", "neither http nor https"),
        ("https://u:p@gw", "has no user name or password; remove it"),
        ("'https://gw/?a=1'", "no query or fragment"),
        ("'https://gw/#a'", "no query or fragment"),
        ("https://gw/../x", "segments"),
        ("https://gw:99999", "the port is not a number"),
        ("'https://'", "the URL has no host"),
        ("[https://gw]", "expected a text, found a list"),
    ] {
        refused(&public(value), "public_base_url", words);
    }
    let all = problems(&public("https://u:p@gw"));
    assert!(!all[0].cure.contains("credential"), "{all:?}");
}

#[test]
fn proxies_whose_word_counts() {
    let hops = |value: &str| top(&format!("trusted_hops: {value}"));
    let there = |checked: Checked| checked.trusted_hops.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(good(super::LEAST).trusted_hops.is_empty() && good(&hops("[]")).trusted_hops.is_empty());
    let listed = there(good(&hops("[10.0.0.0/8, 192.0.2.7, '::1', '2001:DB8::/32']")));
    assert_eq!(listed, ["10.0.0.0/8", "192.0.2.7/32", "::1/128", "2001:db8::/32"]);
    for (value, words) in [
        ("proxy.internal", "names are not looked up"),
        ("10.0.0.0/33", "not an IP address or a block"),
        ("10.0.0.0/-1", "not an IP address or a block"),
        ("10.0.0/8", "not an IP address or a block"),
        ("'192.0.2.7:80'", "not an IP address or a block"),
        ("'[::1]'", "not an IP address or a block"),
        ("''", "not an IP address or a block"),
        ("10.0.0.1/8", "write 10.0.0.0/8 for the whole block, or 10.0.0.1 for one address"),
        ("'::ffff:10.0.0.1'", "write it as an IPv4 address"),
        ("'::ffff:10.0.0.0/104'", "write it as an IPv4 address"),
        ("10", "expected a text"),
    ] {
        refused(&hops(&format!("[{value}]")), "trusted_hops[0]", words);
    }
    refused(&hops("[192.0.2.7, 192.0.2.7/32]"), "trusted_hops[1]", "the same is listed at line 1 already");
    refused(&hops("10.0.0.0/8"), "trusted_hops", "expected a list");
    for all in ["0.0.0.0/0", "'::/0'"] {
        warned(&hops(&format!("[{all}]")), "trusted_hops[0]", "whoever connects is believed");
    }
}

#[test]
fn links_made_of_the_host_header_are_warned_of() {
    let open = "listen: 0.0.0.0:8080";
    for keys in ["adapter: azuredi-facade", "adapter: azure-di, mount: /di"] {
        warned(&di(keys, open), "public_base_url", "will be made of the `Host` header");
        warned(&di(keys, "listen: [127.0.0.1:1, '[2001:db8::1]:2']"), "public_base_url", "`Host` header");
        good(&di(keys, "listen: ['127.0.0.1:1', '[::1]:2']"));
        good(&di(keys, "listen: 0.0.0.0:8080\npublic_base_url: https://gw"));
    }
    // where there are no such links, there is nothing to say
    good(&di("adapter: azure-di", open));
    good(&di("adapter: sync-facade, sync_paths: [/x]", open));
    // a misspelt key explains it
    let text = di("adapter: azuredi-facade", "listen: 0.0.0.0:8080\npublic_base: https://gw");
    refused(&text, "public_base", "did you mean `public_base_url`?");
    assert!(load(&text).is_err());
}
