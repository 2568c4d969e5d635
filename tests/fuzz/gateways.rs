//! What programs in front of this one send: commands of Redis clients, and requests that a gateway holds back.

use highwater::catalogue::path::FieldPath;
use highwater::catalogue::profile::Gateway;
use highwater::catalogue::profile::request::Incoming;
use highwater::domain::limit::AMOUNT_MAX;
use highwater::domain::name::KEY_BYTES_MAX;
use highwater::resp::parse;
use highwater::resp::reply::Replies;
use highwater::resp::throttle::Throttle;

use super::Target;

/// Commands of Redis clients.
pub const RESP: Target = Target {
    name: "resp",
    run: resp,
    samples: commands,
};
/// Requests that a gateway holds back.
pub const PROFILE: Target = Target {
    name: "profile",
    run: profile,
    samples: requests,
};

/// Reads a whole conversation; whether all of it was commands.
fn resp(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let mut replies = Replies::default();
    loop {
        match parse::command(rest) {
            Ok(None) => return rest.is_empty(),
            Err(error) => {
                replies.error(&error.to_string());
                return false;
            }
            Ok(Some(command)) => {
                assert!((1..=rest.len()).contains(&command.length));
                assert!(command.words.len() <= parse::WORDS_MAX);
                // A word less than all of it is not there yet.
                let cut = &rest[..command.length - 1];
                assert_eq!(parse::command(cut), Ok(None));
                if let Some((_, arguments)) = command.words.split_first()
                    && let Ok(throttle) = Throttle::read(arguments)
                {
                    let [limited, ..] = throttle.answer(true, highwater::domain::time::Span::ZERO);
                    assert_eq!(limited, 0);
                    let _ = (throttle.counted(), throttle.told(), throttle.cost());
                }
                rest = &rest[command.length..];
            }
        }
    }
}

fn commands() -> Vec<Vec<u8>> {
    [
        "*1\r\n$4\r\nPING\r\n",
        "*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n",
        "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*0\r\n",
        "PING\r\nECHO \"a \\\"b\\\" \\x41\" 'it\\'s'\n\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Reads a profile in the first line, a target in the second, and headers below; whether they mean a check.
fn profile(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let Some(Ok(profile)) = lines.next().map(serde_json::from_slice) else {
        return false;
    };
    let Ok(gateway) = Gateway::compile(&FieldPath::root(), &profile) else {
        return false;
    };
    let Ok(target) = std::str::from_utf8(lines.next().unwrap_or_default()) else {
        return false;
    };
    let (below, query) = match target.split_once('?') {
        Some((below, query)) => (below, Some(query)),
        None => (target, None),
    };
    let headers: Vec<(&str, &[u8])> = lines
        .filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b':')?;
            Some((std::str::from_utf8(&line[..at]).ok()?, &line[at + 1..]))
        })
        .collect();
    let wanted = gateway.wanted(&Incoming {
        hop: Some([127, 0, 0, 1].into()),
        method: "GET",
        below,
        query,
        headers: &headers,
    });
    let Ok(wanted) = wanted else { return false };
    assert!(!wanted.tenant.is_empty() && !wanted.action.is_empty());
    assert!(wanted.cost <= AMOUNT_MAX);
    for (_, key) in &wanted.keys {
        assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
    }
    true
}

fn requests() -> Vec<Vec<u8>> {
    let everything = r#"{"tenant":"header:x-tenant","action":"method","keys":{"ip":"client_ip/64","endpoint":"path","doc":"query:doc"},"cost":"header:x-cost"}"#;
    [
        format!("{everything}\n/a/b?doc=a%20b\nx-tenant:acme\nx-cost:3\nx-forwarded-for:1.1.1.1, 2001:db8::1"),
        format!("{everything}\n\nx-tenant:acme\nx-original-uri:/a?doc=1\nx-original-method:PUT"),
        r#"{"tenant":"acme","action":"api","cost":2,"trusted_hops":["10.0.0.0/8"],"original":"x-forwarded"}"#.to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}
