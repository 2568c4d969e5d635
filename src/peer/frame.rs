//! The frames of a link: a length, a head in postcard, and the rest of the bytes as the body.
//!
//! ```text
//! 0        4                 4 + head      4 + length
//! │ length │ head (postcard) │ body        │
//! ```
//!
//! `length` is little endian and counts what follows it. The first frame in each direction is a greeting,
//! which begins with a mark and the wire version, so that what another version says after them need not be
//! understood. Bodies are opaque here. Pure; nothing that comes from outside can make it panic, and a frame
//! takes memory only as its bytes arrive.

use bytes::Buf;
use bytes::BufMut;
use bytes::Bytes;
use bytes::BytesMut;
use serde::Deserialize;
use serde::Serialize;
use thiserror::Error;

use crate::domain::time::Timestamp;
use crate::peer::identity::Hello;
use crate::peer::identity::Identity;
use crate::peer::identity::Refusal;
use crate::peer::identity::check_version;

/// The largest body.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// The largest head, and the largest greeting.
const HEAD_BYTES_MAX: usize = 1024;
/// The bytes of a frame's length.
const LENGTH_BYTES: usize = 4;
/// How a greeting begins.
const MARK: [u8; 4] = *b"HWPL";

/// What a frame says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Head {
    /// Wants a reply.
    Request {
        /// Names the request on its link.
        id: u64,
        /// Whom it is for.
        service: u8,
    },
    /// Wants none.
    Tell {
        /// Whom it is for.
        service: u8,
    },
    /// Answers a request.
    Reply {
        /// The request.
        id: u64,
    },
    /// A request that will not be answered.
    Declined {
        /// The request.
        id: u64,
        /// Why.
        why: Decline,
    },
    /// Wants a [`Head::Pong`] at once.
    Ping {
        /// Names the ping on its link.
        id: u64,
        /// The sender's time.
        sent: Timestamp,
    },
    /// Answers a ping.
    Pong {
        /// The ping.
        id: u64,
        /// The time in the ping.
        sent: Timestamp,
        /// When the ping came in.
        received: Timestamp,
        /// When this answer went out.
        answered: Timestamp,
    },
    /// Who the sender is by now.
    Identity(Identity),
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decline {
    /// Nobody serves what it asks for.
    Unserved,
    /// Too many requests run.
    Busy,
}

