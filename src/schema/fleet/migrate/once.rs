//! Once-per-host migrations: what a database needs once, before its shards.

use tokio_postgres::Client;

use crate::pg::quote_literal;
use crate::schema::control::script::guarded;
use crate::schema::fleet::fault::HostFault;
use crate::schema::fleet::migrations::Migrations;
use crate::schema::fleet::recipe::{error_message, line};
use crate::schema::fleet::session::{RESET, settle};

/// How long a statement of these migrations may wait for a lock.
const GUARD: &str = "SET LOCAL lock_timeout = '10s'; ";

/// Runs them from this one on, each in a transaction with its record, and gives the names of those
/// that it ran. The caller holds the host's lock.
///
/// Locks: those of the files, each waited for ten seconds at most.
pub(in crate::schema) async fn run_once(
    client: &Client,
    migrations: &Migrations,
    from: usize,
) -> (Vec<String>, Result<(), HostFault>) {
    let mut done = Vec::new();
    for one in migrations.of_hosts().skip(from) {
        let begin = format!("BEGIN; {GUARD}");
        let record = format!(
            "{RESET} INSERT INTO pgshard.host_migration (name, checksum) VALUES ({}, {}); COMMIT",
            quote_literal(one.name()),
            quote_literal(one.checksum())
        );
        let text = guarded(&one.text(), GUARD);
        let run = async {
            settle(client).await?;
            client.batch_execute(&begin).await?;
            client.batch_execute(&format!("{text}\n;")).await?;
            client.batch_execute(&record).await
        };
        if let Err(error) = run.await {
            if client.is_closed() || client.batch_execute("ROLLBACK").await.is_err() {
                return (
                    done,
                    Err(HostFault::Lost {
                        reason: error_message(&error),
                    }),
                );
            }
            let (migration, line, words) = (
                one.name().to_owned(),
                line(&error, &text),
                error_message(&error),
            );
            return (
                done,
                Err(HostFault::Migration {
                    migration,
                    line,
                    words,
                }),
            );
        }
        done.push(one.name().to_owned());
    }
    (done, Ok(()))
}
