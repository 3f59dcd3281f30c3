//! Reads the state of the tickets on the hosts.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::host::{facts, is_installed, names};
use super::{Error, Layout, TicketHost, TicketName};
use crate::map::HostName;

/// One name on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameStatus {
    /// The name.
    pub name: TicketName,
    /// Which numbers belong to which host.
    pub layout: Layout,
    /// The largest ticket of the series, if one is set.
    pub max: Option<i64>,
    /// All hosts of the name have the same; two that began on their own have different ones.
    pub series: Uuid,
    /// The host that the tickets it gives belong to, as it recorded; `None` when it gives none.
    pub host_name: Option<String>,
    /// This host's residue; `None` when it only records those of the others.
    pub residue: Option<u32>,
    /// The last ticket that this host gave; `None` before the first.
    pub last: Option<i64>,
    /// The host that each residue belongs to.
    pub claims: BTreeMap<u32, String>,
}

/// How much of a series with a maximum a host has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Used {
    /// How many tickets below the maximum the host has passed, given or left out.
    pub given: u64,
    /// How many it can still give.
    pub left: u64,
}

impl NameStatus {
    /// How much the host has given; `None` when it gives none, or the series has no maximum.
    pub fn used(&self) -> Option<Used> {
        let residue = self.residue?;
        let last = self.layout.last_count(residue, self.max?);
        // Counts begin at 0.
        let all = last.map_or(0, |last| last.saturating_add(1));
        let fields = self.last.and_then(|last| self.layout.decode(last));
        let given = fields.map_or(0, |fields| fields.count.saturating_add(1));
        Some(Used {
            given,
            left: all.saturating_sub(given),
        })
    }
}

/// One host.
#[derive(Debug)]
pub struct HostStatus {
    /// Its name in the config.
    pub host: HostName,
    /// The names, in order; or the reason why they could not be read.
    pub names: Result<Vec<NameStatus>, Error>,
}

/// Reads each host, all at the same time. Writes nothing.
///
/// # Cancel safety
/// May be dropped at any time.
pub async fn status(hosts: &[TicketHost]) -> Vec<HostStatus> {
    let asked = hosts.iter().map(async |host| HostStatus {
        host: host.name.clone(),
        names: names_of(host).await,
    });
    futures_util::future::join_all(asked).await
}

async fn names_of(host: &TicketHost) -> Result<Vec<NameStatus>, Error> {
    let connection = host.connect.connect("pgshard tickets").await;
    let connection = connection.map_err(|source| Error::Connect {
        host: host.name.clone(),
        source,
    })?;
    if !is_installed(&connection, &host.name).await? {
        return Ok(Vec::new());
    }
    let mut known = Vec::new();
    for name in names(&connection, &host.name).await? {
        let facts = facts(&connection, &host.name, &name).await?;
        let Some((series, layout)) = facts.series else {
            continue;
        };
        let (residue, last) = facts
            .ticket
            .as_ref()
            .map_or((None, None), |ticket| (Some(ticket.residue), ticket.last));
        let host_name = facts.ticket.map(|ticket| ticket.host_name);
        known.push(NameStatus {
            name,
            layout,
            max: facts.max,
            series,
            host_name,
            residue,
            last,
            claims: facts.claims,
        });
    }
    Ok(known)
}
