//! What one host has recorded of tickets.

use std::collections::BTreeMap;

use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::{Error, Layout, TicketName};
use crate::map::HostName;

/// The state of one name on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// The series and its layout.
    pub(super) series: Option<(Uuid, Layout)>,
    /// The largest ticket of the series, if one is set.
    pub(super) max: Option<i64>,
    /// The host that each residue belongs to.
    pub(super) claims: BTreeMap<u32, String>,
    /// The tickets that the host itself gives.
    pub(super) ticket: Option<Ticket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) residue: u32,
    /// The host that gives these tickets, as this host recorded it.
    pub(super) host_name: String,
    /// The last ticket that was given; `None` before the first.
    pub(super) last: Option<i64>,
}

/// Whether the host's schema is there.
pub(super) async fn is_installed(client: &Client, host: &HostName) -> Result<bool, Error> {
    let sql = Error::sql(host, "look for the schema pgshard_tickets");
    let there = client
        .query_one(
            "SELECT to_regclass('pgshard_tickets.ticket') IS NOT NULL",
            &[],
        )
        .await;
    there.and_then(|row| row.try_get(0)).map_err(sql)
}

/// The names that a host knows.
pub(super) async fn names(client: &Client, host: &HostName) -> Result<Vec<TicketName>, Error> {
    let sql = Error::sql(host, "read the names of tickets");
    let rows = client
        .query("SELECT name FROM pgshard_tickets.series ORDER BY 1", &[])
        .await
        .map_err(&sql)?;
    let names = rows
        .iter()
        .map(|row| row.try_get(0))
        .collect::<Result<Vec<&str>, _>>()
        .map_err(sql)?;
    Ok(names
        .into_iter()
        .filter_map(|name| TicketName::new(name).ok())
        .collect())
}

/// The state of the name on a host that has the schema.
pub(super) async fn facts(
    client: &Client,
    host: &HostName,
    name: &TicketName,
) -> Result<Facts, Error> {
    let sql = Error::sql(host, "read what is recorded of tickets");
    // A column of numbers that the schema's checks keep small.
    let number = |row: &Row, column: usize| row.try_get(column).map(i32::unsigned_abs);
    let text_of = |row: &Row, column: usize| row.try_get::<_, String>(column);
    let text = "SELECT series, stride, run, max FROM pgshard_tickets.series WHERE name = $1";
    let series = client
        .query_opt(text, &[&name.as_str()])
        .await
        .map_err(&sql)?;
    let layout = |row: Row| {
        let layout = Layout {
            stride: number(&row, 1)?,
            run: number(&row, 2)?,
        };
        Ok(((row.try_get(0)?, layout), row.try_get(3)?))
    };
    let series: Option<((Uuid, Layout), Option<i64>)> =
        series.map(layout).transpose().map_err(&sql)?;
    let (series, max) = series.map_or((None, None), |(series, max)| (Some(series), max));
    let text = "SELECT residue, host_name FROM pgshard_tickets.claim WHERE name = $1";
    let claims = client.query(text, &[&name.as_str()]).await.map_err(&sql)?;
    let text = "SELECT residue, host_name FROM pgshard_tickets.ticket WHERE name = $1";
    let ticket = match client
        .query_opt(text, &[&name.as_str()])
        .await
        .map_err(&sql)?
    {
        None => None,
        Some(row) => {
            let text = format!(
                "SELECT CASE WHEN is_called THEN last_value END FROM {}",
                name.sequence()
            );
            let count = client
                .query_one(&text, &[])
                .await
                .and_then(|row| row.try_get::<_, Option<i64>>(0));
            let (count, residue) = (count.map_err(&sql)?, number(&row, 0).map_err(&sql)?);
            let last = series
                .zip(count)
                .and_then(|((_, layout), count)| layout.ticket(residue, count.cast_unsigned()));
            Some(Ticket {
                residue,
                host_name: text_of(&row, 1).map_err(&sql)?,
                last,
            })
        }
    };
    let claims = claims
        .iter()
        .map(|row| Ok((number(row, 0)?, text_of(row, 1)?)));
    Ok(Facts {
        series,
        max,
        claims: claims.collect::<Result<_, _>>().map_err(&sql)?,
        ticket,
    })
}
