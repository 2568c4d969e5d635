//! Taking connections, the same for every listener that callers reach: so many at once, the rest waits.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use tokio::sync::watch;

use crate::domain::time::Span;
use crate::region::timers::stopped;

/// Pause after an accept that failed for want of file descriptors.
const ACCEPT_PAUSE: Span = Span::from_ms(20);

/// Hands each connection of `listener` to `take` until `stop` turns true, and closes the listener then. A connection
/// counts among the `connections_max` until its place is dropped. `take` must not wait.
pub async fn accept(
    listener: TcpListener,
    connections_max: usize,
    mut stop: watch::Receiver<bool>,
    mut take: impl FnMut(TcpStream, SocketAddr, OwnedSemaphorePermit),
) {
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        let place = tokio::select! {
            biased;
            () = stopped(&mut stop) => return,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        // Nobody closes the places.
        let Ok(place) = place else { return };
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stop) => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, hop) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE.to_std()).await;
                continue;
            }
        };
        // Small replies must not wait for the peer's acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        take(stream, hop, place);
    }
}
