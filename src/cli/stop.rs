//! When a long-running command is to stop.

use std::future::Future;
use std::io::Read;

/// Ready when the process is asked to stop: SIGTERM, SIGINT, or Ctrl-C.
///
/// # Errors
/// When the signals cannot be listened to.
#[cfg(unix)]
pub fn requested() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::SignalKind;
    use tokio::signal::unix::signal;

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// The same, or when the terminal is lost (SIGHUP): for what must not be left half done.
///
/// # Errors
/// When the signals cannot be listened to.
#[cfg(unix)]
pub fn requested_or_hung_up() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::SignalKind;
    use tokio::signal::unix::signal;

    let requested = requested()?;
    let mut hung_up = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            () = requested => {}
            _ = hung_up.recv() => {}
        }
    })
}

/// The same as [`requested`]: there is no such signal.
///
/// # Errors
/// When the signal cannot be listened to.
#[cfg(not(unix))]
pub fn requested_or_hung_up() -> std::io::Result<impl Future<Output = ()>> {
    requested()
}

/// Ready when the process is asked to stop by Ctrl-C.
///
/// # Errors
/// When the signal cannot be listened to.
#[cfg(not(unix))]
pub fn requested() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        // An error would come at once and mean that nobody can ask.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// Ready when standard input ends: whoever started the process has ended, however it ended.
///
/// A thread of its own reads, and not the runtime: the runtime would wait for the read when it ends.
///
/// # Errors
/// When the thread cannot be started.
pub fn parent_gone() -> std::io::Result<impl Future<Output = ()>> {
    let (gone, told) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut input = std::io::stdin().lock();
            let mut buffer = [0; 64];
            while let Ok(1..) = input.read(&mut buffer) {}
            // Nobody listens any more when the process is stopping already.
            let _ = gone.send(());
        })?;
    Ok(async {
        // An error: the thread died, which only says that the end of the input will not be told.
        if told.await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
