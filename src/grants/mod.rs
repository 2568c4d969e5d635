//! Grants: how units of a strict limit get from the leader's book into a region's reservation.
//!
//! ```text
//!  region                                   leader region                         log (majority)
//!  Reservation ── Ask, Report ──────────►  Leader (soft state, lost with a term)
//!      ▲                                      │ Transfer                ──────►   Book (applied in order)
//!      └────────── Answer, Recall ◄───────────┘ ◄── applied ──────────────────────┘
//! ```
//!
//! Units are debited from the pool in the log before a region may hold them. All amounts that are told are
//! cumulative totals that merge by maximum, so every message may be lost, doubled, late or out of order, and
//! a leader that was deposed does no harm. Per (limit, epoch, key, window):
//!
//! - in the book, after every applied entry: pool + Σ (granted − returned) + Σ charged − Σ refunded = quota;
//! - in a region: spent + held + returned = received ≤ granted.
//!
//! Files: [`account`] (what is counted and who holds), [`message`] (what regions and the leader tell each
//! other), [`book`] (the replicated half), [`leader`] (who gets how much), [`log_time`] (the leader's
//! clock), [`reservation`] (the region's half), [`exchange`] (round trips and what they say of the
//! leader's clock).
//!
//! Nothing here reads a clock, waits, draws random numbers or touches disk or network.

pub mod account;
pub mod book;
pub mod exchange;
pub mod leader;
pub mod log_time;
pub mod message;
pub mod reservation;
