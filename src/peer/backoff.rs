//! How long to wait before a peer is tried again. Pure.

use crate::domain::draws::Draws;
use crate::domain::time::Span;

/// After the first failure.
const PAUSE_MIN: Span = Span::from_ms(50);
/// At most.
pub const PAUSE_MAX: Span = Span::from_seconds(1);

/// Pauses that double from 50 ms to 1 s, each shortened by chance by up to a quarter, so that regions that
/// lost each other at one moment do not all come back at one.
#[derive(Debug)]
pub struct Backoff {
    pause: Span,
    draws: Draws,
}

impl Backoff {
    /// Starts at the shortest pause.
    pub const fn new(seed: u64) -> Self {
        Self {
            pause: PAUSE_MIN,
            draws: Draws::new(seed),
        }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Span {
        let pause = self.pause;
        self.pause = pause.plus(pause).min(PAUSE_MAX);
        pause.minus(self.draws.up_to(Span::from_nanos(pause.as_nanos() / 4)))
    }

    /// It worked: begin anew.
    pub const fn reset(&mut self) {
        self.pause = PAUSE_MIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second() {
        let mut backoff = Backoff::new(3);
        for ms in [50, 100, 200, 400, 800, 1000, 1000] {
            let pause = backoff.pause();
            assert!(pause <= Span::from_ms(ms), "{pause} {ms}");
            assert!(pause >= Span::from_ms(ms * 3 / 4), "{pause} {ms}");
        }
        backoff.reset();
        assert!(backoff.pause() <= Span::from_ms(50));
    }
}
