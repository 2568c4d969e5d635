//! Who may not speak to whom.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::peer::Refusal;
use crate::peer::WIRE_VERSION;

use super::Node;
use super::Plan;
use super::listener;
use super::pair;
use super::region;
use super::until;
use super::within;

/// Starts `a` and `b`, each changed, and waits until `a` sees that the link to `b` is refused.
async fn refused(
    change_a: impl FnOnce(&mut Plan),
    change_b: impl FnOnce(&mut Plan),
    refusal: Refusal,
) -> (Node, Node) {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let (mut plan_a, mut plan_b) = (
        Plan::new("a", 1, &[("b", b)]),
        Plan::new("b", 2, &[("a", a)]),
    );
    change_a(&mut plan_a);
    change_b(&mut plan_b);
    let node_a = Node::start(plan_a, at_a);
    let node_b = Node::start(plan_b, at_b);
    until(refusal.as_str(), || {
        let status = node_a.status("b");
        let is_counted = status.refusals.iter().any(|(known, _)| *known == refusal);
        status.refused == Some(refusal) && is_counted
    })
    .await;
    assert!(!node_a.is_connected("b"));
    (node_a, node_b)
}

async fn stop(nodes: (Node, Node)) {
    nodes.0.stop().await;
    nodes.1.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_secret_or_none_is_refused() {
    for secret in [Some("other"), None] {
        let nodes = refused(|a| a.secret = secret, |_| {}, Refusal::WrongSecret).await;
        until("the report", || {
            nodes
                .1
                .peers
                .strangers()
                .iter()
                .any(|(refusal, _)| *refusal == Refusal::WrongSecret)
        })
        .await;
        stop(nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_secret_on_either_side_links_are_made() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let without = |name, incarnation, peers: &[(&str, SocketAddr)]| Plan {
        secret: None,
        ..Plan::new(name, incarnation, peers)
    };
    let node_a = Node::start(without("a", 1, &[("b", b)]), at_a);
    let node_b = Node::start(without("b", 2, &[("a", a)]), at_b);
    node_a.connected("b").await;
    node_b.connected("a").await;
    stop((node_a, node_b)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_is_refused_by_name_and_by_id() {
    let nodes = refused(
        |a| a.identity.cluster = "prod".to_owned(),
        |_| {},
        Refusal::OtherCluster,
    )
    .await;
    until("both report", || {
        nodes.1.status("a").refused == Some(Refusal::OtherCluster)
    })
    .await;
    stop(nodes).await;
    let nodes = refused(
        |a| a.identity.cluster_id = Some(1),
        |b| b.identity.cluster_id = Some(2),
        Refusal::OtherClusterId,
    )
    .await;
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_id_that_turns_out_to_differ_ends_the_link() {
    let (a, b) = pair().await;
    a.peers
        .set_identity(|identity| identity.cluster_id = Some(1));
    b.peers
        .set_identity(|identity| identity.cluster_id = Some(2));
    until("the end", || {
        !a.is_connected("b")
            && a.status("b").refused == Some(Refusal::OtherClusterId)
            && !b.is_connected("a")
    })
    .await;
    stop((a, b)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_wire_version_is_refused_and_nothing_else_is_read() {
    let nodes = refused(
        |a| a.identity.wire_version = WIRE_VERSION + 1,
        |_| {},
        Refusal::WireVersion,
    )
    .await;
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_region_at_the_address_is_refused() {
    let nodes = refused(
        |_| {},
        |b| b.identity.region = region("c"),
        Refusal::WrongRegion,
    )
    .await;
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_name_at_the_address_is_refused() {
    let nodes = refused(
        |_| {},
        |b| {
            b.identity.region = region("a");
            b.peers.clear();
        },
        Refusal::OwnRegion,
    )
    .await;
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_is_not_configured_is_refused() {
    let nodes = refused(|_| {}, |b| b.peers.clear(), Refusal::UnknownRegion).await;
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_listener_ends_and_disturbs_nobody() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let node_a = Node::start(Plan::new("a", 1, &[("b", b)]), at_a);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut visitors = Vec::new();
    for number in 0..100_u8 {
        let mut stream = TcpStream::connect(b).await.expect("a connection");
        let bytes: Vec<u8> = match number % 4 {
            // Silent.
            0 => Vec::new(),
            1 => vec![number; 3000],
            2 => b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            _ => [preface.as_slice(), &[number; 500]].concat(),
        };
        // Whoever is refused at once cannot write all of it.
        let _ = stream.write_all(&bytes).await;
        visitors.push(stream);
    }
    let node_b = Node::start(Plan::new("b", 2, &[("a", a)]), at_b);
    // More visitors than places: the silent ones are gone after their time.
    within("a link", Duration::from_secs(30), || {
        node_a.is_connected("b") && node_b.is_connected("a")
    })
    .await;
    for mut stream in visitors {
        let mut read = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut read));
        assert!(ended.await.is_ok(), "a visitor is kept");
    }
    assert!(node_a.is_connected("b") && node_b.is_connected("a"));
    stop((node_a, node_b)).await;
}
