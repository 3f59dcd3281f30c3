//! What one host has recorded of tickets.

use std::collections::BTreeMap;

use tokio_postgres::Client;
use uuid::Uuid;

use super::{Error, Layout, TicketName};
use crate::map::HostName;

/// What a host says about one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// The series and its layout.
    pub(super) series: Option<(Uuid, Layout)>,
    /// Whose each residue is.
    pub(super) claims: BTreeMap<u32, String>,
    /// What the host itself gives.
    pub(super) ticket: Option<Ticket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) residue: u32,
    /// Whose they are, as the host recorded.
    pub(super) host_name: String,
    /// The last that was given; `None` before the first.
    pub(super) last: Option<i64>,
}

/// Whether the host's schema is there.
pub(super) async fn is_installed(client: &Client, host: &HostName) -> Result<bool, Error> {
    let sql = Error::sql(host, "look for the schema pgshard_tickets");
    Ok(client.query_one("SELECT to_regclass('pgshard_tickets.ticket') IS NOT NULL", &[]).await.map_err(sql)?.get(0))
}

/// The names that a host knows.
pub(super) async fn names(client: &Client, host: &HostName) -> Result<Vec<TicketName>, Error> {
    let sql = Error::sql(host, "read the names of tickets");
    let rows = client.query("SELECT name FROM pgshard_tickets.series ORDER BY 1", &[]).await.map_err(sql)?;
    Ok(rows.iter().filter_map(|row| TicketName::new(row.get(0)).ok()).collect())
}

/// What the host, whose schema is there, says about the name.
pub(super) async fn facts(client: &Client, host: &HostName, name: &TicketName) -> Result<Facts, Error> {
    let sql = Error::sql(host, "read what is recorded of tickets");
    // A column of numbers that the schema's checks keep small.
    let number = |value: i32| value.unsigned_abs();
    let text = "SELECT series, stride, run FROM pgshard_tickets.series WHERE name = $1";
    let series = client.query_opt(text, &[&name.as_str()]).await.map_err(&sql)?;
    let series = series.map(|row| (row.get(0), Layout { stride: number(row.get(1)), run: number(row.get(2)) }));
    let text = "SELECT residue, host_name FROM pgshard_tickets.claim WHERE name = $1";
    let claims = client.query(text, &[&name.as_str()]).await.map_err(&sql)?;
    let text = "SELECT residue, host_name FROM pgshard_tickets.ticket WHERE name = $1";
    let ticket = match client.query_opt(text, &[&name.as_str()]).await.map_err(&sql)? {
        None => None,
        Some(row) => {
            let text = format!("SELECT CASE WHEN is_called THEN last_value END FROM {}", name.sequence());
            let count: Option<i64> = client.query_one(&text, &[]).await.map_err(&sql)?.get(0);
            let residue = number(row.get(0));
            let last = series
                .zip(count)
                .and_then(|((_, layout), count): ((Uuid, Layout), i64)| layout.ticket(residue, count.cast_unsigned()));
            Some(Ticket { residue, host_name: row.get(1), last })
        }
    };
    Ok(Facts { series, claims: claims.iter().map(|row| (number(row.get(0)), row.get(1))).collect(), ticket })
}
