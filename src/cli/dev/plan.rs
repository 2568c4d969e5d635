//! Which regions `dev` runs, on which ports, with which files.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::io::Write;
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::bail;

use crate::cli::client::DEV_TOKEN;
use crate::domain::time::Span;

/// The regions' names, in order.
const NAMES: [&str; 8] = [
    "us-east-1",
    "eu-west-1",
    "ap-south-1",
    "sa-east-1",
    "ap-northeast-1",
    "us-west-2",
    "eu-central-1",
    "af-south-1",
];
/// The most regions.
pub const REGIONS_MAX: i64 = 8;
const _: () = assert!(NAMES.len() == 8);

/// Ports from one region to the next, of which the first few are used.
const PORTS_PER_REGION: u16 = 10;
/// The highest port of a region that any build uses, from its first.
const PORTS_USED: u16 = 4;

/// What `dev` runs.
#[derive(Debug)]
pub struct Plan {
    /// The regions, in order.
    pub regions: Vec<RegionPlan>,
    /// The one-way delay between any two.
    pub latency: Span,
    /// What they prove their membership with.
    pub peer_secret: String,
}

/// One region of `dev`.
#[derive(Clone, Debug)]
pub struct RegionPlan {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub file: PathBuf,
    /// Its data.
    pub data_dir: PathBuf,
    /// The port of its check listener; admin is one above, peer two, gRPC three, RESP four.
    pub port: u16,
}

impl Plan {
    /// `count` regions from `base_port` on, with their files and data in `dir`. Messages between them take
    /// `latency` one way, and they know each other by `peer_secret`.
    ///
    /// # Errors
    /// When the ports do not fit.
    pub fn new(
        count: u16,
        base_port: u16,
        dir: &Path,
        latency: Span,
        peer_secret: String,
    ) -> anyhow::Result<Self> {
        let top = u32::from(base_port)
            + u32::from(PORTS_PER_REGION) * u32::from(count)
            + u32::from(PORTS_USED);
        if base_port == 0 || top > u32::from(u16::MAX) {
            let most = u32::from(u16::MAX) + u32::from(base_port) - top;
            bail!("--base-port {base_port} does not fit {count} regions; give 1 to {most}");
        }
        let region = |(name, first): (&'static str, u16)| RegionPlan {
            name,
            file: dir.join(format!("{name}.toml")),
            data_dir: dir.join(name),
            port: base_port + PORTS_PER_REGION * first,
        };
        Ok(Self {
            regions: NAMES.into_iter().zip(1..=count).map(region).collect(),
            latency,
            peer_secret,
        })
    }

    /// Makes sure that the ports are free, so that a port in use is told before anything is started.
    ///
    /// # Errors
    /// The first port that is not.
    pub fn check_ports(&self) -> anyhow::Result<()> {
        for region in &self.regions {
            let listeners = [
                (region.check(), "check"),
                (region.admin(), "admin"),
                (region.peer(), "peer"),
                (region.grpc(), "gRPC"),
                (region.resp(), "resp"),
            ];
            for (address, listener) in listeners {
                match TcpListener::bind(address) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
                        "port {} ({listener} listener of {}) is in use; stop what uses it, or choose other ports with \
                         --base-port",
                        address.port(),
                        region.name
                    ),
                    Err(error) => bail!(
                        "port {} cannot be opened: {error}; choose others with --base-port",
                        address.port()
                    ),
                }
            }
        }
        Ok(())
    }
}

impl RegionPlan {
    /// The address of the check listener.
    pub fn check(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The address of the admin listener.
    pub fn admin(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port + 1))
    }

    fn peer(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port + 2))
    }

    /// The address of the listener for Redis clients.
    pub fn resp(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port + 4))
    }

    /// The address of the gRPC listener.
    pub fn grpc(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port + 3))
    }

    /// The region's file, as one of those of `plan`.
    pub fn to_toml(&self, plan: &Plan) -> String {
        let data_dir = toml::Value::String(self.data_dir.display().to_string());
        let mut text = format!(
            "cluster = \"dev\"\nregion = \"{}\"\ndata_dir = {data_dir}\nlisten.check = \"{}\"\nlisten.admin = \"{}\"\n\
             listen.peer = \"{}\"\nlisten.grpc = \"{}\"\nlisten.resp = \"{}\"\nresp.tenant = \"demo\"\n\
             auth.admin_token = \"{DEV_TOKEN}\"\nauth.peer_secret = \"{}\"\n\
             faults.enabled = true\n",
            self.name,
            self.check(),
            self.admin(),
            self.peer(),
            self.grpc(),
            self.resp(),
            plan.peer_secret,
        );
        for other in plan.regions.iter().filter(|other| other.name != self.name) {
            text.push_str(&format!(
                "\n[[peers]]\nregion = \"{}\"\nurl = \"http://{}\"\nlatency = \"{}\"\n",
                other.name,
                other.peer(),
                plan.latency
            ));
        }
        text
    }
}

