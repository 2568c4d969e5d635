//! Requests of every gateway, and of callers who would rather not be counted.

use serde_json::Value;
use serde_json::json;

use super::*;
use crate::catalogue::path::FieldPath;

fn gateway(value: &Value) -> Gateway {
    let profile = serde_json::from_value(value.clone()).expect("of the form");
    Gateway::compile(&FieldPath::root(), &profile).expect("a profile")
}

/// A request from `hop` to the path `below` a profile's with these headers.
fn ask<'g>(
    gateway: &'g Gateway,
    hop: &str,
    target: &str,
    headers: &[(&str, &str)],
) -> Result<Wanted<'g>, Fault> {
    let headers: Vec<(&str, &[u8])> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    let (below, query) = match target.split_once('?') {
        Some((below, query)) => (below, Some(query)),
        None => (target, None),
    };
    gateway.wanted(&Incoming {
        hop: Some(hop.parse().expect("an address")),
        method: "GET",
        below,
        query,
        headers: &headers,
    })
}

fn keys(wanted: &Wanted<'_>) -> Vec<String> {
    wanted
        .keys
        .iter()
        .map(|(label, key)| format!("{label}={key}"))
        .collect()
}

fn everything() -> Gateway {
    gateway(&json!({
        "tenant": "header:X-Tenant",
        "action": "method",
        "keys": { "endpoint": "path", "ip": "client_ip/64", "user": "header:X-User", "doc": "query:doc" },
        "cost": "header:X-Cost",
    }))
}

#[test]
fn an_envoy_asks_with_the_request_itself() {
    let gateway = everything();
    let headers = [("x-tenant", "acme"), ("x-user", "ann"), ("x-cost", "3")];
    let wanted = ask(&gateway, "127.0.0.1", "/v1/sms?doc=a%20b&x=1", &headers).expect("a check");
    assert_eq!(
        (wanted.tenant.as_str(), wanted.action.as_str(), wanted.cost),
        ("acme", "GET", 3)
    );
    assert_eq!(
        keys(&wanted),
        ["doc=a b", "endpoint=/v1/sms", "ip=127.0.0.1", "user=ann"]
    );
}

#[test]
fn an_absent_key_is_left_out_and_an_absent_tenant_is_a_fault() {
    let gateway = everything();
    let wanted = ask(
        &gateway,
        "127.0.0.1",
        "/a",
        &[("x-tenant", "acme"), ("x-user", " ")],
    )
    .expect("a check");
    assert_eq!(keys(&wanted), ["endpoint=/a", "ip=127.0.0.1"]);
    assert_eq!(wanted.cost, 1);
    assert!(
        ask(&gateway, "127.0.0.1", "/a", &[])
            .expect_err("nobody's")
            .contains("tenant")
    );
}

#[test]
fn each_familys_original_request_is_read() {
    let gateway = everything();
    for headers in [
        [
            ("x-tenant", "acme"),
            ("x-forwarded-method", "PUT"),
            ("x-forwarded-uri", "/a/b?doc=7"),
        ],
        [
            ("x-tenant", "acme"),
            ("x-original-method", "PUT"),
            ("x-original-uri", "/a/b?doc=7"),
        ],
        [
            ("x-tenant", "acme"),
            ("x-original-method", "PUT"),
            ("x-original-url", "https://example.org/a/b?doc=7#end"),
        ],
    ] {
        let wanted = ask(&gateway, "127.0.0.1", "?doc=wrong", &headers).expect("a check");
        assert_eq!(wanted.action, "PUT");
        assert_eq!(
            keys(&wanted),
            ["doc=7", "endpoint=/a/b", "ip=127.0.0.1"],
            "{headers:?}"
        );
    }
}

#[test]
fn two_families_at_once_need_a_profile_that_chooses() {
    let both = [
        ("x-tenant", "acme"),
        ("x-original-uri", "/dear"),
        ("x-forwarded-uri", "/cheap"),
    ];
    let everything = everything();
    let fault = ask(&everything, "127.0.0.1", "", &both).expect_err("ambiguous");
    assert!(fault.contains("original"), "{fault}");
    for (original, path) in [
        ("x-original", "/dear"),
        ("x-forwarded", "/cheap"),
        ("request", "/"),
    ] {
        let gateway = gateway(&json!({
            "tenant": "acme", "action": "api", "keys": { "endpoint": "path" }, "original": original,
        }));
        let wanted = ask(&gateway, "127.0.0.1", "", &both).expect("a check");
        assert_eq!(keys(&wanted), [format!("endpoint={path}")], "{original}");
    }
    // Below the profile's path the request is its own word.
    let wanted = ask(&everything, "127.0.0.1", "/real", &both).expect("a check");
    assert!(keys(&wanted).contains(&"endpoint=/real".to_owned()));
}

