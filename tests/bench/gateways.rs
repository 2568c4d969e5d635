//! What gateways cost, as ratios measured in turns in the same run: `cargo bench --bench gateways -- rls`.
//!
//! CPU, not requests per second: the load shares the machine with what is measured, and its own part is taken off.

#[allow(dead_code, reason = "each bench uses its part")]
mod http;
#[allow(dead_code, reason = "each bench uses its part")]
mod load;
mod rls;

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
    let benches: [(&str, Bench); 1] = [("rls", rls::against_bare)];
    println!("| what | measured | wanted |\n|---|---|---|");
    for (name, bench) in benches {
        if runs(name) {
            for row in bench() {
                println!("| {} | {} | {} |", row.what, row.measured, row.wanted);
            }
        }
    }
}

/// The median of a list.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
