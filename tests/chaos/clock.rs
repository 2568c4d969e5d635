//! The harness's clock: Unix milliseconds that never go back.

use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

/// See the module. Copies tell the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    began_unix_ms: i64,
}

impl Clock {
    /// A clock that starts at the system's time.
    pub fn start() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        Self {
            began: Instant::now(),
            began_unix_ms: i64::try_from(since.as_millis()).expect("near"),
        }
    }

    /// Unix milliseconds.
    pub fn now(&self) -> i64 {
        self.began_unix_ms + self.since_start_ms()
    }

    /// Milliseconds since the start.
    pub fn since_start_ms(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_millis()).expect("near")
    }
}
