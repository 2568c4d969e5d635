//! What is told while a drill runs, on standard error: a line for everything that happens, and how things stand. On a
//! terminal the standing is one line that is written over; elsewhere it is a plain line every few seconds.

use std::io::IsTerminal;
use std::io::Write;

use parking_lot::Mutex;

/// Between two standings where nothing is written over.
const PLAIN_EVERY_MS: u64 = 5_000;

/// Where progress is told.
#[derive(Debug)]
pub struct Progress {
    is_terminal: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The standing that is on the terminal's last line.
    standing: String,
    told_ms: Option<u64>,
}

impl Progress {
    /// To standard error.
    pub fn to_stderr() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            state: Mutex::new(State::default()),
        }
    }

    /// Something happened.
    pub fn event(&self, at_ms: u64, what: &str) {
        let mut state = self.state.lock();
        let line = format!("{:>6}.{} s  {what}\n", at_ms / 1_000, at_ms % 1_000 / 100);
        if self.is_terminal {
            write(&format!("\r\x1b[2K{line}{}", state.standing));
        } else {
            write(&line);
        }
        state.told_ms = state.told_ms.max(Some(at_ms));
    }

    /// A line without a time.
    pub fn say(&self, what: &str) {
        self.end();
        write(&format!("{what}\n"));
    }

    /// How things stand.
    pub fn standing(&self, at_ms: u64, standing: &str) {
        let mut state = self.state.lock();
        if self.is_terminal {
            state.standing = format!("{:>6}.{} s  {standing}", at_ms / 1_000, at_ms % 1_000 / 100);
            write(&format!("\r\x1b[2K{}", state.standing));
            return;
        }
        if state
            .told_ms
            .is_some_and(|told| at_ms < told + PLAIN_EVERY_MS)
        {
            return;
        }
        drop(state);
        self.event(at_ms, standing);
    }

    /// No standing is told any more.
    pub fn end(&self) {
        let mut state = self.state.lock();
        if self.is_terminal && !state.standing.is_empty() {
            state.standing.clear();
            write("\r\x1b[2K");
        }
    }
}

/// Nobody may be reading; that is no reason to end a drill half way.
fn write(text: &str) {
    let mut error = std::io::stderr().lock();
    let _ = error.write_all(text.as_bytes());
    let _ = error.flush();
}
