//! Several regions as real processes: they find each other, refuse strangers, and feel injected faults.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::ports::free_ports;
use crate::server::Server;
use crate::server::Stop;
use crate::server::wait_until;

pub const NAMES: [&str; 3] = ["us-east-1", "eu-west-1", "ap-south-1"];
pub const FOUND_WITHIN: Duration = Duration::from_secs(20);

/// Starts region `own` of those at `ports`, with more settings.
pub fn start(own: usize, ports: &[u16], more: &[(&str, &str)]) -> Server {
    let peers: Vec<String> = (0..3)
        .filter(|other| *other != own)
        .map(|other| {
            format!(
                "{{ region = \"{}\", url = \"http://127.0.0.1:{}\" }}",
                NAMES[other], ports[other]
            )
        })
        .collect();
    let settings = [
        ("region", format!("\"{}\"", NAMES[own])),
        ("listen.peer", format!("\"127.0.0.1:{}\"", ports[own])),
        ("auth.peer_secret", "\"between regions\"".to_owned()),
        ("peers", format!("[{}]", peers.join(", "))),
    ];
    let mut settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    settings.extend(more);
    Server::on_real_clock(&settings)
}

pub fn status(server: &Server) -> Value {
    let answer = server.admin(Method::GET, "/admin/v1/cluster", &Value::Null);
    answer.succeeded();
    answer.body
}

fn peer(server: &Server, region: &str) -> Value {
    let status = status(server);
    let peers = status["peers"].as_array().expect("a list");
    peers
        .iter()
        .find(|peer| peer["region"] == region)
        .unwrap_or_else(|| panic!("{region} is no peer: {status}"))
        .clone()
}

fn are_linked(server: &Server, region: &str) -> bool {
    let peer = peer(server, region);
    peer["connected"] == true && peer["connected_to_us"] == true
}

pub fn find_each_other(regions: &[Server; 3]) {
    for (own, region) in regions.iter().enumerate() {
        for name in NAMES.iter().filter(|name| **name != NAMES[own]) {
            wait_until("regions find each other", FOUND_WITHIN, || {
                are_linked(region, name)
            });
        }
    }
}

#[test]
fn regions_find_each_other_and_feel_partitions_that_heal_by_themselves() {
    let ports = free_ports(3);
    let mut regions: [Server; 3] = std::array::from_fn(|own| start(own, &ports, &[]));
    find_each_other(&regions);
    let [us, eu, ap] = &mut regions;
    let seen = peer(us, "eu-west-1");
    assert_eq!(seen["breaker"], "closed", "{seen}");
    wait_until("a heartbeat", FOUND_WITHIN, || {
        let seen = peer(us, "eu-west-1");
        seen["rtt_ms"].as_f64().is_some_and(|ms| ms < 5_000.0)
            && seen["clock_offset_ms"]
                .as_f64()
                .is_some_and(|ms| ms.abs() < 2_000.0)
    });
    let metrics = us.admin(Method::GET, "/metrics", &Value::Null).text;
    for line in [
        "highwater_peer_connected{peer=\"eu-west-1\"} 1",
        "highwater_peer_breaker_open{peer=\"ap-south-1\"} 0",
        "highwater_peer_bytes_total{peer=\"eu-west-1\",direction=\"in\"} ",
        "highwater_peer_rtt_seconds{peer=\"eu-west-1\"} ",
        "highwater_peer_clock_offset_seconds{peer=\"eu-west-1\"} ",
        "highwater_peer_last_frame_age_seconds{peer=\"eu-west-1\"} ",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }

    let fault = json!({ "kind": "partition", "peer": "eu-west-1", "ttl": "5s" });
    let begun = us.admin(Method::POST, "/admin/v1/faults", &fault);
    begun.succeeded();
    assert_eq!(begun.body["direction"], "both", "{begun:?}");
    assert_eq!(begun.body["peer"], "eu-west-1", "{begun:?}");
    wait_until("the partition shows on both sides", FOUND_WITHIN, || {
        let is_cut = |peer: &Value| peer["connected"] == false && peer["connected_to_us"] == false;
        is_cut(&peer(us, "eu-west-1")) && is_cut(&peer(eu, "us-east-1"))
    });
    assert_eq!(status(us)["faults"], 1);
    assert!(are_linked(us, "ap-south-1") && are_linked(eu, "ap-south-1"));
    wait_until("the partition heals by itself", FOUND_WITHIN, || {
        are_linked(us, "eu-west-1") && are_linked(eu, "us-east-1")
    });
    assert_eq!(status(us)["faults"], 0);

    ap.stop(Stop::Kill);
    wait_until("a killed region is missed", FOUND_WITHIN, || {
        peer(us, "ap-south-1")["connected"] == false
    });
    ap.start_again();
    wait_until("it is back", FOUND_WITHIN, || {
        are_linked(us, "ap-south-1") && are_linked(ap, "us-east-1")
    });
}

