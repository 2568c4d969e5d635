//! Processes that come back, and second ones of one region.

use std::time::Duration;
use std::time::Instant;

use crate::domain::time::Span;
use crate::peer::LinkFaults;
use crate::peer::PeerError;
use crate::peer::Refusal;
use crate::peer::Service;

use super::BRIEF;
use super::Node;
use super::Plan;
use super::SOON;
use super::body;
use super::listener;
use super::listener_at;
use super::region;
use super::until;
use super::within;

const CUT: LinkFaults = LinkFaults {
    blocks_in: true,
    blocks_out: true,
    delay: Span::ZERO,
    jitter: Span::ZERO,
    loss_percent: 0,
};

fn knows(node: &Node, peer: &str, incarnation: u64) -> bool {
    let status = node.status(peer);
    status.is_connected
        && status.is_connected_to_us
        && status
            .identity
            .is_some_and(|identity| identity.incarnation == incarnation)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_restarts_is_back_at_once() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let node_a = Node::start(Plan::new("a", 1, &[("b", b)]), at_a);
    let mut node_b = Node::start(Plan::new("b", 2, &[("a", a)]), at_b);
    for incarnation in 3..6 {
        node_a.connected("b").await;
        // A call that is under way is told.
        let call = node_a
            .peers
            .call(&region("b"), Service::Forward, body("x"), SOON);
        until("the request", || !node_b.echo.heard.lock().is_empty()).await;
        node_b.stop().await;
        assert_eq!(call.await, Err(PeerError::Closed));
        let listener = listener_at(b).await;
        let began = Instant::now();
        node_b = Node::start(Plan::new("b", incarnation, &[("a", a)]), listener);
        within("the new process", Duration::from_secs(3), || {
            knows(&node_a, "b", incarnation) && node_b.is_connected("a")
        })
        .await;
        println!("back after {:?}", began.elapsed());
    }
    node_a.stop().await;
    node_b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_whose_old_process_is_cut_off_gets_in_after_the_old_one_gave_no_sign() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let node_a = Node::start(Plan::new("a", 1, &[("b", b)]), at_a);
    let old = Node::start(Plan::new("b", 2, &[("a", a)]), at_b);
    until("links", || knows(&node_a, "b", 2)).await;
    // Its network is gone; nothing is reset.
    old.fault("a", CUT);
    let (at_b, _) = listener().await;
    let began = Instant::now();
    let new = Node::start(Plan::new("b", 3, &[("a", a)]), at_b);
    within("the new process", Duration::from_secs(4), || {
        new.is_connected("a")
    })
    .await;
    println!("in after {:?}", began.elapsed());
    old.stop().await;
    new.stop().await;
    node_a.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_live_process_of_a_region_is_refused_and_told() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let node_a = Node::start(Plan::new("a", 1, &[("b", b)]), at_a);
    let first = Node::start(Plan::new("b", 2, &[("a", a)]), at_b);
    until("links", || knows(&node_a, "b", 2)).await;
    let (at_clone, _) = listener().await;
    let second = Node::start(Plan::new("b", 3, &[("a", a)]), at_clone);
    let is_told = |node: &Node, peer: &str| {
        node.status(peer)
            .refusals
            .iter()
            .any(|(refusal, count)| *refusal == Refusal::TwoIncarnations && *count >= 2)
    };
    until("both are told", || {
        is_told(&node_a, "b") && is_told(&second, "a")
    })
    .await;
    assert!(!second.is_connected("a"));
    assert!(knows(&node_a, "b", 2), "the first stays");
    let reply = first
        .peers
        .call(&region("a"), Service::Strict, body("x"), SOON);
    assert_eq!(reply.await, Ok(body("x")));
    first.stop().await;
    // Once the first is gone the second may come.
    within("the second", Duration::from_secs(5), || {
        second.is_connected("a")
    })
    .await;
    let reply = second
        .peers
        .call(&region("a"), Service::Forward, body("x"), BRIEF);
    assert_eq!(reply.await, Err(PeerError::TimedOut));
    second.stop().await;
    node_a.stop().await;
}
