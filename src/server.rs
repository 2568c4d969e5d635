//! The whole server: opens a region, binds its listeners, and knows the order of start and stop.
//!
//! Start: bind the listeners (a taken port is found before the disk is touched), open the store, bring
//! everything back, start the timers, begin to open links to the other regions, say `ready`.
//!
//! Stop: say not ready, keep serving for a moment so that balancers notice, stop accepting, finish running
//! requests, flush, close the store. A second signal ends the process at once.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::admin;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::http::listener;
use crate::http::routes;
use crate::region::clock::Clock;
use crate::region::cluster;
use crate::region::config::Config;
use crate::region::state::Region;
use crate::region::timers;
use crate::resp::listener as resp_listener;

/// A region that drains serves on for this long, so that balancers notice that it is not ready.
const DRAIN_DELAY: Span = Span::from_ms(500);
/// So often it says meanwhile what it has given back of strict limits.
const DRAIN_STEPS: u32 = 2;
/// Running requests have this long to end once the listeners are closed.
const GRACE: Span = Span::from_seconds(10);

/// Runs the region that `config` describes until `shutdown` is ready, then drains it. Prints the ready
/// line to standard output when it serves.
///
/// # Errors
/// When the region cannot start, or cannot stop cleanly.
pub async fn run(
    config: Config,
    clock: Clock,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let check = bind("listen.check", config.listen.check).await?;
    let admin = bind("listen.admin", config.listen.admin).await?;
    let peer = bind("listen.peer", config.listen.peer).await?;
    let resp = match config.listen.resp {
        Some(address) => Some(bind("listen.resp", address).await?),
        None => None,
    };
    let addresses = (check.local_addr()?, admin.local_addr()?);
    let resp_address = resp.as_ref().map(TcpListener::local_addr).transpose()?;
    let opening = config.clone();
    let peer_url = format!("http://{}", peer.local_addr()?);
    let (region, letters) =
        tokio::task::spawn_blocking(move || Region::open(&opening, clock, peer_url)).await??;
    let (stop, stopped) = watch::channel(false);
    let peers = cluster::join(&config, &region, letters, &stopped).await?;
    let linking = tokio::spawn(peers.clone().serve(peer, stopped.clone()));
    if config.peers.is_empty() {
        region.wait_until_enrolled().await?;
    }
    region.wait_until_caught_up().await;
    let restoring = Arc::clone(&region);
    tokio::task::spawn_blocking(move || restoring.restore()).await??;
    cluster::tell_peers(&region, &stopped);
    tokio::spawn(Region::restore_the_rest(Arc::downgrade(&region)));
    let (stop_flush, flush_stopped) = watch::channel(false);
    timers::start(&region, &stopped);
    let flusher = tokio::spawn(timers::flush_until(
        Arc::clone(&region),
        config.flush_interval,
        flush_stopped,
    ));
    let mut serving = vec![
        tokio::spawn(listener::serve(
            check,
            routes::router(Arc::clone(&region)),
            stopped.clone(),
            GRACE,
        )),
        tokio::spawn(listener::serve(
            admin,
            admin::router(Arc::clone(&region)),
            stopped.clone(),
            GRACE,
        )),
        linking,
    ];
    if let Some(resp) = resp {
        let tenant = config.resp_tenant.as_ref();
        serving.push(tokio::spawn(resp_listener::serve(
            resp,
            Arc::clone(&region),
            tenant.map(|tenant| Arc::from(tenant.as_str())),
            stopped.clone(),
            GRACE,
        )));
    }
    let mut ready = ready_line(&config.region, addresses.0, addresses.1);
    if let Some(address) = resp_address {
        ready.push_str(&format!(" resp=redis://{address}"));
    }
    println!("{ready}");
    tracing::info!(region = %config.region, check = %addresses.0, admin = %addresses.1, "serving");

    shutdown.await;
    tracing::info!("draining");
    region.set_draining(true);
    region.leave().await;
    for _ in 0..DRAIN_STEPS {
        tokio::time::sleep(DRAIN_DELAY.to_std() / DRAIN_STEPS).await;
        region.give_back();
    }
    stop.send_replace(true);
    for listener in serving {
        listener.await.context("a listener broke off")?;
    }
    stop_flush.send_replace(true);
    flusher.await.context("the flusher broke off")?;
    if let Some(consensus) = region.consensus() {
        consensus.shutdown().await;
    }
    peers.stop();
    region
        .store
        .close()
        .await
        .context("the store could not be closed in order")?;
    tracing::info!("stopped");
    Ok(())
}

async fn bind(field: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "{field} = \"{address}\" cannot be bound: choose a free address, or stop what uses it"
        )
    })
}

/// The one line on standard output that says that a region serves: what starts it waits for this line.
pub fn ready_line(region: &RegionName, check: SocketAddr, admin: SocketAddr) -> String {
    format!("ready region={region} check=http://{check} admin=http://{admin}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_names_the_region_and_both_listeners() {
        let region = RegionName::new("us-east-1").expect("a name");
        let check = SocketAddr::from(([127, 0, 0, 1], 7110));
        let admin = SocketAddr::from(([127, 0, 0, 1], 7111));
        assert_eq!(
            ready_line(&region, check, admin),
            "ready region=us-east-1 check=http://127.0.0.1:7110 admin=http://127.0.0.1:7111"
        );
    }
}
