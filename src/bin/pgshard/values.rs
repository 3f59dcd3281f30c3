//! Values of the command line that clap does not know: IDs, times, epochs.

use std::num::NonZeroU64;

use jiff::{Timestamp, ToSpan, Zoned, civil, tz::TimeZone};
use pgshard::id::Epoch;
use pgshard::import::TableName;
use pgshard::{ShardCount, ShardId};

/// An ID as a signed or an unsigned 64-bit number: IDs turn negative after 34.8 years, and some
/// tools print them unsigned.
pub(crate) fn id(text: &str) -> Result<i64, String> {
    let unsigned = || text.parse::<u64>().map(u64::cast_signed);
    text.parse::<i64>()
        .or_else(|_| unsigned())
        .map_err(|_| "not a whole number of 64 bits".to_owned())
}

/// A table and the name of a column: `likes=owner_id`.
pub(crate) fn table_column(text: &str) -> Result<(TableName, String), String> {
    let wrong = || "write TABLE=NAME, such as likes=owner_id".to_owned();
    let (table, column) = text.split_once('=').ok_or_else(wrong)?;
    // The server would cut a longer name.
    if column.is_empty() || column.len() > 63 || column.contains('\0') {
        return Err("the name of a column has 1 to 63 bytes".to_owned());
    }
    Ok((table.parse().map_err(|_| wrong())?, column.to_owned()))
}

/// A time: `2026-11-01T08:00:00Z`, or a day, which begins at midnight UTC.
///
/// jiff reads a date out of any text that begins with one, and would drop the time of day where the
/// zone is missing.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if let Ok(date_time) = text.parse::<civil::DateTime>() {
        let day = date_time.date();
        if day.to_string() != text {
            return Err(format!(
                "a time needs its zone: {date_time}Z is UTC, {date_time}+01:00 an hour ahead of it"
            ));
        }
        if let Ok(midnight) = day.to_zoned(TimeZone::UTC) {
            return Ok(midnight.timestamp());
        }
    }
    Err("not a time such as 2026-11-01T08:00:00Z or 2026-11-01 (midnight UTC)".to_owned())
}

/// A moment to come: `22:30` by the local clock, today or tomorrow, or a time such as
/// `2026-11-01T22:30:00Z`.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    moment_after(text, &Zoned::now())
}

fn moment_after(text: &str, now: &Zoned) -> Result<Timestamp, String> {
    let wrong = || "not a time such as 22:30 or 2026-11-01T22:30:00Z".to_owned();
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Ok(moment);
    }
    // jiff reads a time of day out of a longer text too, and would drop the day.
    if text.parse::<civil::Date>().is_ok() {
        return Err("a time with a day needs its zone, as 2026-11-01T22:30:00Z has".to_owned());
    }
    let time = text.parse::<civil::Time>().map_err(|_| wrong())?;
    let on = |day: civil::Date| {
        day.to_datetime(time)
            .to_zoned(now.time_zone().clone())
            .map_err(|_| wrong())
    };
    let today = on(now.date())?;
    let next = if today > *now {
        today
    } else {
        on(now.date().checked_add(1.day()).map_err(|_| wrong())?)?
    };
    Ok(next.timestamp())
}

/// A size: `20MB`, `10 GiB`, or a number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let number = text
        .trim()
        .parse()
        .ok()
        .or_else(|| pgshard::config::parse_bytes(text));
    number.ok_or_else(|| "not a size such as 20MB or 10GiB".to_owned())
}

/// A rate: a size above zero, for a second.
pub(crate) fn rate(text: &str) -> Result<NonZeroU64, String> {
    NonZeroU64::new(bytes(text)?)
        .ok_or_else(|| "nothing would ever be copied: use `pgshard moves pause`".to_owned())
}

/// An epoch: a time, or Unix milliseconds.
pub(crate) fn epoch(text: &str) -> Result<Epoch, String> {
    let unix_ms = match text.parse::<i64>() {
        Ok(unix_ms) => unix_ms,
        Err(_) => time(text)
            .map_err(|error| format!("{error}, or Unix milliseconds"))?
            .as_millisecond(),
    };
    Epoch::from_unix_ms(unix_ms).map_err(|error| error.to_string())
}

/// A shard.
pub(crate) fn shard(text: &str) -> Result<ShardId, String> {
    let shard = text.parse().ok().and_then(ShardId::new);
    shard.ok_or_else(|| format!("not a shard: 0 to {}", ShardCount::MAX.get() - 1))
}

/// N.
pub(crate) fn shard_count(text: &str) -> Result<ShardCount, String> {
    let count = text.parse().ok().and_then(ShardCount::new);
    count.ok_or_else(|| format!("not a number of shards: 1 to {}", ShardCount::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_signed_and_unsigned() {
        assert_eq!(id("-1"), Ok(-1));
        assert_eq!(id("18446744073709551615"), Ok(-1));
        assert_eq!(id("9243064899993605849"), Ok(-9203679173715945767));
        assert!(id("1e3").is_err());
        assert!(id("18446744073709551616").is_err());
    }

    #[test]
    fn sizes_and_rates() {
        assert_eq!(bytes("1048576"), bytes("1 MiB"));
        assert_eq!(rate("20MB").map(NonZeroU64::get), Ok(20_000_000));
        assert!(rate("0").is_err());
        assert!(bytes("lots").is_err());
    }

    #[test]
    fn a_clock_time_is_the_next_one() {
        let now: Zoned = "2026-11-01T22:00:00+01:00[Europe/Prague]".parse().unwrap();
        let moment = |text| moment_after(text, &now).map(|moment| moment.to_string());
        assert_eq!(moment("22:30").as_deref(), Ok("2026-11-01T21:30:00Z"));
        assert_eq!(moment("22:00").as_deref(), Ok("2026-11-02T21:00:00Z"));
        assert_eq!(
            moment("2026-12-24T18:00:00+01:00").as_deref(),
            Ok("2026-12-24T17:00:00Z")
        );
        assert!(moment("soon").is_err());
        // The day is not dropped.
        assert!(
            moment("2026-12-24T18:00")
                .unwrap_err()
                .contains("needs its zone")
        );
        assert!(moment("2026-12-24").is_err());
    }

    #[test]
    fn times_and_epochs() {
        assert_eq!(
            time("2011-01-01").unwrap(),
            time("2011-01-01T01:00:00+01:00").unwrap()
        );
        assert!(time("last week").is_err());
        // The time of day is not dropped.
        for no_zone in [
            "2026-11-01T10:00",
            "2026-11-01 10:00",
            "2026-11-01T10:00:00.5",
            "2026-11-01T00:00",
            "20261101T10",
        ] {
            assert!(
                time(no_zone).unwrap_err().contains("needs its zone"),
                "{no_zone}: {:?}",
                time(no_zone)
            );
        }
        assert_eq!(
            time("2026-11-01 10:00Z").unwrap(),
            time("2026-11-01T11:00+01:00").unwrap()
        );
        assert_eq!(epoch("1293840000000"), epoch("2011-01-01"));
        assert!(epoch("9999-01-01").is_err());
    }
}
