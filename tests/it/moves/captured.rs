//! Change data capture, as docs/cdc.md describes it: a slot on each host; of its changes, a
//! consumer takes those of schemas that are named like shards.

use std::collections::BTreeMap;

use crate::support::{World, Writers};

/// One change of a stream of `test_decoding`.
struct Change {
    schema: String,
    table: String,
    kind: String,
    columns: String,
}

/// `table shard_0001.users: INSERT: id[bigint]:7 name[text]:'Ada'`, or nothing for another line.
fn parsed(line: &str) -> Option<Change> {
    let (name, rest) = line.strip_prefix("table ")?.split_once(": ")?;
    let (schema, table) = name.split_once('.')?;
    let (kind, columns) = rest.split_once(':')?;
    Some(Change {
        schema: schema.to_owned(),
        table: table.to_owned(),
        kind: kind.to_owned(),
        columns: columns.to_owned(),
    })
}

/// The value of a column, without quotes.
fn value<'a>(columns: &'a str, name: &str) -> Option<&'a str> {
    let rest = columns.split(&format!(" {name}[")).nth(1)?;
    let rest = rest.split_once("]:")?.1;
    Some(rest.split(' ').next()?.trim_matches('\''))
}

/// The number of the shard with exactly this schema name; copies of moves have longer names.
fn shard(schema: &str) -> Option<u16> {
    schema.strip_prefix("shard_")?.parse().ok()
}

on_each_version! {
    /// Shards move there and back under writers. A consumer of all hosts sees each acknowledged row
    /// inserted once, on the host that served the shard at that position of its stream.
    async fn a_consumer_sees_each_row_once_across_moves(version) {
        let world = World::new(&[version, version], 4).await;
        for host in 0..2 {
            let sql = "SELECT pg_create_logical_replication_slot('cdc', 'test_decoding')";
            world
                .servers
                .app(host)
                .await
                .batch_execute(sql)
                .await
                .unwrap();
            // A publication of all tables, which consumers of pgoutput use, is in no move's way.
            let sql = "CREATE PUBLICATION cdc FOR ALL TABLES";
            world
                .servers
                .superuser(host)
                .await
                .batch_execute(sql)
                .await
                .unwrap();
        }
        let writers = Writers::start(&world, 2).await;
        for args in [
            &["move", "0", "--to", "db2", "--mode", "online", "--yes"][..],
            &["move", "1", "--to", "db2", "--mode", "blocking", "--yes"],
            &["moves", "rollback", "--yes"],
            &["moves", "complete", "--all", "--yes"],
        ] {
            world.run(args).await.ended(0);
        }
        let notes = writers.stop().await;
        let acknowledged = &notes.flawless().acknowledged;

        let mut inserted: BTreeMap<(String, String), usize> = BTreeMap::new();
        let mut copies = 0;
        for host in 0..2 {
            let sql = "SELECT data FROM pg_logical_slot_get_changes('cdc', NULL, NULL)";
            let rows = world.servers.app(host).await.query(sql, &[]).await.unwrap();
            let mut served: BTreeMap<u16, bool> = (0..4)
                .map(|shard| (shard, usize::from(shard >= 2) == host))
                .collect();
            for change in rows.iter().filter_map(|row| parsed(row.get(0))) {
                if (&*change.schema, &*change.table) == ("pgshard", "shard") {
                    let number = value(&change.columns, "shard_id").unwrap().parse().unwrap();
                    let serves = value(&change.columns, "state") == Some("serving");
                    served.insert(number, serves);
                } else if let Some(number) = shard(&change.schema) {
                    assert!(
                        served[&number],
                        "host {host} serves {number} by its own stream"
                    );
                    if change.kind == "INSERT" {
                        let id = value(&change.columns, "id").unwrap().to_owned();
                        *inserted.entry((change.table, id)).or_default() += 1;
                    }
                } else {
                    copies += usize::from(change.schema.starts_with("shard_"));
                }
            }
        }
        assert!(
            copies > 0,
            "the streams have copies, which a consumer leaves out"
        );
        for row in acknowledged {
            let times = inserted.get(&(row.table.to_owned(), row.id.to_string()));
            assert_eq!(times, Some(&1), "{row:?}");
        }
        assert!(inserted.values().all(|times| *times == 1));
        for host in 0..2 {
            let superuser = world.servers.superuser(host).await;
            let sql = "SELECT pg_drop_replication_slot('cdc')";
            superuser.batch_execute(sql).await.unwrap();
            superuser
                .batch_execute("DROP PUBLICATION cdc")
                .await
                .unwrap();
        }
        world.audit(&notes).await;
    }
}
