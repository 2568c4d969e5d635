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
use crate::grpc;
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
    let grpc = bind_if_wanted("listen.grpc", config.listen.grpc).await?;
    let resp = bind_if_wanted("listen.resp", config.listen.resp).await?;
    let mut addresses = vec![
        ("check", "http", check.local_addr()?),
        ("admin", "http", admin.local_addr()?),
    ];
    if let Some(grpc) = &grpc {
        addresses.push(("grpc", "http", grpc.local_addr()?));
    }
    if let Some(resp) = &resp {
        addresses.push(("resp", "redis", resp.local_addr()?));
    }
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
    if let Some(grpc) = grpc {
        let routes = grpc::routes(&region, &stopped)?;
        serving.push(tokio::spawn(grpc::listener::serve(
            grpc,
            routes,
            stopped.clone(),
            GRACE,
        )));
    }
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
    let ready = ready_line(&config.region, &addresses);
    println!("{ready}");
    tracing::info!(listeners = ready, "serving");

    shutdown.await;
    drain(&region).await;
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

/// Says to whoever sends traffic here that it is to go elsewhere, and gives back what others can use.
async fn drain(region: &Arc<Region>) {
    tracing::info!("draining");
    region.drain_for(None);
    region.leave().await;
    for _ in 0..DRAIN_STEPS {
        tokio::time::sleep(DRAIN_DELAY.to_std() / DRAIN_STEPS).await;
        region.give_back();
    }
}

async fn bind(field: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "{field} = \"{address}\" cannot be bound: choose a free address, or stop what uses it"
        )
    })
}

async fn bind_if_wanted(
    field: &str,
    address: Option<SocketAddr>,
) -> anyhow::Result<Option<TcpListener>> {
    match address {
        Some(address) => bind(field, address).await.map(Some),
        None => Ok(None),
    }
}

/// The one line on standard output that says that a region serves, and where: what starts it waits for this line.
pub fn ready_line(region: &RegionName, addresses: &[(&str, &str, SocketAddr)]) -> String {
    let mut line = format!("ready region={region}");
    for (listener, scheme, address) in addresses {
        line.push_str(&format!(" {listener}={scheme}://{address}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_names_the_region_and_its_listeners() {
        let region = RegionName::new("us-east-1").expect("a name");
        let check = SocketAddr::from(([127, 0, 0, 1], 7110));
        let admin = SocketAddr::from(([127, 0, 0, 1], 7111));
        assert_eq!(
            ready_line(
                &region,
                &[("check", "http", check), ("admin", "http", admin)]
            ),
            "ready region=us-east-1 check=http://127.0.0.1:7110 admin=http://127.0.0.1:7111"
        );
    }
}
