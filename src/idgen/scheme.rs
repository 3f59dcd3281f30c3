//! Takes IDs of any kind apart: text in, named fields out.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use uuid::Uuid;

use super::flake::FlakeId;
use super::{simpleflake, snowflake, tickets, uuid7};
use crate::id::{Epoch, Id};

/// A kind of ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// Made by a shard: 41 bits of time, 13 of shard, 10 of sequence.
    Shard,
    /// 41 bits of time, 10 of worker, 12 of sequence.
    Snowflake,
    /// 64 bits of time, 48 of worker, 16 of sequence.
    Flake,
    /// 41 bits of time, 22 random.
    Simpleflake,
    /// UUID version 7.
    Uuid7,
    /// A ticket: what a host counted, and its residue.
    Ticket(tickets::Layout),
}

/// One field of an ID.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// A number.
    Number(u64),
    /// Bits that are no number, in hexadecimal.
    Bits(String),
    /// A time; `None` when the epoch is not known, or the time cannot be written.
    Time(Option<Timestamp>),
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Field::Number(number) => number.fmt(f),
            Field::Bits(bits) => f.write_str(bits),
            Field::Time(Some(time)) => time.fmt(f),
            Field::Time(None) => f.write_str("-"),
        }
    }
}

/// An ID, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The ID as its kind is written.
    pub id: String,
    /// Names and values, `time` and `ms` first where it has them.
    pub fields: Vec<(&'static str, Field)>,
}

/// A text that is no ID of the kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {scheme}: {reason}")]
pub struct DecodeError {
    /// The text.
    pub text: String,
    /// The kind.
    pub scheme: Scheme,
    /// What it must be.
    pub reason: &'static str,
}

impl Scheme {
    /// The name of the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scheme::Shard => "shard",
            Scheme::Snowflake => "snowflake",
            Scheme::Flake => "flake",
            Scheme::Simpleflake => "simpleflake",
            Scheme::Uuid7 => "uuid7",
            Scheme::Ticket(_) => "ticket",
        }
    }

    /// Decodes an ID. The epoch is for `Shard`, which has no known time without it, and for
    /// `Snowflake`, where the default is that of the first snowflakes
    /// ([`snowflake::TWITTER_EPOCH_MS`]). Numbers may be signed or unsigned.
    ///
    /// ```
    /// use pgshard::idgen::Scheme;
    /// let tweet = Scheme::Snowflake.decode("1541815603606036480", None).unwrap();
    /// assert_eq!(tweet.fields[0].1.to_string(), "2022-06-28T16:07:40.105Z");
    /// ```
    ///
    /// # Errors
    /// When the text is no ID of the kind.
    pub fn decode(self, text: &str, epoch: Option<Epoch>) -> Result<Decoded, DecodeError> {
        let number = || {
            let unsigned = || text.parse::<u64>().map(u64::cast_signed);
            text.parse::<i64>()
                .or_else(|_| unsigned())
                .map_err(|_| "it must be a whole number of 64 bits")
        };
        let decoded = match self {
            Scheme::Shard => number().map(|id| of_a_shard(id, epoch)),
            Scheme::Snowflake => number().and_then(|id| of_snowflakes(id, epoch)),
            Scheme::Flake => of_flakes(text),
            Scheme::Simpleflake => number().and_then(of_simpleflakes),
            Scheme::Uuid7 => of_uuids(text),
            Scheme::Ticket(layout) => number().and_then(|id| of_tickets(id, layout)),
        };
        decoded.map_err(|reason| DecodeError {
            text: text.to_owned(),
            scheme: self,
            reason,
        })
    }
}

fn of_a_shard(id: i64, epoch: Option<Epoch>) -> Decoded {
    let fields = Id::decode(id);
    let fields = vec![
        (
            "time",
            Field::Time(epoch.map(|epoch| epoch.time(fields.ms()))),
        ),
        ("ms", Field::Number(fields.ms())),
        ("shard", Field::Number(fields.shard().get().into())),
        ("seq", Field::Number(fields.seq().into())),
    ];
    Decoded {
        id: id.to_string(),
        fields,
    }
}

fn of_snowflakes(id: i64, epoch: Option<Epoch>) -> Result<Decoded, &'static str> {
    let fields = snowflake::Fields::decode(id).ok_or("its 64th bit must not be set")?;
    let zero = epoch.map_or(snowflake::TWITTER_EPOCH_MS, Epoch::unix_ms);
    let fields = vec![
        ("time", time(zero, fields.ms)),
        ("ms", Field::Number(fields.ms)),
        ("worker", Field::Number(fields.worker.into())),
        ("seq", Field::Number(fields.seq.into())),
    ];
    Ok(Decoded {
        id: id.to_string(),
        fields,
    })
}

fn of_flakes(text: &str) -> Result<Decoded, &'static str> {
    let id = FlakeId::from_str(text).map_err(|_| "it must be 32 hexadecimal digits")?;
    let fields = vec![
        ("time", time(0, id.unix_ms())),
        ("ms", Field::Number(id.unix_ms())),
        ("worker", Field::Bits(format!("{:012x}", id.worker()))),
        ("seq", Field::Number(id.seq().into())),
    ];
    Ok(Decoded {
        id: id.to_string(),
        fields,
    })
}

