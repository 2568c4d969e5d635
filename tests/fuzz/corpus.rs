//! Writes the samples of every decoder to `corpus/decoder`, for the fuzzer to begin from:
//! `cargo run --manifest-path tests/fuzz/Cargo.toml --bin corpus`.

use std::fs;
use std::path::Path;

#[path = "targets.rs"]
mod targets;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/decoder");
    fs::create_dir_all(&folder)?;
    for (index, target) in targets::TARGETS.iter().enumerate() {
        for (n, sample) in (target.samples)().into_iter().enumerate() {
            assert!(
                (target.run)(&sample),
                "{} refuses its own sample",
                target.name
            );
            // The first byte picks the decoder; a fuzzer of one decoder learns to do without it.
            let mut input = vec![u8::try_from(index).expect("fewer than 256 decoders")];
            input.extend(sample);
            fs::write(folder.join(format!("{}-{n}", target.name)), input)?;
        }
    }
    println!(
        "{} holds samples of {} decoders",
        folder.display(),
        targets::by_name().len()
    );
    Ok(())
}
