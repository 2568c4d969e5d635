//! What one region costs, as ratios measured in turns in the same run: `cargo bench --bench region`.
//!
//! Absolute figures of a shared machine say little; each row compares two programs that take turns, and
//! tells the median of the ratios. Everything stays on loopback and is bounded in time and count.
//!
//! Rows can be picked by name: `cargo bench --bench region -- ledger restart`.

mod exchange;
mod http;
mod ledger;
mod load;
mod redis;
mod storage;
mod wire;

/// The program's own allocator, for everything that is compared.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One row of the table.
pub struct Row {
    /// What is compared.
    pub what: &'static str,
    /// What was measured.
    pub measured: String,
    /// What is wanted.
    pub wanted: &'static str,
}

/// One measurement, with the rows that it gives.
type Bench = fn() -> Vec<Row>;

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let runs = |name: &str| {
        wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str()))
    };
    let benches: [(&str, Bench); 9] = [
        ("http", http::against_bare),
        ("batch", http::batch_against_single),
        ("hot", http::hot_key_against_many),
        ("redis", redis::against_redis),
        ("persistence", http::persistence_on_against_off),
        ("ledger", ledger::decisions),
        ("exchange", exchange::telling_and_hearing),
        ("wire", wire::entries),
        ("restart memory", storage::memory_and_restart),
    ];
    println!("| what | measured | wanted |\n|---|---|---|");
    for (name, bench) in benches {
        if runs(name) {
            for Row {
                what,
                measured,
                wanted,
            } in bench()
            {
                println!("| {what} | {measured} | {wanted} |");
            }
        }
    }
}

/// The median of a list.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
