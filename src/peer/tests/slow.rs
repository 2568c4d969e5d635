//! A narrow network: what is large takes longer than the silence after which a link is closed.

use std::net::SocketAddr;
use std::time::Duration;
use std::time::Instant;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::tcp::OwnedWriteHalf;

use crate::domain::time::Span;
use crate::peer::BODY_BYTES_MAX;
use crate::peer::Service;

use super::Node;
use super::Plan;
use super::SOON;
use super::body;
use super::listener;
use super::region;

/// Bytes that pass at once, and the pause after them: about 3 MB a second.
const PIECE: usize = 32 * 1024;
const PAUSE: Duration = Duration::from_millis(10);

async fn narrow(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut piece = vec![0; PIECE];
    while let Ok(length) = from.read(&mut piece).await {
        if length == 0 || to.write_all(&piece[..length]).await.is_err() {
            return;
        }
        if length > PIECE / 2 {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Passes connections on to `target`, narrowly.
async fn narrow_way(target: SocketAddr) -> SocketAddr {
    let (listener, address): (TcpListener, SocketAddr) = listener().await;
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(target).await else {
                continue;
            };
            let (near, far) = (near.into_split(), far.into_split());
            tokio::spawn(narrow(near.0, far.1));
            tokio::spawn(narrow(far.0, near.1));
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_frame_on_a_narrow_network_does_not_end_the_link() {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let way = narrow_way(b).await;
    let node_a = Node::start(Plan::new("a", 1, &[("b", way)]), at_a);
    let node_b = Node::start(Plan::new("b", 2, &[("a", a)]), at_b);
    node_a.connected("b").await;
    node_b.connected("a").await;
    let mut changed = node_a.peers.changed();
    changed.mark_unchanged();
    let began = Instant::now();
    let large = Bytes::from(vec![7; BODY_BYTES_MAX]);
    let reply = node_a.peers.call(
        &region("b"),
        Service::Strict,
        large.clone(),
        Span::from_seconds(60),
    );
    assert_eq!(reply.await, Ok(large));
    let took = began.elapsed();
    assert!(took > Duration::from_secs(3), "the way is narrow: {took:?}");
    assert!(
        !changed.has_changed().expect("alive"),
        "the links stayed up"
    );
    let reply = node_a
        .peers
        .call(&region("b"), Service::Strict, body("x"), SOON);
    assert_eq!(reply.await, Ok(body("x")));
    node_a.stop().await;
    node_b.stop().await;
}
