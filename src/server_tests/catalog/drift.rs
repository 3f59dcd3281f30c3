//! The differences that an audit reports between two definitions of one shard.

use super::{facts, run};
use crate::mover::definition::drift::drift;
use crate::server_tests::servers::Servers;

/// A table with an index, and a partitioned one with a foreign key; one of its partitions has
/// another foreign key.
const TABLES: &str = "
    CREATE TABLE users (id int PRIMARY KEY, name text);
    CREATE INDEX users_name ON users (name);
    INSERT INTO users VALUES (1, 'Ann'), (2, 'Ann');
    CREATE TABLE events (id int, \"user\" int CONSTRAINT of_user REFERENCES users, parent int) \
    PARTITION BY RANGE (id);
    CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (1) TO (10);
    ALTER TABLE events_1 ADD CONSTRAINT own FOREIGN KEY (parent) REFERENCES users;";

/// What is done to one side, and what is reported about it if that is the target.
const CHANGES: [(&str, &[&str]); 8] = [
    // This fails, and leaves an index that is not valid, such as a REINDEX CONCURRENTLY has while
    // it works.
    (
        "CREATE UNIQUE INDEX CONCURRENTLY users_ccnew ON users (name)",
        &[],
    ),
    // An index that both sides have, but that only one can use.
    (
        "DROP INDEX users_name; CREATE UNIQUE INDEX CONCURRENTLY users_name ON users (name)",
        &[
            "index users_name: on users USING btree (name) vs unique on users USING btree (name)",
            "index users_name: not valid: nothing vs is there",
        ],
    ),
    (
        "DROP INDEX users_name",
        &["index users_name: on users USING btree (name) vs nothing"],
    ),
    (
        "CREATE INDEX users_more ON users (id, name)",
        &["index users_more: nothing vs on users USING btree (id, name)"],
    ),
    ("ALTER TABLE events DROP CONSTRAINT of_user", &[]),
    // The state before PostgreSQL 18 until the key of the whole table is made.
    (
        "ALTER TABLE events DROP CONSTRAINT of_user; \
         ALTER TABLE events_1 ADD CONSTRAINT of_user FOREIGN KEY (\"user\") REFERENCES users NOT \
         VALID",
        &[],
    ),
    (
        "ALTER TABLE events_1 DROP CONSTRAINT own",
        &["constraint own on events_1: FOREIGN KEY (parent) REFERENCES users(id) vs nothing"],
    ),
    (
        "ALTER TABLE events_1 DROP CONSTRAINT own; \
         ALTER TABLE events_1 ADD CONSTRAINT own FOREIGN KEY (parent) REFERENCES users NOT VALID",
        &[],
    ),
];

on_each_version! {
    /// What is under way is no loss, on whichever side it is. Everything else is reported.
    async fn what_is_under_way_is_not_told(version) {
        let cluster = Servers::start(version, 1);
        let mut client = cluster.app(0).await;
        for (change, expected) in CHANGES {
            for schema in ["source", "target"] {
                run(
                    &client,
                    &format!(
                        "CREATE SCHEMA {schema}; SET search_path = {schema}; \
                    {TABLES}"
                    ),
                )
                .await;
            }
            // Each by itself: CONCURRENTLY must not run in a transaction.
            let mut failed = false;
            for statement in change.split("; ") {
                failed |= client.batch_execute(statement).await.is_err();
            }
            assert_eq!(failed, change.contains("CONCURRENTLY"), "{change}");
            let (source, target) = (
                facts(&mut client, "source").await,
                facts(&mut client, "target").await,
            );
            let told = |found: Vec<_>| found.iter().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(told(drift(&source, &target)), expected, "{change}");
            assert_eq!(drift(&target, &source).len(), expected.len(), "{change}");
            run(&client, "DROP SCHEMA source, target CASCADE").await;
        }
    }
}