/// What a pause of a whole machine looks like to the others: nothing is reset, nothing is answered.
#[test]
fn a_region_that_stands_still_is_missed_and_is_back_when_it_goes_on() {
    let ports = free_ports(3);
    let regions: [Server; 3] = std::array::from_fn(|own| start(own, &ports, &[]));
    find_each_other(&regions);
    let [us, eu, _] = &regions;
    let signal = |signal| {
        let pid = i32::try_from(eu.pid()).ok();
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.expect("a process id"), signal).expect("ours");
    };
    signal(rustix::process::Signal::STOP);
    wait_until("it is missed", FOUND_WITHIN, || {
        let seen = peer(us, "eu-west-1");
        seen["connected"] == false && seen["connected_to_us"] == false
    });
    signal(rustix::process::Signal::CONT);
    wait_until("it is back", FOUND_WITHIN, || {
        are_linked(us, "eu-west-1") && are_linked(eu, "us-east-1")
    });
}

#[test]
fn latency_and_losses_are_injected_and_what_makes_no_sense_is_refused() {
    let ports = free_ports(3);
    let regions: [Server; 3] = std::array::from_fn(|own| start(own, &ports, &[]));
    find_each_other(&regions);
    let us = &regions[0];
    let inject = |fault: &Value| us.admin(Method::POST, "/admin/v1/faults", fault);
    for malformed in [
        json!({ "kind": "latency", "ttl": "1s" }),
        json!({ "kind": "latency", "delay": "3s", "ttl": "1s" }),
        json!({ "kind": "latency", "delay": "40", "ttl": "1s" }),
        json!({ "kind": "latency", "delay": "40ms", "jitter": "-1ms", "ttl": "1s" }),
        json!({ "kind": "latency", "delay": "40ms", "direction": "in", "ttl": "1s" }),
        json!({ "kind": "loss", "ttl": "1s" }),
        json!({ "kind": "loss", "loss_percent": 0, "ttl": "1s" }),
        json!({ "kind": "loss", "loss_percent": 101, "ttl": "1s" }),
        json!({ "kind": "partition", "loss_percent": 1, "ttl": "1s" }),
        json!({ "kind": "partition", "direction": "up", "ttl": "1s" }),
        json!({ "kind": "partition", "peer": "No Name", "ttl": "1s" }),
        json!({ "kind": "partition", "ttl": "16m" }),
        json!({ "kind": "partition" }),
        json!({ "kind": "store_full", "peer": "eu-west-1", "ttl": "1s" }),
    ] {
        let answer = inject(&malformed);
        assert_eq!(answer.status, 400, "{malformed}: {answer:?}");
    }
    for stranger in ["us-east-1", "sa-east-1"] {
        let answer = inject(&json!({ "kind": "partition", "peer": stranger, "ttl": "1s" }));
        answer.problem(422, "invalid");
        assert!(answer.text.contains(stranger), "{answer:?}");
    }

    let latency = json!({ "kind": "latency", "delay": "100ms", "jitter": "5ms", "ttl": "60s" });
    let begun = inject(&latency);
    begun.succeeded();
    assert_eq!(begun.body["delay"], "100ms", "{begun:?}");
    // All that is remembered of the other side comes from slow heartbeats by then.
    wait_until("the latency is felt", FOUND_WITHIN, || {
        let seen = peer(us, "eu-west-1");
        seen["rtt_min_ms"].as_f64().is_some_and(|ms| ms >= 100.0)
    });
    us.heal(begun.body["id"].as_str().expect("an id"));
    wait_until("the latency is over", FOUND_WITHIN, || {
        let seen = peer(us, "eu-west-1");
        seen["rtt_min_ms"].as_f64().is_some_and(|ms| ms < 100.0)
    });

    inject(&json!({ "kind": "loss", "loss_percent": 100, "ttl": "60s" })).succeeded();
    wait_until("all frames are lost", FOUND_WITHIN, || {
        peer(&regions[1], "us-east-1")["connected"] == false
    });
}

#[test]
fn a_region_with_another_secret_is_refused_and_reported() {
    let ports = free_ports(3);
    let us = start(0, &ports, &[]);
    let eu = start(1, &ports, &[("auth.peer_secret", "\"another\"")]);
    wait_until("both sides are told", FOUND_WITHIN, || {
        peer(&us, "eu-west-1")["refused"] == "wrong_secret"
            && peer(&eu, "us-east-1")["refused"] == "wrong_secret"
    });
    assert!(!are_linked(&us, "eu-west-1") && !are_linked(&eu, "us-east-1"));
    let metrics = us.admin(Method::GET, "/metrics", &Value::Null).text;
    for peer in ["eu-west-1", "other"] {
        let line =
            format!("highwater_peer_refused_total{{peer=\"{peer}\",reason=\"wrong_secret\"}} ");
        assert!(metrics.contains(&line), "{metrics}");
    }
    assert!(us.log().contains("wrong_secret"), "{}", us.log());
}

#[test]
fn faults_between_regions_need_other_regions() {
    let server = Server::start();
    let fault = json!({ "kind": "partition", "ttl": "1s" });
    server
        .admin(Method::POST, "/admin/v1/faults", &fault)
        .problem(422, "invalid");
    assert_eq!(status(&server)["peers"], json!([]));
}