#[test]
fn an_untrusted_hop_is_believed_nothing() {
    let gateway = everything();
    let spoofed = [
        ("x-tenant", "acme"),
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-uri", "/cheap"),
        ("x-original-method", "PUT"),
    ];
    let wanted = ask(&gateway, "198.51.100.7", "", &spoofed).expect("a check");
    assert_eq!(wanted.action, "GET");
    assert_eq!(keys(&wanted), ["endpoint=/", "ip=198.51.100.7"]);
}

#[test]
fn a_clients_address_is_what_the_last_trusted_hop_saw() {
    let gateway = gateway(&json!({
        "tenant": "acme", "action": "api", "keys": { "ip": "client_ip/64" },
        "trusted_hops": ["127.0.0.0/8", "10.0.0.0/8"],
    }));
    for (told, seen) in [
        (vec![], "127.0.0.1"),
        (vec!["203.0.113.9"], "203.0.113.9"),
        // What stands left of an untrusted address is the client's own invention.
        (vec!["1.1.1.1, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        (vec!["1.1.1.1", "203.0.113.9", "10.0.0.2"], "203.0.113.9"),
        (vec!["10.9.9.9, 10.0.0.2"], "10.9.9.9"),
        (vec!["203.0.113.9:4711"], "203.0.113.9"),
        (vec!["2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
        (vec!["[2001:db8:1:2:3::4]:80"], "2001:db8:1:2::/64"),
        (vec!["::ffff:203.0.113.9"], "203.0.113.9"),
        (vec!["unknown, 10.0.0.2"], "10.0.0.2"),
        (vec!["203.0.113.9, "], "127.0.0.1"),
        (vec!["\u{0}\u{1}"], "127.0.0.1"),
    ] {
        let headers: Vec<(&str, &str)> = told.iter().map(|v| ("x-forwarded-for", *v)).collect();
        let wanted = ask(&gateway, "127.0.0.1", "", &headers).expect("a check");
        assert_eq!(keys(&wanted), [format!("ip={seen}")], "{told:?}");
    }
}

#[test]
fn what_stands_twice_or_is_too_long_is_refused() {
    let gateway = everything();
    let tenant = ("x-tenant", "acme");
    let long = "x".repeat(513);
    for (target, header, word) in [
        ("/a", ("x-tenant", "other"), "x-tenant"),
        ("/a", ("x-user", long.as_str()), "x-user"),
        ("/a?doc=1&doc=2", ("x", ""), "doc"),
        ("/a?doc=%FF", ("x", ""), "doc"),
        ("/a", ("x-cost", "-1"), "cost"),
        ("/a", ("x-cost", "+1"), "cost"),
        ("/a", ("x-cost", "9007199254740992"), "cost"),
        ("/a", ("x-cost", "1e3"), "cost"),
    ] {
        let fault = ask(&gateway, "127.0.0.1", target, &[tenant, header]).expect_err("refused");
        assert!(fault.contains(word), "{target} {header:?}: {fault}");
    }
    // A header that the profile does not name may stand as often as it likes.
    let twice = [tenant, ("x-other", "1"), ("x-other", "2")];
    assert!(ask(&gateway, "127.0.0.1", "/a", &twice).is_ok());
}

#[test]
fn long_paths_share_a_counter_at_whole_characters() {
    let gateway = gateway(&json!({ "tenant": "a", "action": "b", "keys": { "endpoint": "path" } }));
    let path = format!("/{}", "ä".repeat(400));
    let wanted = ask(&gateway, "127.0.0.1", &path, &[]).expect("a check");
    let (_, key) = &wanted.keys[0];
    assert_eq!(key.len(), 511);
    assert!(path.starts_with(key.as_str()));
}

mod laws {
    use proptest::collection::vec;
    use proptest::prop_assert;
    use proptest::prop_assert_eq;
    use proptest::proptest;
    use proptest::sample::select;

    use super::*;

    proptest! {
        /// Nothing that a caller sends makes a profile panic, name a key that no counter has, or believe an
        /// untrusted hop.
        #[test]
        fn any_request_is_a_check_or_a_fault(
            hop in select(vec!["127.0.0.1", "198.51.100.7", "2001:db8::1"]),
            target in "(/[ -~]{0,40}|\\PC{0,40})",
            headers in vec(
                (
                    select(vec![
                        "x-tenant", "x-user", "x-cost", "x-forwarded-for", "x-forwarded-uri",
                        "x-original-uri", "x-original-url", "x-forwarded-method",
                    ]),
                    "(\\PC{0,40}|[0-9.,: ]{0,40})",
                ),
                0..6,
            ),
        ) {
            let gateway = everything();
            let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
            if let Ok(wanted) = ask(&gateway, hop, &target, &headers) {
                prop_assert!(!wanted.tenant.is_empty() && wanted.cost <= AMOUNT_MAX);
                for (_, key) in &wanted.keys {
                    prop_assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
                }
                if hop != "127.0.0.1" {
                    prop_assert_eq!(wanted.client_ip, hop.parse().ok());
                    prop_assert_eq!(wanted.action, "GET");
                }
            }
        }
    }
}
