//! Calls, tells, their order, and who is told what.

use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;

use crate::domain::time::Span;
use crate::peer::BODY_BYTES_MAX;
use crate::peer::LinkFaults;
use crate::peer::PeerError;
use crate::peer::Service;

use super::Node;
use super::Plan;
use super::SOON;
use super::body;
use super::listener;
use super::pair;
use super::region;
use super::until;

#[tokio::test(flavor = "multi_thread")]
async fn three_regions_call_each_other() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let (at_c, c) = listener().await;
    let nodes = [
        Node::start(Plan::new("a", 1, &[("b", b), ("c", c)]), at_a),
        Node::start(Plan::new("b", 2, &[("a", a), ("c", c)]), at_b),
        Node::start(Plan::new("c", 3, &[("a", a), ("b", b)]), at_c),
    ];
    for node in &nodes {
        for peer in node.peers.regions() {
            node.connected(peer.as_str()).await;
            let reply = node.peers.call(&peer, Service::Strict, body("x"), SOON);
            assert_eq!(reply.await, Ok(body("x")));
        }
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_served_is_declined_and_who_is_not_there_is_told() {
    let (a, b) = pair().await;
    let call = |to: &str, service| a.peers.call(&region(to), service, body("x"), SOON);
    assert_eq!(call("b", Service::Usage).await, Err(PeerError::Unserved));
    assert_eq!(call("z", Service::Strict).await, Err(PeerError::Unknown));
    assert!(!a.peers.tell(&region("z"), Service::Usage, body("x")));
    b.stop().await;
    until("the end of the link", || !a.is_connected("b")).await;
    assert_eq!(
        call("b", Service::Strict).await,
        Err(PeerError::NotConnected)
    );
    let before = a.status("b").dropped;
    assert!(!a.peers.tell(&region("b"), Service::Usage, body("x")));
    assert_eq!(a.status("b").dropped, before + 1);
    a.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_in_the_order_of_the_calls_also_under_latency_and_jitter() {
    let (a, b) = pair().await;
    a.fault(
        "b",
        LinkFaults {
            delay: Span::from_ms(20),
            jitter: Span::from_ms(30),
            ..LinkFaults::default()
        },
    );
    let to = region("b");
    let mut calls = Vec::new();
    for number in 0..500 {
        let text = Bytes::from(format!("{number}"));
        if number % 3 == 0 {
            assert!(a.peers.tell(&to, Service::Usage, text));
        } else {
            calls.push(a.peers.call(&to, Service::Strict, text, SOON));
        }
    }
    // Polled backwards: what counts is when they were made.
    calls.reverse();
    for reply in join_all(calls).await {
        reply.expect("a reply");
    }
    let heard: Vec<Bytes> = b
        .echo
        .heard
        .lock()
        .iter()
        .map(|(_, _, body)| body.clone())
        .collect();
    let sent: Vec<Bytes> = (0..500).map(|n| Bytes::from(format!("{n}"))).collect();
    assert_eq!(heard, sent);
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_body_passes_and_a_larger_one_does_not() {
    let (a, b) = pair().await;
    let largest = Bytes::from(vec![7; BODY_BYTES_MAX]);
    let reply = a
        .peers
        .call(&region("b"), Service::Strict, largest.clone(), SOON);
    assert_eq!(reply.await, Ok(largest));
    let larger = Bytes::from(vec![7; BODY_BYTES_MAX + 1]);
    let reply = a.peers.call(&region("b"), Service::Strict, larger, SOON);
    assert_eq!(reply.await, Err(PeerError::Full));
    assert!(a.is_connected("b") && b.is_connected("a"));
    assert!(a.status("b").bytes_out > 8 << 20);
    assert!(a.status("b").bytes_in > 8 << 20);
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_calls_at_once_are_all_answered() {
    let (a, b) = pair().await;
    let began = Instant::now();
    let calls = (0..20_000_u32).map(|number| {
        let text = Bytes::copy_from_slice(&number.to_be_bytes());
        a.peers
            .call(&region("b"), Service::Strict, text, Span::from_seconds(60))
    });
    let calls: Vec<_> = calls.collect();
    for (number, reply) in (0_u32..).zip(join_all(calls).await) {
        assert_eq!(
            reply.expect("a reply").as_ref(),
            number.to_be_bytes().as_slice()
        );
    }
    println!("20 000 calls in {:?}", began.elapsed());
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_that_changes_is_told() {
    let (a, b) = pair().await;
    let mut changed = b.peers.changed();
    changed.mark_unchanged();
    a.peers.set_identity(|identity| {
        identity.cluster_id = Some(7);
        identity.is_empty = false;
        identity.incarnation = 99;
    });
    until("the news", || {
        b.status("a")
            .identity
            .is_some_and(|known| known.cluster_id == Some(7) && !known.is_empty)
    })
    .await;
    assert!(changed.has_changed().expect("alive"));
    assert_eq!(a.peers.identity().incarnation, 1, "it stays");
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_come_and_go_at_run_time() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let node_a = Node::start(Plan::new("a", 1, &[]), at_a);
    let node_b = Node::start(Plan::new("b", 2, &[("a", a)]), at_b);
    until("the stranger", || !node_a.peers.strangers().is_empty()).await;
    assert!(!node_a.peers.add(region("a"), format!("http://{a}")));
    assert!(node_a.peers.add(region("b"), format!("http://{b}/")));
    node_a.connected("b").await;
    node_b.connected("a").await;
    assert!(node_a.peers.remove(&region("b")));
    assert!(!node_a.peers.remove(&region("b")));
    until("the end", || !node_b.is_connected("a")).await;
    node_a.stop().await;
    node_b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_offset_of_a_clock_is_measured_and_a_far_one_is_marked() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let node_a = Node::start(Plan::new("a", 1, &[("b", b)]), at_a);
    let ahead = Plan {
        clock_ahead: Span::from_seconds(3),
        ..Plan::new("b", 2, &[("a", a)])
    };
    let node_b = Node::start(ahead, at_b);
    let near = |node: &Node, peer: &str, seconds: i64| {
        let status = node.status(peer);
        status.is_clock_far
            && status
                .clock_offset_ns
                .is_some_and(|ns| (ns - seconds * 1_000_000_000).unsigned_abs() < 500_000_000)
    };
    until("the offset of b", || near(&node_a, "b", 3)).await;
    until("the offset of a", || near(&node_b, "a", -3)).await;
    node_a.stop().await;
    node_b.stop().await;
}
