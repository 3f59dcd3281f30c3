//! The table of an unsharded host is its own look-up. What an application does there ends as on
//! shards, and nothing is claimed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pgshard::config::Config;
use pgshard::lookups::{Definition, Fold, Step, Value, migration};
use pgshard::map::{HostName, Placement, ShardMap};
use pgshard::router::{Error, LookupProblem, Transaction};
use pgshard::{Router, ShardId};
use tokio_postgres::Client;
use uuid::Uuid;

use super::super::support::{TestCluster, World, until};
use super::{INSERT, both, register};

const SHARDS: u16 = 8;

/// The tables of the scenarios.
const TABLES: [&str; 4] = [
    "CREATE TABLE {shard}.users (id bigint PRIMARY KEY, email text UNIQUE, name text)",
    "CREATE TABLE {shard}.nicks (id bigint PRIMARY KEY, nick varchar(40))",
    "CREATE TABLE {shard}.seats (id bigint PRIMARY KEY, day date, room smallint, \
        UNIQUE (room, day))",
    "CREATE TABLE {shard}.devices (id bigint PRIMARY KEY, device uuid UNIQUE)",
];

/// The index that a database with such nicks has; in shards the look-up makes its own.
const NICKS: &str = "CREATE UNIQUE INDEX ON {shard}.nicks (lower(nick))";

fn definitions() -> [Definition; 4] {
    [
        Definition::new("emails", "users", ["email"], "id"),
        Definition::new("nicks", "nicks", ["nick"], "id").fold(Fold::Ascii),
        Definition::new("seats", "seats", ["day", "room"], "id"),
        Definition::new("devices", "devices", ["device"], "id"),
    ]
}

fn section(definition: &Definition) -> String {
    format!(
        "[lookups.{}]\ntable = {:?}\ncolumns = {:?}\nkey = {:?}\nfold = {:?}\n",
        definition.name,
        definition.table,
        definition.columns,
        definition.key,
        definition.fold.as_str()
    )
}

/// An unsharded host with these tables in its schema `app`, and these look-ups.
async fn one_database(version: u32, tables: &[&str], definitions: &[Definition]) -> World {
    let servers = TestCluster::start(version, 2);
    let old = servers.app(0).await;
    old.batch_execute("CREATE SCHEMA app").await.unwrap();
    for table in tables {
        old.batch_execute(&table.replace("{shard}", "app"))
            .await
            .unwrap();
    }
    let lookups: String = definitions.iter().map(section).collect();
    let text = format!(
        "[cluster]\nshards = {SHARDS}\nepoch = \"2011-01-01T00:00:00Z\"\n[hosts.db1]\nurl = \
        \"{}\"\nlayout = \"unsharded\"\nschema = \"app\"\n[hosts.db2]\nurl = \"{}\"\n\
        {lookups}[map]\nversion = 1\n[map.placement]\ndb1 = \"0-{}\"\n",
        servers.server(0).url(),
        servers.server(1).url(),
        SHARDS - 1
    );
    let config = Config::load(servers.write("pgshard.toml", &text)).unwrap();
    let world = World { servers, config };
    world.run(&["bootstrap"]).await.ended(0);
    world
}

/// Users by e-mail, in one database.
async fn users(version: u32) -> World {
    one_database(version, &TABLES[..1], &definitions()[..1]).await
}

/// The same on shards, with all look-ups complete.
async fn shards(version: u32) -> World {
    let lookups = definitions().map(|one| migration(&one, Step::Create));
    let names: Vec<String> = (1..=8).map(|n| format!("{n:04}_step.sql")).collect();
    let migrations: Vec<(&str, &str)> = names
        .iter()
        .map(String::as_str)
        .zip(TABLES.into_iter().chain(lookups.iter().map(String::as_str)))
        .collect();
    let world = World::with_tables(&[version, version], SHARDS, &migrations).await;
    let sections: String = definitions().iter().map(section).collect();
    super::define(&world, &sections);
    for one in definitions() {
        world.run(&["lookups", "build", &one.name]).await.ended(0);
    }
    world
}

/// Runs a scenario on one database, and then on shards.
async fn in_both(version: u32, scenario: impl AsyncFn(&Router)) {
    let tables: Vec<&str> = TABLES.into_iter().chain([NICKS]).collect();
    let world = one_database(version, &tables, &definitions()).await;
    scenario(&world.router().await).await;
    let claims = "SELECT count(*) FROM pg_class WHERE relname LIKE 'pgshard_%'
        AND relnamespace = 'app'::regnamespace";
    let old = world.servers.app(0).await;
    assert_eq!(
        old.query_one(claims, &[]).await.unwrap().get::<_, i64>(0),
        0
    );
    let world = shards(version).await;
    scenario(&world.router().await).await;
}

