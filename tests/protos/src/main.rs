//! Makes the messages and the services of `src/grpc/proto` from their .proto files, without `protoc`.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::bail;
use prost::Message;

/// The file that brings all others with it.
const ROOT: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> anyhow::Result<()> {
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(other) => bail!("{other}: only --check is known"),
    };
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/grpc/proto");
    let made = std::env::temp_dir().join(format!("highwater-protos-{}", std::process::id()));
    fs::create_dir_all(&made)?;
    let files = protox::compile([ROOT], [&protos])?;
    fs::write(made.join("descriptors.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(&made)
        .compile_fds(files)?;
    let mut written: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&made)? {
        let path = entry?.path();
        let name = path.file_name().context("a file")?;
        // A package is a folder, its last part the file: `envoy.r#type.v3.rs` is `envoy/type/v3.rs`.
        let name = name.to_string_lossy().replace("r#", "");
        let target = match name.strip_suffix(".rs") {
            Some(package) => protos.join(package.replace('.', "/")).with_extension("rs"),
            None => protos.join(name),
        };
        let mut bytes = fs::read(&path)?;
        if target.extension().is_some_and(|extension| extension == "rs") {
            let text = String::from_utf8(bytes)?;
            bytes = format!("//! Made by tests/protos from the .proto files beside it.\n\n{text}").into_bytes();
        }
        if !check {
            fs::write(&target, bytes)?;
            written.push(target);
        } else if fs::read(&target).ok().as_ref() != Some(&bytes) {
            bail!("{} is not what would be written; run this without --check", target.display());
        }
    }
    fs::remove_dir_all(&made)?;
    for path in written {
        println!("{}", path.display());
    }
    Ok(())
}
