//! `CL.THROTTLE` where there are several regions: each counts alone, and its peers keep what it counted.

use reqwest::Method;
use serde_json::Value;

use crate::group::Cluster;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::redis_client::Redis;
use crate::server::Server;
use crate::server::wait_until;

const KEYS: usize = 40;

/// A look at a key that may be used 16 times in ten days.
fn remaining(redis: &mut Redis, key: &str) -> String {
    let reply = redis.call(&["CL.THROTTLE", key, "15", "1", "864000", "0"]);
    reply.split(' ').nth(2).expect("five numbers").to_owned()
}

fn live_counters(server: &Server) -> f64 {
    let metrics = server.admin(Method::GET, "/metrics", &Value::Null).text;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("highwater_live_counters "));
    let (_, value) = line.expect("the metric").split_once(' ').expect("a value");
    value.parse().expect("a number")
}

#[test]
fn a_region_that_lost_everything_is_told_by_its_peers_which_keys_were_throttled() {
    let setup = Setup {
        settings: &[("listen.resp", "\"127.0.0.1:0\""), ("resp.tenant", "\"t\"")],
        ..Setup::of(3)
    };
    let mut cluster = Cluster::set_up(&setup);
    let victim = cluster.follower();
    let others = cluster.others(victim);
    let before: Vec<f64> = others
        .iter()
        .map(|other| live_counters(&cluster[*other]))
        .collect();
    let keys: Vec<String> = (0..KEYS).map(|key| format!("user {key}")).collect();
    let mut redis = Redis::connect(&cluster[victim]);
    for key in &keys {
        let reply = redis.call(&["CL.THROTTLE", key, "15", "1", "864000", "5"]);
        assert!(reply.starts_with("[0 16 11 -1 "), "{reply}");
    }
    for (other, before) in others.iter().zip(before) {
        wait_until("the peers know of the keys", WITHIN, || {
            live_counters(&cluster[*other]) >= before + 40.0
        });
        let mut redis = Redis::connect(&cluster[*other]);
        assert_eq!(
            remaining(&mut redis, &keys[0]),
            "16",
            "each region counts alone"
        );
    }
    cluster.kill(victim);
    cluster.wipe(victim);
    cluster.start_again(victim);
    let mut redis = Redis::connect(&cluster[victim]);
    for key in &keys {
        wait_until("it knows what the key has used", WITHIN, || {
            remaining(&mut redis, key) == "11"
        });
    }
}