/// The first frame in each direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    /// Who speaks.
    Hello(Hello),
    /// The other does not speak to us.
    Refused(Refusal),
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("not a frame: {0}")]
pub struct Garbage(&'static str);

fn framed(write: impl FnOnce(Vec<u8>) -> Vec<u8>, body_bytes: usize) -> Bytes {
    let mut frame = write(vec![0; LENGTH_BYTES]);
    let length = frame.len() - LENGTH_BYTES + body_bytes;
    let length = u32::try_from(length).expect("invariant: bodies have at most 8 MiB");
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    Bytes::from(frame)
}

fn extend<T: Serialize>(value: &T, out: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(value, out)
        .expect("invariant: heads are plain data, which postcard can always write")
}

/// The bytes before a body of `body_bytes`, which is at most [`BODY_BYTES_MAX`].
pub fn encode_head(head: &Head, body_bytes: usize) -> Bytes {
    framed(|out| extend(head, out), body_bytes)
}

/// The frame of a greeting by a region that writes the wire format `version`.
pub fn encode_greeting(greeting: &Greeting, version: u16) -> Bytes {
    framed(
        |mut out| {
            out.put_slice(&MARK);
            out.put_u16_le(version);
            extend(greeting, out)
        },
        0,
    )
}

/// Reads what [`encode_head`] wrote, without the length, and the body behind it.
///
/// # Errors
/// When it is not that.
pub fn decode(mut frame: Bytes) -> Result<(Head, Bytes), Garbage> {
    let (head, rest) =
        postcard::take_from_bytes::<Head>(&frame).map_err(|_| Garbage("an unknown head"))?;
    let head_bytes = frame.len() - rest.len();
    frame.advance(head_bytes);
    let carries = match &head {
        Head::Request { .. } | Head::Tell { .. } | Head::Reply { .. } => true,
        Head::Identity(identity) if !identity.is_bounded() => {
            return Err(Garbage("an identity that is too long"));
        }
        Head::Declined { .. } | Head::Ping { .. } | Head::Pong { .. } | Head::Identity(_) => false,
    };
    if !carries && !frame.is_empty() {
        return Err(Garbage("bytes behind a head without a body"));
    }
    if frame.len() > BODY_BYTES_MAX {
        return Err(Garbage("a body that is too long"));
    }
    Ok((head, frame))
}

/// Reads what [`encode_greeting`] wrote, without the length.
///
/// # Errors
/// When it is not that. `Ok(Err(_))`: it is a greeting of a version that cannot be read.
pub fn decode_greeting(frame: &[u8]) -> Result<Result<Greeting, Refusal>, Garbage> {
    let rest = frame
        .strip_prefix(&MARK)
        .ok_or(Garbage("a greeting without its mark"))?;
    let (version, rest) = rest
        .split_first_chunk::<2>()
        .ok_or(Garbage("a greeting without its version"))?;
    let version = u16::from_le_bytes(*version);
    if let Err(refusal) = check_version(version) {
        return Ok(Err(refusal));
    }
    let (greeting, rest) = postcard::take_from_bytes::<Greeting>(rest)
        .map_err(|_| Garbage("a greeting that cannot be read"))?;
    match &greeting {
        _ if !rest.is_empty() => Err(Garbage("bytes behind a greeting")),
        Greeting::Hello(hello) if hello.identity.wire_version != version => {
            Err(Garbage("a greeting with two versions"))
        }
        Greeting::Hello(hello) if !hello.identity.is_bounded() => {
            Err(Garbage("an identity that is too long"))
        }
        Greeting::Hello(_) | Greeting::Refused(_) => Ok(Ok(greeting)),
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    frame_bytes_max: usize,
}

impl Decoder {
    /// A decoder that takes nothing but a greeting until [`Decoder::greeted`].
    pub fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            frame_bytes_max: HEAD_BYTES_MAX,
        }
    }

    /// Takes frames of full size from now on.
    pub const fn greeted(&mut self) {
        self.frame_bytes_max = HEAD_BYTES_MAX + BODY_BYTES_MAX;
    }

    /// Takes more bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame without its length; `None`: it has not arrived yet.
    ///
    /// # Errors
    /// When it is too long or empty. Nothing that follows can be read then.
    pub fn frame(&mut self) -> Result<Option<Bytes>, Garbage> {
        let Some(length) = self.buffer.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length == 0 || length > self.frame_bytes_max {
            return Err(Garbage("a length out of range"));
        }
        if self.buffer.len() - LENGTH_BYTES < length {
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::proptest;

    use crate::domain::name::RegionName;
    use crate::peer::identity::WIRE_VERSION;

    use super::*;

    fn identity() -> Identity {
        Identity {
            wire_version: WIRE_VERSION,
            cluster: "c".repeat(64),
            cluster_id: Some(u64::MAX),
            region: RegionName::new(&"r".repeat(64)).expect("a name"),
            incarnation: u64::MAX,
            voter: u64::MAX,
            time_zones: "z".repeat(64),
            is_empty: false,
        }
    }

    fn heads() -> Vec<Head> {
        let time = Timestamp::from_unix_ms(1);
        vec![
            Head::Request { id: 1, service: 1 },
            Head::Tell { service: 255 },
            Head::Reply { id: u64::MAX },
            Head::Declined {
                id: 3,
                why: Decline::Busy,
            },
            Head::Ping { id: 4, sent: time },
            Head::Pong {
                id: 4,
                sent: time,
                received: time,
                answered: Timestamp::MAX,
            },
            Head::Identity(identity()),
        ]
    }

    #[test]
    fn frames_are_read_back_however_they_are_cut() {
        let mut written = Vec::new();
        for (number, head) in heads().into_iter().enumerate() {
            let body = if number < 3 {
                vec![7; 3000 * number]
            } else {
                Vec::new()
            };
            written.extend_from_slice(&encode_head(&head, body.len()));
            written.extend_from_slice(&body);
        }
        for step in [1, 3, 1000, written.len()] {
            let mut decoder = Decoder::new();
            decoder.greeted();
            let mut read = Vec::new();
            for chunk in written.chunks(step) {
                decoder.push(chunk);
                while let Some(frame) = decoder.frame().expect("frames") {
                    read.push(decode(frame).expect("a frame"));
                }
            }
            let bodies: Vec<usize> = read.iter().map(|(_, body)| body.len()).collect();
            assert_eq!(bodies, [0, 3000, 6000, 0, 0, 0, 0]);
            assert_eq!(
                read.into_iter()
                    .map(|(head, _)| head)
                    .collect::<Vec<Head>>(),
                heads()
            );
        }
    }

    #[test]
    fn a_greeting_is_read_back_and_fits_its_bound() {
        let hello = Greeting::Hello(Hello {
            identity: identity(),
            to: RegionName::new(&"x".repeat(64)).expect("a name"),
        });
        for greeting in [hello, Greeting::Refused(Refusal::WrongRegion)] {
            let mut decoder = Decoder::new();
            decoder.push(&encode_greeting(&greeting, WIRE_VERSION));
            let frame = decoder.frame().expect("fits").expect("whole");
            assert_eq!(decode_greeting(&frame), Ok(Ok(greeting)));
        }
    }

    #[test]
    fn a_greeting_of_another_version_is_told_from_garbage() {
        let mut frame = MARK.to_vec();
        frame.extend_from_slice(&(WIRE_VERSION + 1).to_le_bytes());
        frame.extend_from_slice(&[255; 40]);
        assert_eq!(decode_greeting(&frame), Ok(Err(Refusal::WireVersion)));
        assert!(decode_greeting(b"GET / HTTP/1.1").is_err());
    }

    #[test]
    fn lengths_out_of_range_are_refused_before_their_bytes_arrive() {
        let mut decoder = Decoder::new();
        decoder.push(&2000_u32.to_le_bytes());
        assert!(decoder.frame().is_err());
        for length in [0, u32::MAX, 9 << 20] {
            let mut decoder = Decoder::new();
            decoder.greeted();
            decoder.push(&length.to_le_bytes());
            assert!(decoder.frame().is_err(), "{length}");
        }
    }

    #[test]
    fn no_body_where_none_belongs() {
        let mut frame = encode_head(
            &Head::Declined {
                id: 1,
                why: Decline::Busy,
            },
            0,
        )
        .to_vec();
        frame.push(0);
        assert!(decode(Bytes::from(frame).slice(LENGTH_BYTES..)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_garbage(chunks in vec(vec(any::<u8>(), 0..60), 0..20), greeted: bool) {
            let mut decoder = Decoder::new();
            if greeted {
                decoder.greeted();
            }
            'stream: for chunk in &chunks {
                decoder.push(chunk);
                loop {
                    match decoder.frame() {
                        Ok(Some(frame)) => {
                            let _ = decode_greeting(&frame);
                            let _ = decode(frame);
                        }
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
            }
        }
    }
}
