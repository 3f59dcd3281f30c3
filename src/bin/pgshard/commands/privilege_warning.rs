//! Warns of a monitoring role with more rights than it needs. `pgshard console` and `pgshard
//! exporter` do so once, when they start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use pgshard::config::{Config, HostConfig};
use pgshard::map::HostName;
use pgshard::schema::{self, PrivilegedRole};

use crate::output::Output;

/// Checks on the hosts whether our roles may write to them, and warns if so. No caller waits for
/// that: a host may not answer.
pub(super) fn warn_of_writers(config: &Config, bound: Duration, output: &Arc<Output>) {
    let (hosts, output) = (
        config.hosts.values().cloned().collect::<Vec<_>>(),
        output.clone(),
    );
    tokio::spawn(async move {
        let asked = join_all(
            hosts
                .iter()
                .map(|host| tokio::time::timeout(bound, privileged_role(host))),
        )
        .await;
        let mut writers: BTreeMap<(String, bool), Vec<&HostName>> = BTreeMap::new();
        for (host, privileged_role) in hosts.iter().zip(asked) {
            if let Ok(Some(PrivilegedRole {
                role, is_superuser, ..
            })) = privileged_role
            {
                writers
                    .entry((role, is_superuser))
                    .or_default()
                    .push(&host.name);
            }
        }
        for ((role, is_superuser), hosts) in writers {
            let hosts: Vec<&str> = hosts.into_iter().map(HostName::as_str).collect();
            let why = if is_superuser {
                "is a superuser"
            } else {
                "owns what is pgshard's"
            };
            output.warning(format_args!(
                "the role {role} {why} on {}, and could drop it: watching needs no more than \
                    `pgshard rights --for monitor --role NAME` gives; have the urls of this config \
                    name such a role",
                hosts.join(", ")
            ));
        }
    });
}

/// The role of a host's url, if it may write there.
async fn privileged_role(host: &HostConfig) -> Option<PrivilegedRole> {
    let connection = host.connect.connect("pgshard watching").await.ok()?;
    schema::privileged_role(connection.client()).await.ok()?
}