fn of_simpleflakes(id: i64) -> Result<Decoded, &'static str> {
    let simpleflake::Fields { ms, random } =
        simpleflake::decode(id).ok_or("its 64th bit must not be set")?;
    let fields = vec![
        ("time", time(simpleflake::EPOCH_MS as i64, ms)),
        ("ms", Field::Number(ms)),
        ("random", Field::Number(random.into())),
    ];
    Ok(Decoded {
        id: id.to_string(),
        fields,
    })
}

fn of_uuids(text: &str) -> Result<Decoded, &'static str> {
    let id = Uuid::parse_str(text).map_err(|_| "it must be a UUID")?;
    let ms = uuid7::Uuid7::unix_ms(id).ok_or("it must be a UUID of version 7")?;
    // 74 bits: version and variant taken out.
    let bits = id.as_u128();
    let (high, low) = (bits >> 64 & 0xfff, bits & !(0b11 << 62) & u64::MAX as u128);
    let random = Field::Bits(format!("{high:03x}{low:016x}"));
    let fields = vec![
        ("time", time(0, ms)),
        ("ms", Field::Number(ms)),
        ("random", random),
    ];
    Ok(Decoded {
        id: id.to_string(),
        fields,
    })
}

fn of_tickets(id: i64, layout: tickets::Layout) -> Result<Decoded, &'static str> {
    let tickets::Fields { residue, count } = layout.decode(id).ok_or("it must be 1 or more")?;
    let fields = vec![
        ("residue", Field::Number(residue.into())),
        ("count", Field::Number(count)),
    ];
    Ok(Decoded {
        id: id.to_string(),
        fields,
    })
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn time(zero_unix_ms: i64, ms: u64) -> Field {
    let unix_ms = i64::try_from(ms)
        .ok()
        .and_then(|ms| zero_unix_ms.checked_add(ms));
    Field::Time(unix_ms.and_then(|unix_ms| Timestamp::from_millisecond(unix_ms).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(scheme: Scheme, text: &str) -> String {
        let decoded = scheme.decode(text, None).unwrap();
        let fields: Vec<String> = decoded
            .fields
            .iter()
            .map(|(name, field)| format!("{name}={field}"))
            .collect();
        format!("{}: {}", decoded.id, fields.join(" "))
    }

    #[test]
    fn each_kind_is_read_and_written() {
        let rows = [
            (
                Scheme::Shard,
                "11637205501278089",
                "11637205501278089: time=- ms=1387263000 shard=1341 seq=905",
            ),
            (
                Scheme::Snowflake,
                "1541815603606036480",
                "1541815603606036480: time=2022-06-28T16:07:40.105Z ms=367597485448 worker=378 \
                    seq=0",
            ),
            (
                Scheme::Flake,
                "000001a3185c50000100000000070009",
                "000001a3185c50000100000000070009: time=2027-01-15T08:00:00Z ms=1800000000000 \
                    worker=010000000007 seq=9",
            ),
            (
                Scheme::Simpleflake,
                "4194305",
                "4194305: time=2000-01-01T00:00:00.001Z ms=1 random=1",
            ),
            (
                Scheme::Uuid7,
                "017F22E2-79B0-7CC3-98C4-DC0C0C07398F",
                "017f22e2-79b0-7cc3-98c4-dc0c0c07398f: time=2022-02-22T19:22:22Z ms=1645557742000 \
                 random=cc318c4dc0c0c07398f",
            ),
            (
                Scheme::Ticket(Default::default()),
                "139264",
                "139264: residue=1 count=8192",
            ),
        ];
        for (scheme, text, wanted) in rows {
            assert_eq!(shown(scheme, text), wanted);
        }
    }

    #[test]
    fn what_is_none() {
        let rows = [
            (Scheme::Shard, "1e3"),
            (Scheme::Snowflake, "-1"),
            (Scheme::Snowflake, "18446744073709551615"),
            (Scheme::Flake, "12"),
            (Scheme::Simpleflake, "-5"),
            (Scheme::Uuid7, "12"),
            (Scheme::Uuid7, "f47ac10b-58cc-4372-a567-0e02b2c3d479"),
            (Scheme::Ticket(Default::default()), "0"),
            (Scheme::Ticket(tickets::Layout { stride: 0, run: 1 }), "5"),
        ];
        for (scheme, text) in rows {
            let error = scheme.decode(text, None).unwrap_err();
            assert_eq!((error.text.as_str(), error.scheme), (text, scheme));
        }
    }

    proptest! {
        /// Every text and every number is decoded or refused.
        #[test]
        fn every_text_and_number_is_decoded_or_refused(text in "[0-9a-f-]{0,40}", number: i64) {
            for scheme in [
                Scheme::Shard,
                Scheme::Snowflake,
                Scheme::Flake,
                Scheme::Simpleflake,
                Scheme::Uuid7,
                Scheme::Ticket(tickets::Layout { stride: 3, run: 1 }),
            ] {
                scheme.decode(&text, None).ok();
                scheme.decode(&number.to_string(), None).ok();
            }
            prop_assert!(Scheme::Shard.decode(&number.to_string(), None).is_ok());
        }
    }
}
