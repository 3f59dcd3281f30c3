//! How a server is set up: [`ServerOptions`] and the file they become.

use std::path::Path;

/// Whether a server's data survives the machine's crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// As every server should run.
    Durable,
    /// Nothing is forced to disk. The server may be killed at any time, but if the machine goes
    /// down, the data is gone.
    #[default]
    Throwaway,
}

/// Whom a server lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Access {
    /// Every user of this machine, as any role. So each of them can be the superuser there, and run
    /// programs as the user that the server runs as. Use it on a machine without other users, or
    /// for as long as a test runs. Every driver and pooler gets in, and no connection waits for a
    /// password to be proved.
    #[default]
    Everybody,
    /// Those who have the password, which is random. The URLs name the file that holds it, and only
    /// its owner can read that file: `?passfile=…`. libpq and what is built on it, pgshard and pgx
    /// understand that; tokio-postgres by itself does not.
    Password,
}

/// How one server is set up. The default is small and quick, for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Whether data survives the machine's crash.
    pub durability: Durability,
    /// Whom it lets in.
    pub access: Access,
    /// `shared_buffers`, in MiB. Default 16.
    pub shared_buffers_mib: u32,
    /// `max_connections`. Default 200.
    pub max_connections: u32,
    /// More lines for `postgresql.conf`, name and value; they win over everything else.
    pub settings: Vec<(String, String)>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            durability: Durability::default(),
            access: Access::default(),
            shared_buffers_mib: 16,
            max_connections: 200,
            settings: Vec::new(),
        }
    }
}

setters!(
    ServerOptions: durability: Durability,
    access: Access,
    shared_buffers_mib: u32,
    max_connections: u32,
    settings: Vec<(String, String)>,
);

/// The file in the data directory that `postgresql.conf` includes last.
pub(super) const FILE: &str = "pgshard.conf";

impl ServerOptions {
    /// The text of [`FILE`].
    pub(super) fn text(&self, port: u16, socket_directory: Option<&Path>) -> String {
        let sockets = socket_directory
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default();
        let mut lines: Vec<(&str, String)> = vec![
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("port", port.to_string()),
            ("unix_socket_directories", sockets),
            ("max_connections", self.max_connections.to_string()),
            ("shared_buffers", format!("{}MB", self.shared_buffers_mib)),
            // For moves, which stream changes, and for tests, which leave prepared transactions in
            // a move's way.
            ("wal_level", "logical".to_owned()),
            ("max_wal_senders", "120".to_owned()),
            ("max_replication_slots", "120".to_owned()),
            ("max_prepared_transactions", "32".to_owned()),
            // Times the sum of max_connections and max_prepared_transactions: locks for about
            // 59,000 objects, so that pg_dump can hold every table of 4096 shards.
            ("max_locks_per_transaction", "256".to_owned()),
            ("log_line_prefix", "%m [%p] %a %d ".to_owned()),
        ];
        if self.durability == Durability::Throwaway {
            lines.push(("fsync", "off".to_owned()));
            lines.push(("full_page_writes", "off".to_owned()));
            // Lets `pgshard check` accept that these two are off.
            lines.push(("cluster_name", crate::pg::THROWAWAY.to_owned()));
            // The data may be in memory.
            lines.push(("max_wal_size", "512MB".to_owned()));
            lines.push(("min_wal_size", "32MB".to_owned()));
        }
        lines.extend(
            self.settings
                .iter()
                .map(|(name, value)| (name.as_str(), value.clone())),
        );
        let mut text = "# Written by pgshard when it made this server.\n".to_owned();
        for (name, value) in lines {
            text.push_str(&format!(
                "{name} = '{}'\n",
                value.replace('\\', "\\\\").replace('\'', "''")
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_settings_come_last_and_are_quoted() {
        let settings = vec![("log_line_prefix".to_owned(), "it's".to_owned())];
        let text = ServerOptions {
            settings,
            ..ServerOptions::default()
        }
        .text(5432, Some(Path::new("/tmp/x")));
        assert!(
            text.contains("port = '5432'\n") && text.contains("fsync = 'off'\n"),
            "{text}"
        );
        assert!(
            text.contains("unix_socket_directories = '/tmp/x'\n"),
            "{text}"
        );
        assert!(text.ends_with("log_line_prefix = 'it''s'\n"), "{text}");
        let durable = ServerOptions {
            durability: Durability::Durable,
            ..ServerOptions::default()
        };
        assert!(!durable.text(5432, None).contains("fsync"));
    }
}
