//! One region's process, from its start to its end.
//!
//! A task owns the process and waits for it; everyone else learns of its end from a watched value, so that
//! it can be waited for, asked to stop and killed at the same time.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use anyhow::bail;
use tokio::io::AsyncBufReadExt;
use tokio::io::BufReader;
use tokio::process::Child;
use tokio::process::ChildStdin;
use tokio::process::ChildStdout;
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a region may take to be ready: a start with much data reads all of it.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A region that was started.
#[derive(Debug)]
pub struct Running {
    name: String,
    id: Option<u32>,
    /// Kept open after the line that says ready: a region that writes to a closed pipe would fail.
    stdout: BufReader<ChildStdout>,
    /// The region stops when this closes, as it does when this process ends.
    _stdin: Option<ChildStdin>,
    kill: oneshot::Sender<()>,
    status: watch::Receiver<Option<String>>,
}

/// How a region's process ended.
#[derive(Debug)]
pub struct Ended {
    /// Which region.
    pub region: String,
    /// Its exit status in words.
    pub status: String,
}

/// A region that is to be started.
#[derive(Debug)]
pub struct Start<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its file.
    pub file: &'a Path,
    /// What it is started with beside.
    pub flags: &'a [&'a str],
    /// Where its log goes; `None`: where that of this process goes.
    pub log: Option<File>,
}

impl Running {
    /// Starts a region with the program at `program`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn spawn(program: &Path, start: Start<'_>) -> anyhow::Result<Self> {
        let name = start.name;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg("--config")
            .arg(start.file)
            .arg("--stop-with-stdin")
            .args(start.flags);
        if let Some(log) = start.log {
            command.stderr(log);
        }
        // What is set for this process is not meant for every region.
        for (name, _) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("HIGHWATER_"))
            {
                command.env_remove(name);
            }
        }
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        // A group of its own: Ctrl-C reaches this process alone, which then stops the regions in order.
        #[cfg(unix)]
        command.process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .with_context(|| format!("region {name} cannot be started"))?;
        let stdout = child
            .stdout
            .take()
            .context("the region's output cannot be read")?;
        let (kill, killed) = oneshot::channel();
        let (tell, status) = watch::channel(None);
        let running = Self {
            name: name.to_owned(),
            id: child.id(),
            stdout: BufReader::new(stdout),
            _stdin: child.stdin.take(),
            kill,
            status,
        };
        tokio::spawn(attend(child, killed, tell));
        Ok(running)
    }

    /// The region's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the region says that it is ready.
    ///
    /// # Errors
    /// When it ends instead, or takes too long.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let stdout = &mut self.stdout;
        let said = timeout(READY_TIMEOUT, async {
            let mut line = String::new();
            while stdout.read_line(&mut line).await? > 0 {
                if line.starts_with("ready ") {
                    return Ok(true);
                }
                line.clear();
            }
            anyhow::Ok(false)
        });
        match said.await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => {
                let Ended { region, status } = self.end().await;
                bail!("region {region} ended before it was ready ({status}); its log is above")
            }
            Ok(Err(error)) => Err(error),
            Err(_) => bail!(
                "region {} was not ready within {} s",
                self.name,
                READY_TIMEOUT.as_secs()
            ),
        }
    }

    /// The region's end, whenever it comes.
    pub fn end(&self) -> impl Future<Output = Ended> + use<> {
        let region = self.name.clone();
        let mut status = self.status.clone();
        async move {
            let ended = status.wait_for(Option::is_some).await;
            let status = ended
                .ok()
                .and_then(|status| status.clone())
                .unwrap_or_else(|| "unknown".to_owned());
            Ended { region, status }
        }
    }

    /// Asks the region to drain and end.
    pub fn ask_to_stop(&self) {
        if self.status.borrow().is_some() {
            return;
        }
        #[cfg(unix)]
        signal(self.id, rustix::process::Signal::TERM);
    }

    /// Freezes the region where it is, until [`Running::go_on`].
    #[cfg(unix)]
    pub fn freeze(&self) {
        if self.status.borrow().is_none() {
            signal(self.id, rustix::process::Signal::STOP);
        }
    }

    /// Lets a frozen region go on.
    #[cfg(unix)]
    pub fn go_on(&self) {
        if self.status.borrow().is_none() {
            signal(self.id, rustix::process::Signal::CONT);
        }
    }

    /// How the region ended, when it has.
    pub fn ended(&self) -> Option<String> {
        self.status.borrow().clone()
    }

    /// Kills the region, and waits until it is gone.
    pub async fn kill(self) {
        let end = self.end();
        // The process may have ended in this moment, and nobody listens then.
        let _ = self.kill.send(());
        end.await;
    }

    /// Waits for the region's end, and kills it when that takes longer than `patience`.
    ///
    /// # Errors
    /// When it had to be killed.
    pub async fn wait_or_kill(self, patience: Duration) -> anyhow::Result<()> {
        let end = self.end();
        // On systems without signals the closed pipe is what asks.
        #[cfg(not(unix))]
        drop(self._stdin);
        if timeout(patience, end).await.is_ok() {
            return Ok(());
        }
        let mut status = self.status;
        // The process may have ended in this moment, and nobody listens then.
        let _ = self.kill.send(());
        let _ = timeout(patience, status.wait_for(Option::is_some)).await;
        bail!(
            "region {} did not end within {} s and was killed",
            self.name,
            patience.as_secs()
        )
    }
}

/// Waits for the process, or kills it when told to; then tells how it ended.
async fn attend(
    mut child: Child,
    killed: oneshot::Receiver<()>,
    tell: watch::Sender<Option<String>>,
) {
    let asked_to_kill = async {
        // An error only says that nobody will ask.
        if killed.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = child.wait() => ended,
        () = asked_to_kill => match child.start_kill() {
            Ok(()) => child.wait().await,
            Err(error) => Err(error),
        },
    };
    let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
    tell.send_replace(Some(status));
}

#[cfg(unix)]
fn signal(id: Option<u32>, signal: rustix::process::Signal) {
    let id = id
        .and_then(|id| i32::try_from(id).ok())
        .and_then(rustix::process::Pid::from_raw);
    let Some(id) = id else { return };
    if let Err(error) = rustix::process::kill_process(id, signal) {
        eprintln!("a region cannot be signalled: {error}");
    }
}
