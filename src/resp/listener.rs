//! Accepting connections of Redis clients: replies of what arrived together are written together, and what is
//! half said, unauthenticated or not read is waited for a bounded time.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Sleep;

use crate::domain::time::Span;
use crate::http::accept::accept;
use crate::region::config::CheckAuth;
use crate::region::state::Region;
use crate::region::timers::stopped;
use crate::resp::parse;
use crate::resp::reply::Replies;
use crate::resp::session::Session;

/// A command that has begun must have arrived this long after it; so must a token where one is wanted.
pub const COMMAND_DEADLINE: Span = Span::from_seconds(30);
/// A client must take its replies within this time.
const WRITE_DEADLINE: Span = Span::from_seconds(30);
/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 16_384;
/// Bytes that are asked for at once.
const READ_BYTES: usize = 16 * 1_024;
/// Replies are written once they are so long, also while more commands are there.
const REPLY_BYTES: usize = 64 * 1_024;

/// Serves `region` on `listener` until `stop` turns true; then lets commands that run end, up to `grace`.
/// `tenant` is that of clients that name none.
pub async fn serve(
    listener: TcpListener,
    region: Arc<Region>,
    tenant: Option<Arc<str>>,
    stop: watch::Receiver<bool>,
    grace: Span,
) {
    let mut connections = JoinSet::new();
    let mut id = 0_i64;
    let stops = stop.clone();
    let take = |stream, _, place| {
        // Those that have ended are forgotten.
        while connections.try_join_next().is_some() {}
        id = id.saturating_add(1);
        let session = Session::new(Arc::clone(&region), id, tenant.clone());
        let wants_token = region.check_auth == CheckAuth::Token;
        let stop = stops.clone();
        connections.spawn(async move {
            if let Err(error) = converse(stream, session, wants_token, stop).await {
                tracing::debug!(%error, "a connection broke off");
            }
            drop(place);
        });
    };
    accept(listener, CONNECTIONS_MAX, stop, take).await;
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace.to_std(), ended).await.is_err() {
        tracing::warn!("some commands did not end within {grace}; their connections are dropped");
    }
}

/// Answers one connection until it ends.
async fn converse(
    mut stream: TcpStream,
    mut session: Session,
    wants_token: bool,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut input = BytesMut::with_capacity(READ_BYTES);
    let mut replies = Replies::default();
    let mut deadline: Option<Pin<Box<Sleep>>> = None;
    loop {
        let is_broken = answer_all(&mut input, &mut session, &mut replies, &mut stream).await?;
        write(&mut stream, &mut replies).await?;
        if is_broken || session.is_over {
            return stream.shutdown().await;
        }
        let must_go_on = !input.is_empty() || (wants_token && !session.is_known());
        if !must_go_on {
            deadline = None;
        } else if deadline.is_none() {
            deadline = Some(Box::pin(tokio::time::sleep(COMMAND_DEADLINE.to_std())));
        }
        input.reserve(READ_BYTES);
        let read = tokio::select! {
            biased;
            () = stopped(&mut stop) => return stream.shutdown().await,
            () = until(&mut deadline) => return stream.shutdown().await,
            read = stream.read_buf(&mut input) => read?,
        };
        if read == 0 {
            return Ok(());
        }
        session.look_again().await;
    }
}

async fn until(deadline: &mut Option<Pin<Box<Sleep>>>) {
    match deadline {
        Some(deadline) => deadline.await,
        None => std::future::pending().await,
    }
}

/// Runs all commands that have arrived in full. True when nothing more can be understood.
async fn answer_all(
    input: &mut BytesMut,
    session: &mut Session,
    replies: &mut Replies,
    stream: &mut TcpStream,
) -> std::io::Result<bool> {
    let mut at = 0;
    loop {
        let rest = input.get(at..).unwrap_or_default();
        match parse::command(rest) {
            Ok(Some(command)) => {
                session.run(&command.words, replies).await;
                at += command.length;
            }
            Ok(None) => break,
            Err(error) => {
                replies.error(&format!("ERR Protocol error: {error}"));
                return Ok(true);
            }
        }
        if session.is_over {
            break;
        }
        if replies.bytes.len() >= REPLY_BYTES {
            write(stream, replies).await?;
        }
    }
    input.advance(at);
    Ok(false)
}

async fn write(stream: &mut TcpStream, replies: &mut Replies) -> std::io::Result<()> {
    if replies.bytes.is_empty() {
        return Ok(());
    }
    let deadline: Duration = WRITE_DEADLINE.to_std();
    tokio::time::timeout(deadline, stream.write_all(&replies.bytes))
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    replies.bytes.clear();
    replies.bytes.shrink_to(REPLY_BYTES);
    Ok(())
}
