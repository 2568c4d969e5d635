//! Web servers of the tests' own process, on ports that the system picks.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use axum::Router;
use axum::serve::ListenerExt;
use highwater::client::Client;
use highwater::client::OnFailure;
use tokio::net::TcpListener;
use tokio::net::TcpStream;

use crate::calls::RUNTIME;

/// Long enough that only a server that is stuck misses it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A client that has no reason to hurry.
pub fn patient(server: &str, policy: OnFailure) -> Client {
    let builder = Client::builder(server).deadline(PATIENCE);
    builder.on_failure(policy).build().expect("a client")
}

/// Serves `router` until the tests end; its address, and how many connections it has accepted.
pub fn serve(router: Router) -> (String, Arc<AtomicUsize>) {
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    let address = RUNTIME.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let listener = listener.tap_io(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    });
    (format!("http://{address}"), accepted)
}

/// Gives every connection to `answer`.
pub fn accept<F>(answer: impl Fn(TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = ()> + Send + 'static,
{
    let address = RUNTIME.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        address
    });
    format!("http://{address}")
}

/// What comes of `work`, and how long it took.
pub fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    let out = RUNTIME.block_on(work);
    (out, began.elapsed())
}
