//! What it costs that a value is unique over all shards: an insert with a value that a look-up
//! claims, next to the same insert into a table of the same form without one. Both through the
//! router, on the same servers, in turn. The goal is 3.2 × of the plain insert at most.
//!
//! Each round runs all kinds in slices, forwards and backwards, so that they meet the same
//! neighbours on the machine. The medians of rounds are what counts. The third kind uses the claim
//! in a transaction, as statements other than INSERT do. The fourth is the floor: the same rows, by
//! two statements that check nothing.
//!
//! `cargo bench --bench lookups -- [--rounds N] [--calls N] [--callers N] [--major N]
//! [--throwaway]`
//!
//! Servers force commits to disk, unless `--throwaway` turns that off.

mod support;

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use pgshard::Router;
use pgshard::dev::ServerOptions;
use pgshard::lookups::{Definition, Step, migration};
use pgshard::router::Transaction;
use support::Arguments;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

const TABLES: &str = "
    CREATE TABLE {shard}.plain (id bigint PRIMARY KEY, email text NOT NULL UNIQUE);
    CREATE TABLE {shard}.users (id bigint PRIMARY KEY, email text NOT NULL UNIQUE);
    CREATE TABLE {shard}.bare (id bigint PRIMARY KEY, email text NOT NULL UNIQUE);
    CREATE TABLE {shard}.bare_entry (lookup text, hash bytea, key text NOT NULL,
        claim uuid NOT NULL, claimed_at timestamptz NOT NULL, PRIMARY KEY (lookup, hash));
    CREATE TABLE {shard}.bare_claim (lookup text, hash bytea, claim uuid, key text NOT NULL,
        outcome text NOT NULL, xact xid8 NOT NULL, at timestamptz NOT NULL,
        PRIMARY KEY (lookup, hash, claim));";
const LOOKUP: &str = "[lookups.emails]\ntable = \"users\"\ncolumns = [\"email\"]\nkey = \"id\"\n";
const PLAIN: &str = "INSERT INTO {shard}.plain (id, email) VALUES ($1, $2)";
const CLAIMED: &str = "INSERT INTO {shard}.users (id, email) VALUES ($1, $2)";
/// The rows of a claim in two statements, without anything that keeps a value unique.
const BARE_ENTRY: &str = "INSERT INTO {shard}.bare_entry VALUES ('emails', \
    sha256(convert_to($1, 'UTF8')), $2, gen_random_uuid(), clock_timestamp()) \
    ON CONFLICT DO NOTHING RETURNING hash, claim";
const BARE_ROW: &str = "WITH used AS (INSERT INTO {shard}.bare_claim VALUES ('emails', $3, $4, $5, \
    'used', pg_current_xact_id(), clock_timestamp())) INSERT INTO {shard}.bare (id, email) VALUES \
    ($1, $2)";
const SHARDS: u16 = 16;
const LIMIT: Duration = Duration::from_secs(10);

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Claimed,
    /// The claim is used in a transaction, before the INSERT.
    InTransaction,
    /// The same rows by two statements and nothing else: what two round trips and two commits cost.
    Bare,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome<()> {
    let arguments = Arguments::read(&[("rounds", 15), ("calls", 100), ("callers", 1)]);
    let binaries = arguments.binaries();
    let (calls, callers) = (arguments.number("calls"), arguments.number("callers"));
    println!(
        "PostgreSQL {}, {:?}, {callers} callers",
        binaries.version(),
        arguments.durability
    );
    let folder = tempfile::tempdir()?;
    let emails = Definition::new("emails", "users", ["email"], "id");
    std::fs::write(folder.path().join("0001_users.sql"), TABLES)?;
    std::fs::write(
        folder.path().join("0002_emails.sql"),
        migration(&emails, Step::Create),
    )?;
    let server = ServerOptions::default()
        .durability(arguments.durability)
        .shared_buffers_mib(128);
    let cluster = pgshard::testing::cluster()
        .hosts(2)
        .shards(SHARDS)
        .migrations(folder.path())
        .config(LOOKUP)
        .postgres(binaries.major())
        .server(server)
        .own_servers()
        .await?;
    let router = cluster.router();
    let mut next = 0;
    let (mut ratios, mut medians) = (Vec::new(), [const { Vec::new() }; 4]);
    // The first round is not counted: it opens connections and prepares statements.
    for round in 0..=arguments.number("rounds") {
        let mut took = [const { Vec::new() }; 4];
        let there = [Kind::Plain, Kind::Claimed, Kind::InTransaction, Kind::Bare];
        for kind in there.into_iter().chain(there.into_iter().rev()) {
            let calling = (0..callers).map(|_| {
                let first = next;
                next += calls as i64;
                call(router, kind, first..next)
            });
            for times in try_join_all(calling.collect::<Vec<_>>()).await? {
                took[kind as usize].extend(times);
            }
        }
        let [plain, claimed, in_transaction, bare] = took.map(median);
        if round > 0 {
            ratios.push(claimed / plain);
            medians[0].push(plain);
            medians[1].push(claimed);
            medians[2].push(in_transaction);
            medians[3].push(bare);
        }
    }
    let [plain, claimed, in_transaction, bare] = medians.map(median);
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    println!(
        "plain {:.0} us, claimed {:.0} us: {:.2} × (rounds from {least:.2} to {most:.2})",
        plain * 1e6,
        claimed * 1e6,
        median(ratios)
    );
    println!(
        "in a transaction: {:.2} ×; the rows alone, by two statements: {:.2} ×",
        in_transaction / plain,
        bare / plain
    );
    Ok(())
}

/// One insert after the other, and the seconds that each took.
async fn call(router: &Router, kind: Kind, ids: std::ops::Range<i64>) -> Outcome<Vec<f64>> {
    let mut took = Vec::new();
    for id in ids {
        let email = format!("user{id}@example.com");
        let began = Instant::now();
        match kind {
            Kind::Plain => router.by_key(id).execute(PLAIN, &[&id, &email]).await?,
            Kind::Claimed => {
                let claiming = router.claiming(id, [("emails", &email)])?.within(LIMIT);
                claiming.execute(CLAIMED, &[&id, &email]).await?
            }
            Kind::InTransaction => {
                let claiming = router.claiming(id, [("emails", &email)])?.within(LIMIT);
                let insert = async |tx: Transaction| tx.execute(CLAIMED, &[&id, &email]).await;
                claiming.transaction(insert).await?
            }
            Kind::Bare => {
                // As the value's shard, any other than that of the key, as a rule.
                let (value, key) = (router.by_key(id * 7 + 3), id.to_string());
                let (hash, claim): (Vec<u8>, Uuid) =
                    value.query_one_as(BARE_ENTRY, &[&email, &key]).await?;
                let params: [&(dyn ToSql + Sync); 5] = [&id, &email, &hash, &claim, &key];
                router.by_key(id).execute(BARE_ROW, &params).await?
            }
        };
        took.push(began.elapsed().as_secs_f64());
    }
    Ok(took)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
