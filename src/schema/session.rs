//! The sessions in which the hosts' schemas are made and altered.
//!
//! What may not break: a migration means the same on every host, whatever the settings of hosts, databases and roles.

use super::facts::chain;
use super::fault::HostFault;
use crate::pg::{ConnectOptions, Connection};

/// Transactions are what the code takes them for, and the texts of values mean the same everywhere. No limit ends a long
/// migration, but one whose machine is gone holds its locks for half a minute at most. Under another isolation than READ COMMITTED an
/// open transaction of ours would keep its snapshot, and CREATE INDEX CONCURRENTLY would wait for it for ever.
const SETTINGS: &str = "
    SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;
    SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off;
    SET default_transaction_deferrable = off;
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;
    SET client_min_messages = warning; SET search_path = '';
    SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET bytea_output = 'hex';
    SET xmloption = content; SET standard_conforming_strings = on";

/// Opens one.
pub(super) async fn open(connect: &ConnectOptions, application_name: &str) -> Result<Connection, HostFault> {
    let unread = |reason| HostFault::Unread { reason };
    let session = connect.connect(application_name).await.map_err(|error| unread(chain(&error)))?;
    session.batch_execute(SETTINGS).await.map_err(|error| unread(chain(&error)))?;
    Ok(session)
}
