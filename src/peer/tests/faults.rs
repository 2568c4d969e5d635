//! Partitions, latency, losses, and the breaker.

use std::time::Duration;
use std::time::Instant;

use futures_util::future::join_all;

use crate::domain::time::Span;
use crate::peer::BreakerState;
use crate::peer::LinkFaults;
use crate::peer::PeerError;
use crate::peer::Service;

use super::BRIEF;
use super::Node;
use super::Plan;
use super::SOON;
use super::body;
use super::listener;
use super::pair;
use super::region;
use super::until;
use super::within;

const BOTH: LinkFaults = LinkFaults {
    blocks_in: true,
    blocks_out: true,
    delay: Span::ZERO,
    jitter: Span::ZERO,
    loss_percent: 0,
};
const IN: LinkFaults = LinkFaults {
    blocks_out: false,
    ..BOTH
};
const OUT: LinkFaults = LinkFaults {
    blocks_in: false,
    ..BOTH
};

fn are_connected(a: &Node, b: &Node) -> bool {
    let (of_a, of_b) = (a.status("b"), b.status("a"));
    of_a.is_connected && of_a.is_connected_to_us && of_b.is_connected && of_b.is_connected_to_us
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_is_one_way_and_is_felt_by_calls_and_pings() {
    let (a, b) = pair().await;
    let delay = Span::from_ms(60);
    let slow = LinkFaults {
        delay,
        ..LinkFaults::default()
    };
    let timed = async |a: &Node| {
        let began = Instant::now();
        let reply = a.peers.call(&region("b"), Service::Strict, body("x"), SOON);
        assert_eq!(reply.await, Ok(body("x")));
        began.elapsed()
    };
    a.fault("b", slow);
    let once = timed(&a).await;
    assert!(once >= Duration::from_millis(60), "{once:?}");
    b.fault("a", slow);
    let twice = timed(&a).await;
    assert!(twice >= Duration::from_millis(120), "{twice:?}");
    println!("one way {once:?}, both {twice:?}");
    // Eight pings later all that is remembered was slow.
    until("slow pings", || {
        let status = a.status("b");
        status.rtt_min >= Some(delay.plus(delay)) && status.rtt_last >= Some(delay.plus(delay))
    })
    .await;
    println!("{:?} {:?}", a.status("b").rtt_last, a.status("b").rtt_min);
    assert!(are_connected(&a, &b));
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_made_under_the_longest_delay() {
    let (a, b) = pair().await;
    let slow = LinkFaults {
        delay: crate::peer::faults::DELAY_MAX,
        ..LinkFaults::default()
    };
    a.fault("b", slow);
    b.fault("a", slow);
    // The delay begins with a silence that ends the links.
    tokio::time::sleep(Duration::from_secs(3)).await;
    within("links", Duration::from_secs(60), || are_connected(&a, &b)).await;
    let reply = a.peers.call(&region("b"), Service::Strict, body("x"), SOON);
    let began = Instant::now();
    assert_eq!(reply.await, Ok(body("x")));
    assert!(began.elapsed() >= Duration::from_secs(4));
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_swallows_what_it_says_and_heals() {
    for faults in [BOTH, IN, OUT] {
        let (a, b) = pair().await;
        a.fault("b", faults);
        let heard_before = b.echo.heard.lock().len();
        let reply = a
            .peers
            .call(&region("b"), Service::Strict, body("x"), BRIEF);
        assert_eq!(reply.await, Err(PeerError::TimedOut), "{faults:?}");
        let has_arrived = b.echo.heard.lock().len() > heard_before;
        assert_eq!(has_arrived, !faults.blocks_out, "{faults:?}");
        let reply = b
            .peers
            .call(&region("a"), Service::Strict, body("x"), BRIEF);
        assert_eq!(reply.await, Err(PeerError::TimedOut), "{faults:?}");
        assert_eq!(
            a.echo.heard.lock().is_empty(),
            faults.blocks_in,
            "{faults:?}"
        );
        until("the links are found dead", || {
            !a.is_connected("b") && !b.is_connected("a")
        })
        .await;
        // Nobody gets through meanwhile.
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            assert!(!a.is_connected("b") && !b.is_connected("a"), "{faults:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let began = Instant::now();
        a.heal();
        within("healing", Duration::from_secs(5), || are_connected(&a, &b)).await;
        println!("{faults:?} healed in {:?}", began.elapsed());
        let reply = b.peers.call(&region("a"), Service::Strict, body("x"), SOON);
        assert_eq!(reply.await, Ok(body("x")));
        a.stop().await;
        b.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_partition_leaves_the_links_up() {
    let (a, b) = pair().await;
    a.fault("b", BOTH);
    tokio::time::sleep(Duration::from_millis(300)).await;
    a.heal();
    let reply = a.peers.call(&region("b"), Service::Strict, body("x"), SOON);
    assert_eq!(reply.await, Ok(body("x")));
    assert!(are_connected(&a, &b));
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_takes_its_share_of_the_frames_one_way() {
    let (a, b) = pair().await;
    a.fault(
        "b",
        LinkFaults {
            loss_percent: 20,
            ..LinkFaults::default()
        },
    );
    let calls: Vec<_> = (0..1000)
        .map(|_| {
            a.peers.call(
                &region("b"),
                Service::Consensus,
                body("x"),
                Span::from_seconds(1),
            )
        })
        .collect();
    let replies = join_all(calls).await;
    let lost = replies
        .iter()
        .filter(|reply| **reply == Err(PeerError::TimedOut))
        .count();
    assert!((100..320).contains(&lost), "{lost} of 1000");
    assert!(replies.iter().filter(|reply| reply.is_ok()).count() == 1000 - lost);
    assert_eq!(
        b.echo.heard.lock().len(),
        1000 - lost,
        "replies are not lost"
    );
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_are_made_while_half_of_the_frames_are_lost() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let lossy = LinkFaults {
        loss_percent: 50,
        ..LinkFaults::default()
    };
    let node_a = Node::start(Plan::new("a", 1, &[("b", b)]), at_a);
    node_a.fault("b", lossy);
    let node_b = Node::start(Plan::new("b", 2, &[("a", a)]), at_b);
    node_b.fault("a", lossy);
    until("links", || are_connected(&node_a, &node_b)).await;
    node_a.stop().await;
    node_b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_open_the_breaker_and_a_healed_link_is_usable_at_once() {
    let (a, b) = pair().await;
    // One way, so that pings fail with the calls.
    a.fault("b", OUT);
    let to = region("b");
    let calls = (0..3).map(|_| a.peers.call(&to, Service::Strict, body("x"), BRIEF));
    let calls: Vec<_> = calls.collect();
    for reply in join_all(calls).await {
        assert_eq!(reply, Err(PeerError::TimedOut));
    }
    assert_eq!(a.status("b").breaker, BreakerState::Open);
    let began = Instant::now();
    let reply = a.peers.call(&to, Service::Strict, body("x"), SOON).await;
    assert_eq!(reply, Err(PeerError::BreakerOpen));
    assert!(began.elapsed() < Duration::from_secs(1));
    let reply = a
        .peers
        .call(&to, Service::Consensus, body("x"), BRIEF)
        .await;
    assert_ne!(reply, Err(PeerError::BreakerOpen), "the log passes always");
    a.heal();
    within("the breaker", Duration::from_secs(5), || {
        a.is_connected("b") && a.status("b").breaker == BreakerState::Closed
    })
    .await;
    let reply = a.peers.call(&to, Service::Strict, body("x"), SOON).await;
    assert_eq!(reply, Ok(body("x")));
    a.stop().await;
    b.stop().await;
}