/// Writes the file of `region`, one of those of `plan`, readable by its owner alone because it holds a token.
///
/// # Errors
/// When it cannot be written.
pub fn write_file(region: &RegionPlan, plan: &Plan) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let written = options
        .open(&region.file)
        .and_then(|mut file| file.write_all(region.to_toml(plan).as_bytes()));
    written.with_context(|| format!("{} cannot be written", region.file.display()))
}

#[cfg(test)]
mod tests {
    use crate::region::config::Above;
    use crate::region::config::Config;

    use super::*;

    fn plan(count: u16, base_port: u16, dir: &str) -> anyhow::Result<Plan> {
        let latency = Span::from_ms(40);
        Plan::new(count, base_port, Path::new(dir), latency, "s3".to_owned())
    }

    #[test]
    fn names_and_ports_follow_the_order() {
        let three = plan(3, 7100, "/d").expect("fits");
        let told: Vec<String> = three
            .regions
            .iter()
            .map(|region| format!("{} {} {}", region.name, region.check(), region.admin()))
            .collect();
        assert_eq!(
            told,
            [
                "us-east-1 127.0.0.1:7110 127.0.0.1:7111",
                "eu-west-1 127.0.0.1:7120 127.0.0.1:7121",
                "ap-south-1 127.0.0.1:7130 127.0.0.1:7131",
            ]
        );
        assert_eq!(plan(8, 7100, "/d").expect("fits").regions.len(), 8);
    }

    #[test]
    fn ports_must_fit() {
        assert!(plan(3, 65_501, "/d").is_ok());
        let told = plan(3, 65_502, "/d").expect_err("does not fit").to_string();
        assert_eq!(
            told,
            "--base-port 65502 does not fit 3 regions; give 1 to 65501"
        );
        assert!(plan(1, 0, "/d").is_err());
    }

    #[test]
    fn a_regions_file_is_a_configuration() {
        let plan = plan(3, 7100, "/a \"b\"").expect("fits");
        let region = &plan.regions[1];
        let config = Config::resolve("x", &region.to_toml(&plan), Above::default()).expect("valid");
        assert_eq!(config.region.as_str(), "eu-west-1");
        assert_eq!(config.data_dir, Path::new("/a \"b\"/eu-west-1"));
        assert_eq!(config.listen.admin, region.admin());
        assert!(config.faults_enabled);
        assert!(config.auth.admin_token.expect("given").matches("dev"));
        assert!(config.auth.peer_secret.expect("given").matches("s3"));
        let peers: Vec<String> = config
            .peers
            .iter()
            .map(|peer| format!("{} {} {}", peer.region, peer.url, peer.latency))
            .collect();
        assert_eq!(
            peers,
            [
                "us-east-1 http://127.0.0.1:7112 40ms",
                "ap-south-1 http://127.0.0.1:7132 40ms",
            ]
        );
    }

    #[test]
    fn a_port_in_use_is_named_with_the_way_out() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let region = RegionPlan {
            name: "us-east-1",
            file: PathBuf::new(),
            data_dir: PathBuf::new(),
            port,
        };
        let told = Plan {
            regions: vec![region],
            latency: Span::ZERO,
            peer_secret: String::new(),
        }
        .check_ports()
        .expect_err("in use")
        .to_string();
        assert!(
            told.starts_with(&format!(
                "port {port} (check listener of us-east-1) is in use;"
            )),
            "{told}"
        );
        assert!(told.contains("--base-port"), "{told}");
    }
}
