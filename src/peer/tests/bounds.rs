//! Over a bound a call fails at once, and a tell is dropped and counted.

use bytes::Bytes;

use crate::domain::time::Span;
use crate::peer::Bounds;
use crate::peer::LinkFaults;
use crate::peer::PeerError;
use crate::peer::Service;

use super::Node;
use super::Plan;
use super::SOON;
use super::body;
use super::listener;
use super::region;

const SLOW: LinkFaults = LinkFaults {
    blocks_in: false,
    blocks_out: false,
    delay: Span::from_ms(500),
    jitter: Span::ZERO,
    loss_percent: 0,
};

async fn bounded(bounds: Bounds) -> (Node, Node) {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let plan = Plan {
        bounds,
        ..Plan::new("a", 1, &[("b", b)])
    };
    let node_a = Node::start(plan, at_a);
    let node_b = Node::start(Plan::new("b", 2, &[("a", a)]), at_b);
    node_a.connected("b").await;
    (node_a, node_b)
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_are_bounded() {
    let (a, b) = bounded(Bounds {
        frames_max: 100,
        bytes_max: 1 << 20,
    })
    .await;
    a.fault("b", SLOW);
    let to = region("b");
    let calls: Vec<_> = (0..200)
        .map(|_| a.peers.call(&to, Service::Strict, body("x"), SOON))
        .collect();
    let mut full = 0;
    for call in calls {
        match call.await {
            Ok(reply) => assert_eq!(reply, body("x")),
            Err(error) => {
                assert_eq!(error, PeerError::Full);
                full += 1;
            }
        }
    }
    // Heartbeats have a few of the places.
    assert!((100..120).contains(&full), "{full}");
    let reply = a.peers.call(&to, Service::Strict, body("x"), SOON).await;
    assert_eq!(reply, Ok(body("x")), "there is room again");
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_bounded() {
    let (a, b) = bounded(Bounds {
        frames_max: 1000,
        bytes_max: 1 << 20,
    })
    .await;
    a.fault("b", SLOW);
    let large = Bytes::from(vec![1; 100_000]);
    let queued = (0..30)
        .filter(|_| a.peers.tell(&region("b"), Service::Usage, large.clone()))
        .count();
    assert_eq!(queued, 10);
    assert_eq!(a.status("b").dropped, 20);
    let reply = a
        .peers
        .call(&region("b"), Service::Strict, large, SOON)
        .await;
    assert_eq!(reply, Err(PeerError::Full));
    let reply = a
        .peers
        .call(&region("b"), Service::Strict, body("x"), SOON)
        .await;
    assert_eq!(reply, Ok(body("x")), "what is small still fits");
    assert_eq!(b.echo.heard.lock().len(), 11);
    a.stop().await;
    b.stop().await;
}