async fn key_of(router: &Router, email: &str) -> Option<i64> {
    router.lookup("emails").unwrap().find(email).await.unwrap()
}

/// The error says that the value is this key's, and promises that nothing has run.
#[track_caller]
fn assert_taken<T: std::fmt::Debug>(ended: Result<T, Error>, by: &str) {
    let error = ended.unwrap_err();
    assert!(
        matches!(&error, Error::Taken { key, .. } if key == by),
        "{error}"
    );
    assert!(!error.may_have_run() && error.is_application() && error.is_unique_violation());
}

fn problem(error: &Error) -> &LookupProblem {
    match error {
        Error::Lookup { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

async fn rows(old: &Client) -> Vec<(i64, Option<String>)> {
    let rows = old
        .query("SELECT id, email FROM app.users ORDER BY id", &[])
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Moves all shards to a host by a newer map, as if somebody else had.
fn place_all_on(router: &Router, host: &str) {
    let map = router.map();
    let placements = map.iter().map(|(shard, _, epoch)| {
        let (host, epoch) = (HostName::new(host).unwrap(), epoch.next());
        (shard, Placement { host, epoch })
    });
    let newer = ShardMap::new(map.version().next(), map.shards(), placements).unwrap();
    router.set_map(newer.into()).unwrap();
}

/// Each router has one connection to the database.
fn one_connection(world: &World) {
    let config = std::fs::read_to_string(&world.config.path).unwrap();
    let config = config.replacen("[hosts.db1]", "[hosts.db1]\npool_size = 1", 1);
    world.write("pgshard.toml", &config);
}

/// Whether `find` uses an index. The router has one connection.
async fn is_by_index(router: &Router, old: &Client, index: &str) -> bool {
    let prepared = "SELECT statement FROM pg_prepared_statements
        WHERE statement LIKE 'SELECT \"id\"::text%' ORDER BY prepare_time DESC LIMIT 1";
    let (find,): (String,) = router.by_key(1).query_one_as(prepared, &[]).await.unwrap();
    let plan = format!(
        "SET enable_seqscan = off; EXPLAIN {}",
        find.replace("$1", "'ida'")
    );
    let plan = old.simple_query(&plan).await.unwrap();
    format!("{plan:?}").contains(&format!("using {index}"))
}

on_each_version! {
    async fn a_value_belongs_to_one_key_in_both_layouts(version) {
        in_both(version, async |router| {
            let update = "UPDATE {shard}.users SET email = $2 WHERE id = $1";
            let claiming = |id: i64, email: &str| router.claiming(id, [("emails", email)]).unwrap();
            assert_eq!(key_of(router, "a").await, None);
            assert_eq!(register(router, 1, "a").await.unwrap(), 1);
            assert_eq!(key_of(router, "a").await, Some(1));
            assert_eq!(key_of(router, "A").await, None);
            // Another key's: the closure does not run.
            assert_taken(register(router, 2, "a").await, "1");
            let ran = AtomicUsize::new(0);
            let taken = claiming(2, "a").transaction(async |_| {
                ran.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Error>(())
            });
            assert_taken(taken.await, "1");
            assert_eq!(ran.into_inner(), 0);
            // One's own again, and a change, which frees the former value.
            assert_eq!(claiming(1, "a").execute(update, &both(&1, &"a")).await.unwrap(), 1);
            assert_eq!(claiming(1, "b").execute(update, &both(&1, &"b")).await.unwrap(), 1);
            assert_eq!(register(router, 2, "a").await.unwrap(), 1);
            assert_eq!((key_of(router, "a").await, key_of(router, "b").await), (Some(2), Some(1)));
            assert_taken(claiming(1, "a").execute(update, &both(&1, &"a")).await, "2");
            // A NULL is no value, and needs no claim.
            let none = None::<&str>;
            router.by_key(1).execute(update, &both(&1, &none)).await.unwrap();
            router.by_key(3).execute(INSERT, &both(&3, &none)).await.unwrap();
            // The primary key's refusal is its own, and a roll-back leaves nothing.
            let own = register(router, 2, "c").await.unwrap_err();
            assert_eq!(own.constraint(), Some("users_pkey"), "{own}");
            let given_up = claiming(4, "d").transaction(async |tx: Transaction| {
                tx.execute(INSERT, &both(&4, &"d")).await?;
                Err::<(), _>(Error::Closed)
            });
            assert!(matches!(given_up.await, Err(Error::Closed)));
            assert_eq!(register(router, 4, "d").await.unwrap(), 1);
        }).await;
    }

    async fn each_type_and_several_columns_are_found_in_both_layouts(version) {
        in_both(version, async |router| {
            let insert = "INSERT INTO {shard}.nicks (id, nick) VALUES ($1, $2)";
            let nick = async |id: i64, nick: &str| {
                let claiming = router.claiming(id, [("nicks", nick)]).unwrap();
                claiming.execute(insert, &[&id, &nick]).await
            };
            nick(1, "ADA İ").await.unwrap();
            assert_taken(nick(2, "ada İ").await, "1");
            let nicks = router.lookup("nicks").unwrap();
            assert_eq!(nicks.find::<i64>("Ada İ").await.unwrap(), Some(1));
            // A to Z only.
            nick(3, "ÉA").await.unwrap();
            assert_eq!(nicks.find::<i64>("Éa").await.unwrap(), Some(3));
            assert_eq!(nicks.find::<i64>("éa").await.unwrap(), None);

            let day = jiff::civil::date(2026, 5, 1);
            let seat = |day: jiff::civil::Date, room: i64| [Value::from(day), room.into()];
            let insert = "INSERT INTO {shard}.seats (id, day, room) VALUES ($1, $2, $3)";
            let claiming = |id: i64| router.claiming(id, [("seats", seat(day, 7))]).unwrap();
            claiming(1).execute(insert, &[&1_i64, &day, &7_i16]).await.unwrap();
            assert_taken(claiming(2).execute(insert, &[&2_i64, &day, &7_i16]).await, "1");
            let seats = router.lookup("seats").unwrap();
            assert_eq!(seats.find::<i64>(seat(day, 7)).await.unwrap(), Some(1));
            // No column has such a value: no row has it either.
            for none in [seat(day, 8), seat(day, 1 << 40), seat(jiff::civil::Date::MIN, 7)] {
                assert_eq!(seats.find::<i64>(none).await.unwrap(), None);
            }
            router.by_key(3).execute(insert, &[&3_i64, &day, &None::<i16>]).await.unwrap();
            router.by_key(4).execute(insert, &[&4_i64, &day, &None::<i16>]).await.unwrap();

            let device = Uuid::from_u128(7);
            let insert = "INSERT INTO {shard}.devices (id, device) VALUES ($1, $2)";
            let claiming = |id: i64| router.claiming(id, [("devices", device)]).unwrap();
            claiming(1).execute(insert, &[&1_i64, &device]).await.unwrap();
            assert_taken(claiming(2).execute(insert, &[&2_i64, &device]).await, "1");
            let devices = router.lookup("devices").unwrap();
            assert_eq!(devices.find::<i64>(device).await.unwrap(), Some(1));
            assert_eq!(key_of(router, "a\0b").await, None);
        }).await;
    }

    async fn the_same_calls_are_refused_in_both_layouts(version) {
        in_both(version, async |router| {
            let undefined = router.lookup("names").unwrap_err();
            assert_eq!(*problem(&undefined), LookupProblem::Undefined);
            let undefined = router.claiming(1, [("names", "a")]).unwrap_err();
            assert_eq!(*problem(&undefined), LookupProblem::Undefined);
            let twice = router.claiming(1, [("emails", "a"), ("emails", "a")]).unwrap_err();
            assert_eq!(*problem(&twice), LookupProblem::Twice);
            let is_of_types = |error: &Error| {
                matches!(problem(error), LookupProblem::OtherTypes { .. })
            };
            let emails = router.lookup("emails").unwrap();
            for other in [vec![], vec![7_i64.into()], vec!["a".into(), "b".into()]] {
                let error = emails.find::<i64>(other).await.unwrap_err();
                assert!(is_of_types(&error), "{error}");
            }
            let claiming = router.claiming(1_i64, [("emails", 7_i64)]).unwrap();
            let ran = AtomicUsize::new(0);
            let refused = claiming.transaction(async |_| {
                ran.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Error>(())
            }).await.unwrap_err();
            assert!(is_of_types(&refused) && !refused.may_have_run(), "{refused}");
            assert_eq!(ran.into_inner(), 0);
            let key = router.claiming("one", [("emails", "a")]).unwrap();
            let wrong = key.execute(INSERT, &both(&1, &"a")).await.unwrap_err();
            assert!(!wrong.may_have_run(), "{wrong}");
            register(router, 9, "nine").await.unwrap();
            let no_key = emails.find::<Uuid>("nine").await.unwrap_err();
            assert!(matches!(problem(&no_key), LookupProblem::Key { key } if key == "9"));
        }).await;
    }

    /// Many concurrent calls for each value: one row, and `Taken` for all others. `Busy` is for
    /// claims.
    async fn of_many_calls_one_gets_the_value_in_both_layouts(version) {
        in_both(version, async |router| {
            for round in 0..5 {
                let email = format!("round{round}@example.com");
                let calls = (0..24_i64).map(|n| {
                    let (router, email) = (router.clone(), email.clone());
                    tokio::spawn(async move {
                        let id = round * 100 + n;
                        match n % 2 {
                            0 => register(&router, id, &email).await,
                            _ => router.claiming(id, [("emails", &email)])?
                                .transaction(async |tx: Transaction| {
                                    tx.execute(INSERT, &both(&id, &email)).await
                                }).await,
                        }
                    })
                });
                let mut written = 0;
                for call in calls.collect::<Vec<_>>() {
                    match call.await.unwrap() {
                        Ok(rows) => written += rows,
                        Err(Error::Taken { .. }) => {}
                        Err(Error::Busy { .. }) if router.by_key(1).schema() != "app" => {}
                        Err(other) => panic!("{other}"),
                    }
                }
                assert_eq!(written, 1);
                assert!(key_of(router, &email).await.is_some());
            }
        }).await;
    }

    /// An application that does not use the library writes the value between the check and the
    /// row.
    async fn a_row_that_comes_first_makes_the_value_taken(version) {
        let world = users(version).await;
        let (router, old) = (world.router().await, world.servers.app(0).await);
        let plain = "INSERT INTO app.users (id, email) VALUES ($1, $2)";
        let (first, old) = (&AtomicUsize::new(10), &old);
        // Once another row has the value, each of these ends as `Taken`.
        let other = async || {
            let id = i64::try_from(first.fetch_add(1, Ordering::Relaxed)).unwrap();
            old.execute(plain, &[&id, &format!("v{id}")]).await.unwrap();
        };
        let claiming = |email: &'static str| router.claiming(1_i64, [("emails", email)]).unwrap();
        let ended = claiming("v10").transaction(async |tx: Transaction| {
            other().await;
            tx.execute(INSERT, &both(&1, &"v10")).await
        });
        assert_taken(ended.await, "10");
        // A savepoint that passes the error on, and one that hides it.
        let ended = claiming("v11").transaction(async |tx: Transaction| {
            other().await;
            tx.savepoint(async { tx.execute(INSERT, &both(&1, &"v11")).await }).await
        });
        assert_taken(ended.await, "11");
        let ended = claiming("v12").transaction(async |tx: Transaction| {
            other().await;
            let ended = tx.savepoint(async { tx.execute(INSERT, &both(&1, &"v12")).await }).await;
            assert!(ended.unwrap_err().is_unique_violation());
            Err::<(), _>(Error::Closed)
        });
        assert_taken(ended.await, "12");
        // A closure that goes on after the error, and one with a client of its own.
        let ended = claiming("v13").transaction(async |tx: Transaction| {
            other().await;
            let _ = tx.execute(INSERT, &both(&1, &"v13")).await;
            Ok::<_, Error>(())
        });
        assert_taken(ended.await, "13");
        let ended = claiming("v14").transaction(async |tx: Transaction| {
            other().await;
            let client = tx.client().await?;
            let ended = client.execute(plain, &both(&1, &"v14")).await;
            ended.map_err(|error| tx.failed(error))
        });
        assert_taken(ended.await, "14");
        // A closure that mends it is rolled back: on shards it would not have run.
        let mended = claiming("v15").transaction(async |tx: Transaction| {
            other().await;
            let ended = tx.savepoint(async { tx.execute(INSERT, &both(&1, &"v15")).await }).await;
            assert!(ended.is_err());
            tx.execute(INSERT, &both(&1, &"free")).await
        });
        assert_taken(mended.await, "15");
        // ON CONFLICT meets another key's row without an error: it is rolled back.
        for conflict in ["NOTHING", "UPDATE SET name = 'of 1'"] {
            let upsert = format!("{INSERT} ON CONFLICT (email) DO {conflict}");
            let email = ["v16", "v17"][usize::from(conflict != "NOTHING")];
            let ended = claiming(email).transaction(async |tx: Transaction| {
                other().await;
                tx.execute(&upsert, &both(&1, &email)).await
            });
            assert_taken(ended.await, &email[1..]);
        }
        let named = "SELECT count(*) FROM app.users WHERE name IS NOT NULL";
        assert_eq!(old.query_one(named, &[]).await.unwrap().get::<_, i64>(0), 0);
        let claimed = router.claiming(1_i64, [("emails", "free")]).unwrap();
        let upsert = format!("{INSERT} ON CONFLICT (email) DO NOTHING");
        assert_eq!(claimed.execute(&upsert, &both(&1, &"free")).await.unwrap(), 1);
        // One's own row: PostgreSQL's error.
        let own = claiming("free").transaction(async |tx: Transaction| {
            tx.execute(INSERT, &both(&2, &"free")).await
        }).await.unwrap_err();
        assert_eq!(own.constraint(), Some("users_email_key"), "{own}");
        assert_eq!(rows(old).await.len(), 9);
    }

    /// A single statement waits for an open transaction that has the value, as PostgreSQL does.
    async fn a_call_waits_for_the_transaction_that_has_the_value(version) {
        let world = users(version).await;
        let (router, old) = (world.router().await, world.servers.app(0).await);
        let looking = world.servers.superuser(0).await;
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'
            AND query LIKE 'INSERT INTO %users%'";
        for (email, end) in [("a", "COMMIT"), ("b", "ROLLBACK")] {
            old.batch_execute(&format!(
                "BEGIN; INSERT INTO app.users (id, email) VALUES (ascii('{email}'), '{email}')"
            )).await.unwrap();
            let registering = tokio::spawn({
                let router = router.clone();
                async move { register(&router, 1, email).await }
            });
            until(&looking, waits).await;
            old.batch_execute(end).await.unwrap();
            let ended = registering.await.unwrap();
            match end {
                "COMMIT" => assert_taken(ended, "97"),
                _ => assert_eq!(ended.unwrap(), 1),
            }
        }
        // A limit ends the wait: the statement is undone.
        let other = "BEGIN; INSERT INTO app.users (id, email) VALUES (9, 'c')";
        old.batch_execute(other).await.unwrap();
        let claiming = router.claiming(2_i64, [("emails", "c")]).unwrap();
        let limited = claiming.within(Duration::from_millis(300));
        let ended = limited.transaction(async |tx: Transaction| {
            tx.execute(INSERT, &both(&2, &"c")).await
        });
        let error = ended.await.unwrap_err();
        assert!(error.is_timeout() && !error.may_have_run(), "{error}");
        old.batch_execute("ROLLBACK").await.unwrap();
        until(&looking, "SELECT count(*) = 0 FROM pg_locks
            WHERE relation = 'app.users'::regclass AND pid <> pg_backend_pid()").await;
        let expected = [(1, Some("b".to_owned())), (97, Some("a".to_owned()))];
        assert_eq!(rows(&old).await, expected);
    }

    /// Without an index that makes the values unique nothing runs, and the error has the statement
    /// that creates one.
    async fn a_table_without_a_unique_index_is_refused(version) {
        let table = "CREATE TABLE {shard}.users (id bigint PRIMARY KEY, email text, name text)";
        let world = one_database(version, &[table], &definitions()[..1]).await;
        let (router, old) = (world.router().await, world.servers.app(0).await);
        old.batch_execute("INSERT INTO app.users VALUES (1, 'a', 'x'), (2, 'a', 'y')")
            .await.unwrap();
        let refused = async || {
            let ran = AtomicUsize::new(0);
            let claiming = router.claiming(3_i64, [("emails", "b")]).unwrap();
            let error = claiming.transaction(async |tx: Transaction| {
                ran.fetch_add(1, Ordering::Relaxed);
                tx.execute(INSERT, &both(&3, &"b")).await
            }).await.unwrap_err();
            assert_eq!(ran.into_inner(), 0, "{error}");
            assert!(!error.may_have_run() && error.is_application());
            let alone = register(&router, 3, "b").await.unwrap_err();
            let found = router.lookup("emails").unwrap().find::<i64>("a").await.unwrap_err();
            assert!(problem(&error) == problem(&alone) && problem(&alone) == problem(&found));
            match problem(&error) {
                LookupProblem::NoUniqueIndex { statement, .. } => statement.clone(),
                other => panic!("{other}"),
            }
        };
        let statement = refused().await;
        assert_eq!(statement,
            "CREATE UNIQUE INDEX CONCURRENTLY ON \"app\".\"users\" (\"email\")");
        // An index that could not be built stays, invalid.
        assert!(old.batch_execute(&statement).await.is_err());
        let invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid
            AND indrelid = 'app.users'::regclass";
        assert_eq!(old.query_one(invalid, &[]).await.unwrap().get::<_, i64>(0), 1);
        assert_eq!(refused().await, statement);
        old.batch_execute("UPDATE app.users SET email = 'c' WHERE id = 2").await.unwrap();
        for other in [
            "CREATE INDEX ON app.users (email)",
            "CREATE UNIQUE INDEX ON app.users (email) WHERE id > 0",
            "CREATE UNIQUE INDEX ON app.users (email, name)",
            "CREATE UNIQUE INDEX ON app.users (name) INCLUDE (email)",
            "CREATE UNIQUE INDEX ON app.users (md5(email))",
        ] {
            old.batch_execute(other).await.unwrap();
            assert_eq!(refused().await, statement, "{other}");
        }
        old.batch_execute(&statement).await.unwrap();
        assert_taken(register(&router, 3, "a").await, "1");
        assert_eq!(register(&router, 3, "b").await.unwrap(), 1);
        // What was found holds while the host serves the shards, and is read again afterwards.
        let drop = "DO $$ DECLARE i regclass; BEGIN FOR i IN SELECT indexrelid FROM pg_index
            WHERE indrelid = 'app.users'::regclass AND NOT indisprimary LOOP
            EXECUTE 'DROP INDEX ' || i; END LOOP; END $$";
        old.batch_execute(drop).await.unwrap();
        assert_eq!(key_of(&router, "b").await, Some(3));
        old.batch_execute("UPDATE pgshard.whole SET epoch = epoch + 1").await.unwrap();
        place_all_on(&router, "db1");
        assert_eq!(refused().await, statement);
    }

    /// An index over fewer columns, with another order, or a constraint that is checked at COMMIT
    /// makes the values unique, too.
    async fn a_stricter_index_makes_the_values_unique(version) {
        let seats = "CREATE TABLE {shard}.seats (id bigint PRIMARY KEY, day date,
            room integer UNIQUE)";
        let users = "CREATE TABLE {shard}.users (id bigint PRIMARY KEY, email text, name text,
            UNIQUE (email) INCLUDE (name) DEFERRABLE INITIALLY DEFERRED)";
        let lookups = [definitions()[0].clone(), definitions()[2].clone()];
        let world = one_database(version, &[users, seats], &lookups).await;
        let (router, old) = (world.router().await, world.servers.app(0).await);
        let (one, other) = (jiff::civil::date(2026, 5, 1), jiff::civil::date(2026, 5, 2));
        let insert = "INSERT INTO {shard}.seats (id, day, room) VALUES ($1, $2, 7)";
        let seat = async |id: i64, day: jiff::civil::Date| {
            let values = [Value::from(day), 7_i64.into()];
            let claiming = router.claiming(id, [("seats", values)]).unwrap();
            claiming.execute(insert, &[&id, &day]).await
        };
        seat(1, one).await.unwrap();
        assert_taken(seat(2, one).await, "1");
        // The pair is free; what refuses it is the table's own.
        let error = seat(2, other).await.unwrap_err();
        assert_eq!(error.constraint(), Some("seats_room_key"), "{error}");

        let ended = router.claiming(1_i64, [("emails", "a")]).unwrap()
            .transaction(async |tx: Transaction| {
                old.batch_execute("INSERT INTO app.users VALUES (2, 'a')").await.unwrap();
                assert_eq!(tx.execute(INSERT, &both(&1, &"a")).await?, 1);
                Ok::<_, Error>(())
            });
        assert_taken(ended.await, "2");
        assert_eq!(rows(&old).await, [(2, Some("a".to_owned()))]);
    }

    /// Which indexes fold A to Z: `lower` in a language that changes an I otherwise does not, nor
    /// does a function of that name.
    async fn an_index_that_folds_otherwise_is_refused(version) {
        let table = "CREATE TABLE {shard}.nicks (id bigint PRIMARY KEY, nick text)";
        let world = one_database(version, &[table], &definitions()[1..2]).await;
        one_connection(&world);
        let (router, old) = (world.router().await, world.servers.superuser(0).await);
        // PostgreSQL writes it without its schema, and its own `lower` with one.
        old.batch_execute("CREATE FUNCTION app.lower(text) RETURNS text IMMUTABLE LANGUAGE sql
            RETURN $1; ALTER DATABASE app SET search_path = app, pg_catalog").await.unwrap();
        let has_icu = async |name: &str, locale: &str| {
            let options = format!("(provider = icu, locale = '{locale}')");
            old.batch_execute(&format!("CREATE COLLATION app.{name} {options}")).await.is_ok()
        };
        let (turkish, lithuanian) = (has_icu("tr", "tr").await, has_icu("lt", "lt").await);
        let mut indexes = BTreeMap::from([
            ("nick", false),
            ("upper(nick)", false),
            ("app.lower(nick)", false),
            ("lower(nick), id", false),
            ("lower(nick || 'x')", false),
            ("lower(nick)", true),
            ("lower(nick COLLATE \"C\")", true),
            ("(lower(nick)) COLLATE \"C\"", true),
            ("lower(nick::char(9))", false),
        ]);
        if turkish {
            indexes.insert("lower(nick COLLATE app.tr)", false);
        }
        if lithuanian {
            indexes.insert("lower(nick COLLATE app.lt)", false);
        }
        let mut epoch = 1;
        for (index, folds) in indexes {
            let create = format!("CREATE UNIQUE INDEX folded ON app.nicks ({index})");
            old.batch_execute(&create).await.unwrap();
            let sql = "INSERT INTO {shard}.nicks (id, nick) VALUES ($1, $2)";
            let nick = async |id: i64, nick: &str| {
                let claiming = router.claiming(id, [("nicks", nick)]).unwrap();
                claiming.execute(sql, &[&id, &nick]).await
            };
            let ended = nick(1, "IDA \u{300}ÉŠ").await;
            assert_eq!(ended.is_ok(), folds, "{index}: {ended:?}");
            if let Err(error) = ended {
                let LookupProblem::NoUniqueIndex { statement, .. } = problem(&error) else {
                    panic!("{error}");
                };
                assert_eq!(statement, "CREATE UNIQUE INDEX CONCURRENTLY ON \"app\".\"nicks\" \
                    (pg_catalog.lower(\"nick\" COLLATE \"C\"))");
            } else {
                assert_taken(nick(2, "ida \u{300}ÉŠ").await, "1");
                let found = router.lookup("nicks").unwrap().find::<i64>("Ida \u{300}ÉŠ").await;
                assert_eq!(found.unwrap(), Some(1), "{index}");
                assert!(is_by_index(&router, &old, "folded").await, "{index}");
            }
            old.batch_execute("DROP INDEX app.folded; TRUNCATE app.nicks").await.unwrap();
            epoch += 1;
            let next = format!("UPDATE pgshard.whole SET epoch = {epoch}");
            old.batch_execute(&next).await.unwrap();
            place_all_on(&router, "db1");
        }
    }

    /// `citext` folds by itself, in the collation of the database.
    async fn a_column_of_citext_is_found_by_its_own_index(version) {
        let tables = "CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext;
            CREATE TABLE {shard}.nicks (id bigint PRIMARY KEY, nick ext.citext);
            CREATE TABLE {shard}.users (id bigint PRIMARY KEY, email ext.citext UNIQUE)";
        let world = one_database(version, &[tables], &definitions()[..2]).await;
        one_connection(&world);
        let (router, old) = (world.router().await, world.servers.superuser(0).await);
        let nicks = router.lookup("nicks").unwrap();
        let missing = nicks.find::<i64>("a").await.unwrap_err();
        assert!(matches!(problem(&missing), LookupProblem::NoUniqueIndex { .. }), "{missing}");
        old.batch_execute("CREATE UNIQUE INDEX folded ON app.nicks (nick)").await.unwrap();
        old.batch_execute("INSERT INTO app.nicks VALUES (1, 'IDA'), (2, 'É')").await.unwrap();
        assert_eq!(nicks.find::<i64>("ida").await.unwrap(), Some(1));
        assert_eq!(nicks.find::<i64>("é").await.unwrap(), None);
        assert!(is_by_index(&router, &old, "folded").await);
        // Without folding it would find what is not the same.
        let unfit = router.lookup("emails").unwrap().find::<i64>("a").await.unwrap_err();
        assert!(matches!(problem(&unfit), LookupProblem::UnfitTable { .. }), "{unfit}");
    }

    /// A table that no look-up of a shard may be over is refused here, too.
    async fn a_table_that_shards_would_refuse_is_refused(version) {
        let tables = "CREATE TABLE {shard}.parts (id bigint NOT NULL, a text, UNIQUE (id, a))
                PARTITION BY HASH (id);
            CREATE TABLE {shard}.guarded (id bigint NOT NULL, a text UNIQUE);
            ALTER TABLE {shard}.guarded ENABLE ROW LEVEL SECURITY;
            CREATE TABLE {shard}.parent (id bigint NOT NULL, a text UNIQUE);
            CREATE TABLE {shard}.child () INHERITS ({shard}.parent);
            CREATE TABLE {shard}.t (id bigint NOT NULL, a text UNIQUE, n numeric UNIQUE,
                k bigint);";
        let define = |name: &str, table: &str, column: &str, key: &str| {
            Definition::new(name, table, [column], key)
        };
        let lookups = [
            (define("nowhere", "nowhere", "a", "id"), "no such table"),
            (define("parts", "parts", "a", "id"), "ordinary table"),
            (define("guarded", "guarded", "a", "id"), "ordinary table"),
            (define("parent", "parent", "a", "id"), "ordinary table"),
            (define("gone", "t", "z", "id"), "each column"),
            (define("amount", "t", "n", "id"), "each column"),
            (define("days", "t", "k", "id").fold(Fold::Ascii), "each column"),
            (define("weak", "t", "a", "k"), "key column"),
        ];
        let definitions: Vec<Definition> = lookups.iter().map(|one| one.0.clone()).collect();
        let world = one_database(version, &[tables], &definitions).await;
        let router = world.router().await;
        for (definition, why) in lookups {
            let found = router.lookup(&definition.name).unwrap().find::<i64>("a").await;
            let error = found.unwrap_err();
            let is_unfit = matches!(problem(&error), LookupProblem::UnfitTable { .. });
            assert!(is_unfit && error.to_string().contains(why), "{error}");
            let claiming = router.claiming(1_i64, [(&definition.name, "a")]).unwrap();
            let refused = claiming.execute("SELECT 1", &[]).await.unwrap_err();
            assert_eq!(problem(&refused), problem(&error));
        }
    }

    /// The host serves the shards no longer when the row is to be written: nothing is written
    /// without a claim.
    async fn a_layout_that_changes_ends_the_call(version) {
        let world = users(version).await;
        let (router, old) = (world.router().await, world.servers.app(0).await);
        let claiming = |email: &'static str| router.claiming(1_i64, [("emails", email)]).unwrap();
        let ran = AtomicUsize::new(0);
        let ended = claiming("a").transaction(async |tx: Transaction| {
            ran.fetch_add(1, Ordering::Relaxed);
            place_all_on(&router, "db2");
            tx.execute(INSERT, &both(&1, &"a")).await
        });
        let error = ended.await.unwrap_err();
        assert!(matches!(error, Error::LayoutChanged { .. }), "{error}");
        assert!(error.is_retryable() && !error.may_have_run());
        assert_eq!(ran.into_inner(), 1);
        assert_eq!(rows(&old).await, []);
        // The next call claims.
        let error = claiming("a").execute(INSERT, &both(&1, &"a")).await.unwrap_err();
        assert!(!matches!(error, Error::LayoutChanged { .. }), "{error}");
        assert_eq!(rows(&old).await, []);
    }

    /// Every connection of the pool is in a transaction that waits for another call's check.
    async fn a_full_pool_does_not_keep_the_check_waiting(version) {
        let world = users(version).await;
        one_connection(&world);
        let router = world.router().await;
        register(&router, 1, "a").await.unwrap();
        let nested = router.by_key(5).transaction(async |tx: Transaction| {
            tx.execute("SELECT 1", &[]).await?;
            register(&router, 2, "a").await
        });
        assert_taken(nested.await, "1");
    }

    /// What there is only on shards is refused by name.
    async fn there_is_nothing_to_build_or_compare(version) {
        let world = users(version).await;
        let router = world.router().await;
        let lookup = router.lookup("emails").unwrap();
        let none = |_: ShardId| ();
        let refusals = [
            lookup.states().await.map(drop),
            lookup.build(none).await.map(drop),
            lookup.check(none).await.map(drop),
            lookup.repair(none).await.map(drop),
            lookup.writers().await.map(drop),
            lookup.sweep().await.map(drop),
            lookup.suspend().await,
        ];
        for refused in refusals {
            let error = refused.unwrap_err();
            let is_named = matches!(problem(&error),
                LookupProblem::Unsharded { host } if host.as_str() == "db1");
            assert!(is_named && error.to_string().contains("its own unique index"), "{error}");
        }
    }
}
