//! What a region reads from another one on a link: a greeting, then frames.

use highwater::domain::name::RegionName;
use highwater::domain::time::Timestamp;
use highwater::peer::Identity;
use highwater::peer::Refusal;
use highwater::peer::WIRE_VERSION;
use highwater::peer::frame;
use highwater::peer::frame::Decline;
use highwater::peer::frame::Decoder;
use highwater::peer::frame::Greeting;
use highwater::peer::frame::Head;
use highwater::peer::identity;
use highwater::peer::identity::Hello;

use super::Target;

/// See the module.
pub const LINK: Target = Target {
    name: "link",
    run: link,
    samples: links,
};

/// Reads a whole link; whether all of it was taken.
pub fn link(bytes: &[u8]) -> bool {
    let mut decoder = Decoder::new();
    // In two parts, as a network would.
    let (first, second) = bytes.split_at(bytes.len() / 2);
    decoder.push(first);
    decoder.push(second);
    let Ok(Some(first)) = decoder.frame() else {
        return false;
    };
    let Ok(Ok(greeting)) = frame::decode_greeting(&first) else {
        return false;
    };
    let again = frame::encode_greeting(&greeting, WIRE_VERSION);
    assert_eq!(
        frame::decode_greeting(&again[4..]),
        Ok(Ok(greeting.clone()))
    );
    if let Greeting::Hello(hello) = &greeting {
        // Whatever was said, there is an answer to it.
        let _ = identity::check_hello(&identity("us-east-1"), hello);
    }
    decoder.greeted();
    loop {
        match decoder.frame() {
            Ok(Some(next)) => {
                let Ok((head, body)) = frame::decode(next) else {
                    return false;
                };
                let again = frame::encode_head(&head, 0).slice(4..);
                assert_eq!(frame::decode(again).map(|(head, _)| head), Ok(head));
                assert!(body.len() <= frame::BODY_BYTES_MAX);
            }
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn identity(region: &str) -> Identity {
    Identity {
        wire_version: WIRE_VERSION,
        cluster: "prod".to_owned(),
        cluster_id: Some(7),
        region: RegionName::new(region).expect("a region's name"),
        incarnation: 1,
        voter: 2,
        time_zones: "2026a".to_owned(),
        is_empty: false,
    }
}

/// Links that are taken.
pub fn links() -> Vec<Vec<u8>> {
    let hello = Greeting::Hello(Hello {
        identity: identity("eu-west-1"),
        to: RegionName::new("us-east-1").expect("a region's name"),
    });
    let time = Timestamp::from_unix_ms(1_796_000_000_000);
    let heads = [
        (Head::Request { id: 1, service: 1 }, "a body"),
        (Head::Tell { service: 4 }, "another"),
        (Head::Reply { id: 1 }, ""),
        (
            Head::Declined {
                id: 2,
                why: Decline::Unserved,
            },
            "",
        ),
        (Head::Ping { id: 3, sent: time }, ""),
        (
            Head::Pong {
                id: 3,
                sent: time,
                received: time,
                answered: time,
            },
            "",
        ),
        (Head::Identity(identity("eu-west-1")), ""),
    ];
    let mut whole = frame::encode_greeting(&hello, WIRE_VERSION).to_vec();
    for (head, body) in &heads {
        whole.extend_from_slice(&frame::encode_head(head, body.len()));
        whole.extend_from_slice(body.as_bytes());
    }
    let refused = Greeting::Refused(Refusal::TwoIncarnations);
    vec![
        whole,
        frame::encode_greeting(&refused, WIRE_VERSION).to_vec(),
    ]
}
