//! An unsharded host: an application runs with the library on its one database. Whatever it does
//! there gives what that database gives; what would be wrong on shards, or is not possible before
//! there are some, is refused by name.

mod generated;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use futures_util::{StreamExt, TryStreamExt};
use pgshard::config::Config;
use pgshard::id::Id;
use pgshard::router::{Error, HostDiffers, LookUpError};
use pgshard::{Router, ShardId, columns, params};
use tokio_postgres::Client;

use crate::support::{TestCluster, World, lines};

const SHARDS: u16 = 64;
const LEGACY: i64 = 1_000_000;

/// A database as it was before the shards: its own sequences, users and photos.
const TABLES: &str = "CREATE SCHEMA app;
    CREATE TABLE app.users (id bigserial PRIMARY KEY, name text NOT NULL);
    CREATE TABLE app.photos (id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES app.users,
        title text NOT NULL, likes integer NOT NULL DEFAULT 0);
    INSERT INTO app.users SELECT n, 'user ' || n FROM generate_series(1, 200) AS n;
    INSERT INTO app.photos (user_id, title, likes)
        SELECT 1 + n % 200, 'photo ' || n, n % 7 FROM generate_series(1, 1000) AS n;";

/// The text of a config: db1 is unsharded and has all shards, a second host is empty.
fn config_text(servers: &TestCluster, of_db1: &str) -> String {
    let mut text = format!(
        "[cluster]\nshards = {SHARDS}\nepoch = \"2011-01-01T00:00:00Z\"\nlegacy_below = {LEGACY}\n"
    );
    for (at, server) in servers.servers().iter().enumerate() {
        let of_host = if at == 0 { of_db1 } else { "" };
        let (name, url) = (servers.name(at), server.url());
        text.push_str(&format!("[hosts.{name}]\nurl = \"{url}\"\n{of_host}\n"));
    }
    text + &format!(
        "[map]\nversion = 1\n[map.placement]\ndb1 = \"0-{}\"\n",
        SHARDS - 1
    )
}

const UNSHARDED: &str = "layout = \"unsharded\"\nschema = \"app\"";

/// The database, not bootstrapped yet, as the host of a config.
async fn database(version: u32, hosts: usize, of_db1: &str) -> World {
    let servers = TestCluster::start(version, hosts);
    servers.app(0).await.batch_execute(TABLES).await.unwrap();
    let path = servers.write("pgshard.toml", &config_text(&servers, of_db1));
    let config = Config::load(path).unwrap();
    World { servers, config }
}

/// The same, bootstrapped.
async fn world(version: u32, of_db1: &str) -> World {
    let world = database(version, 1, of_db1).await;
    world.run(&["bootstrap"]).await.ended(0);
    world
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

/// An ID that this shard makes.
fn made_by(shard: ShardId, sequence: u64) -> i64 {
    Id::new(500_000_000_000, shard, sequence).unwrap().encode()
}

on_each_version! {
    /// Bootstrap changes nothing of the application's, and says what the host is in a word that no
    /// other client knows.
    async fn bootstrap_only_adds_the_control_schema(version) {
        let world = database(version, 2, UNSHARDED).await;
        let old = world.servers.app(0).await;
        let definitions = "SELECT n.nspname, c.relname, c.relfilenode, c.xmin FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'app' ORDER BY 1, 2";
        let before = format!("{:?}", old.query(definitions, &[]).await.unwrap().len());
        for _ in 0..2 {
            world.run(&["bootstrap"]).await.ended(0);
            let schemas = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information)'
                ORDER BY nspname";
            assert_eq!(lines(&old, schemas).await.split_whitespace().collect::<Vec<_>>(),
                ["app", "pgshard", "public"]);
            let recorded = "SELECT key_kind || ' ' || legacy_below FROM pgshard.cluster";
            assert_eq!(lines(&old, recorded).await.trim(), format!("unsharded-integer {LEGACY}"));
            let whole = "SELECT w::text FROM pgshard.whole w";
            assert_eq!(lines(&old, whole).await.trim(), "(t,app,serving,1)");
            assert_eq!(number(&old, "SELECT count(*) FROM pgshard.shard").await, 0);
        }
        assert_eq!(format!("{:?}", old.query(definitions, &[]).await.unwrap().len()), before);
        let look = "SELECT string_agg(coalesce(state || epoch, 'none'), ' ' ORDER BY n)
            FROM unnest(ARRAY[-1, 0, 63, 64]) AS n, pgshard.look(n)";
        assert_eq!(lines(&old, look).await.trim(), "none serving1 serving1 none");
        let other = world.servers.app(1).await;
        let kind = "SELECT key_kind FROM pgshard.cluster";
        assert_eq!(lines(&other, kind).await.trim(), "integer");
        assert_eq!(number(&other, "SELECT count(*) FROM pgshard.whole").await, 0);
    }

    /// What cannot be right is refused, and nothing is written.
    async fn bootstrap_refuses_what_is_not_such_a_database(version) {
        let nowhere = "layout = \"unsharded\"\nschema = \"nowhere\"";
        let world = database(version, 1, nowhere).await;
        let ran = world.run(&["bootstrap"]).await;
        assert_ne!(ran.code(), 0);
        assert!(ran.stderr.contains("\"nowhere\"") && ran.stderr.contains("not there"),
            "{}", ran.stderr);
        let old = world.servers.app(0).await;
        let has = "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgshard'";
        assert_eq!(number(&old, has).await, 0);
        old.batch_execute("CREATE SCHEMA shard_0007").await.unwrap();
        world.servers.write("pgshard.toml", &config_text(&world.servers, UNSHARDED));
        let ran = world.run(&["bootstrap"]).await;
        assert!(ran.code() != 0 && ran.stderr.contains("shard_0007"), "{}", ran.stderr);
        assert_eq!(number(&old, has).await, 0);
        old.batch_execute("DROP SCHEMA shard_0007").await.unwrap();
        // Shards are there: it stays sharded. And the other way round.
        world.servers.write("pgshard.toml", &config_text(&world.servers, ""));
        world.run(&["bootstrap"]).await.ended(0);
        world.servers.write("pgshard.toml", &config_text(&world.servers, UNSHARDED));
        for args in [&["bootstrap"][..], &["check"]] {
            let ran = world.run(args).await;
            let said = ran.stdout.clone() + &ran.stderr;
            assert!(ran.code() != 0 && said.contains("it recorded that it is sharded"), "{said}");
        }
        let whole = "SELECT count(*) FROM pgshard.whole";
        assert_eq!(number(&old, whole).await, 0);
    }

    /// Calls for a key, for many keys and for all shards give what the one database gives, and
    /// write once.
    async fn everything_gives_what_one_database_gives(version) {
        let world = world(version, UNSHARDED).await;
        let (router, old) = (world.router().await, world.servers.app(0).await);
        let user = 17_i64;
        let of_user = "SELECT id FROM {shard}.photos WHERE user_id = $1 ORDER BY id";
        let found: Vec<(i64,)> = router.by_key(user).query_as(of_user, &[&user]).await.unwrap();
        assert_eq!(found.len(), 5);
        let in_path = "SELECT count(*) FROM photos WHERE user_id = $1";
        let counted = router.by_key(user).orm_transaction(async |tx| -> Result<i64, Error> {
            assert_eq!(tx.schema(), "\"app\"");
            let mut counted = 0;
            for _ in 0..2 {
                counted = tx.query_one(in_path, &[&user]).await?.get(0);
            }
            Ok(counted)
        });
        assert_eq!(counted.await.unwrap(), 5);
        assert_eq!(router.by_key(user).schema(), "app");

        // All shards: one statement, one result.
        let count = "SELECT count(*) FROM {shard}.photos";
        let all = || router.all_shards();
        for shards in [all(), all().reads(), all().depth(8)] {
            let rows = shards.query(count, &[]).await.unwrap();
            let [(first, row)] = rows.as_slice() else { panic!("{rows:?}") };
            assert_eq!((*first, row.get::<_, i64>(0)), (shard(0), 1000));
            let owned = shards.query_with(count, params![]).await.unwrap();
            assert_eq!(owned.len(), 1);
        }
        let like = "UPDATE {shard}.photos SET likes = likes + 1 WHERE title <> $1 RETURNING id";
        let likes = number(&old, "SELECT sum(likes) FROM app.photos").await;
        let title = "photo 5".to_owned();
        assert_eq!(router.all_shards().query(like, &[&title]).await.unwrap().len(), 999);
        assert_eq!(number(&old, "SELECT sum(likes) FROM app.photos").await, likes + 999);
        let all = "SELECT likes, id FROM {shard}.photos ORDER BY likes DESC, id";
        let rows: Vec<_> = router.all_shards().query_raw(all, params![])
            .map(|(_, row)| row).try_collect().await.unwrap();
        assert_eq!(rows.len(), 1000);
        let order = |row: &tokio_postgres::Row| {
            Ok((Reverse(row.try_get::<_, i32>(0)?), row.try_get::<_, i64>(1)?))
        };
        let merged = router.all_shards().merge_raw(all, params![], order).await.unwrap();
        let merged: Vec<_> = merged.try_collect().await.unwrap();
        let plain = old.query(&all.replace("{shard}", "app"), &[]).await.unwrap();
        let ids = |rows: Vec<i64>| rows;
        assert_eq!(ids(merged.iter().map(|(_, row)| row.get(1)).collect()),
            ids(plain.iter().map(|row| row.get(1)).collect()));

        // Many keys, in pages.
        let keys: Vec<i64> = (1..=120).collect();
        let of_keys = "SELECT id FROM {shard}.photos WHERE user_id = ANY($1)";
        let rows = router.by_keys(&keys).unwrap().query(of_keys).await.unwrap();
        let distinct: BTreeSet<i64> = rows.iter().map(|(_, row)| row.get(0)).collect();
        assert_eq!((rows.len(), distinct.len()), (600, 600));
        let page = "SELECT likes, id FROM {shard}.photos WHERE user_id = ANY($1)
            ORDER BY likes DESC, id LIMIT 50";
        let merged = router.by_keys(&keys).unwrap().merge(page, params![], 50, order);
        let merged: Vec<i64> = merged.await.unwrap().iter().map(|(_, row)| row.get(1)).collect();
        let plain = old.query(&page.replace("{shard}", "app"), &[&keys]).await.unwrap();
        assert_eq!(merged, plain.iter().map(|row| row.get(1)).collect::<Vec<i64>>());
        let streamed = router.by_keys(&keys).unwrap().merge_raw(
            "SELECT likes, id FROM {shard}.photos WHERE user_id = ANY($1) ORDER BY likes DESC, id",
            params![], order).await.unwrap();
        let streamed: Vec<_> = streamed.try_collect().await.unwrap();
        assert_eq!(streamed.len(), 600);

        // Rows with IDs of shards, each found by its ID alone.
        let rows: Vec<(i64, i64)> = keys.iter()
            .map(|key| (made_by(router.by_key(*key).id(), *key as u64), *key)).collect();
        let insert = "INSERT INTO {shard}.photos (id, user_id, title)
            SELECT id, u, 'new' FROM unnest($1::bigint[], $2::bigint[]) AS x (id, u) RETURNING id";
        let inserted = router.insert_many(&rows, |(_, user)| *user).unwrap()
            .query(insert, |rows| columns![
                rows.iter().map(|(id, _)| *id), rows.iter().map(|(_, user)| *user)]);
        let inserted = inserted.await.unwrap();
        assert_eq!(inserted.iter().map(|one| one.rows.len()).sum::<usize>(), 120);
        let ids: Vec<i64> = rows.iter().map(|(id, _)| *id).collect();
        let by_id = "SELECT id FROM {shard}.photos WHERE id = ANY($1)";
        let found = router.by_ids(&ids).query_in_order(by_id).await.unwrap();
        assert_eq!(found.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), ids);
        assert_eq!(router.by_ids(&ids).each(by_id).await.unwrap().len(), 120);
        let one = "SELECT user_id FROM {shard}.photos WHERE id = $1";
        let (user,): (i64,) =
            router.by_id(ids[9]).unwrap().query_one_as(one, &[&ids[9]]).await.unwrap();
        assert_eq!(user, rows[9].1);
    }

    /// IDs from before the shards are refused with what to do, one by one and among others, also
    /// after the host is gone.
    async fn an_id_from_before_the_shards_names_none(version) {
        let world = world(version, UNSHARDED).await;
        let router = world.router().await;
        let error = router.by_id(7).unwrap_err();
        assert!(matches!(error, Error::LegacyId { id: 7, legacy_below: LEGACY }));
        assert!(error.to_string().contains("by_key") && error.is_application());
        for other in [LEGACY, -1] {
            let passed = router.by_id(other);
            assert!(!matches!(passed, Err(Error::LegacyId { .. })), "{passed:?}");
        }
        let good = made_by(shard(3), 1);
        let insert = "INSERT INTO {shard}.photos (id, user_id, title) VALUES ($1, 3, 'new')";
        router.by_key(3_i64).execute(insert, &[&good]).await.unwrap();
        let by_id = "SELECT id FROM {shard}.photos WHERE id = ANY($1)";
        // 9 and the good one have the same bits for the shard only by chance: both are kept apart.
        let partial = router.by_ids(&[9, good, 10]).query(by_id).await.unwrap_err();
        assert_eq!(partial.done.len(), 1);
        assert_eq!(partial.wanted().copied().collect::<Vec<_>>(), [9, 10]);
        assert!(partial.failed.iter().all(|one| matches!(one.error, Error::LegacyId { .. })));
        let partial = router.by_ids(&[9, good]).each(by_id).await.unwrap_err();
        assert_eq!((partial.done.len(), partial.failed.len()), (1, 1));
    }

    /// What would give everybody's rows in the name of one shard, or once a shard, is refused
    /// before anything is sent.
    async fn what_is_of_one_shard_is_refused_by_name(version) {
        let world = world(version, UNSHARDED).await;
        let (router, old) = (world.router().await, world.servers.app(0).await);
        let likes = number(&old, "SELECT sum(likes) FROM app.photos").await;
        let like = "UPDATE {shard}.photos SET likes = likes + 1";
        let named = |error: &Error| {
            assert!(matches!(error, Error::Unsharded { .. }), "{error}");
            assert!(error.is_application() && !error.may_have_run(), "{error}");
        };
        let one = router.shard(shard(7)).unwrap();
        named(&one.execute(like, &[]).await.unwrap_err());
        named(&one.reads().query("SELECT FROM {shard}.photos", &[]).await.unwrap_err());
        named(&one.client().await.map(drop).unwrap_err());
        named(&one.transaction(async |tx| tx.execute(like, &[]).await).await.unwrap_err());
        named(&one.query_raw("SELECT FROM {shard}.photos", &[]).await.map(drop).unwrap_err());
        named(&one.copy_out("COPY {shard}.photos TO STDOUT").await.map(drop).unwrap_err());
        named(&router.by_key(1).next_ids(3).await.unwrap_err());
        let part = router.shards((0..63).map(shard));
        let partial = part.query(like, &[]).await.unwrap_err();
        assert_eq!((partial.done.len(), partial.failed.len()), (0, 63));
        partial.failed.iter().for_each(|failed| named(&failed.error));
        let partial = part.clone().depth(9).query_with(like, params![]).await.unwrap_err();
        partial.failed.iter().for_each(|failed| named(&failed.error));
        let select = "SELECT id FROM {shard}.photos ORDER BY id";
        let order = |row: &tokio_postgres::Row| row.try_get::<_, i64>(0);
        named(&part.merge_raw(select, params![], order).await.map(drop).unwrap_err());
        let streams = part.query_raw(select, params![]);
        let streams: Vec<_> = streams.collect().await;
        assert_eq!(streams.len(), 63);
        // The number of one shard in a statement for all of them.
        let numbered = "UPDATE {shard}.photos SET likes = likes + 1
            WHERE user_id % 64 = {shard_id}";
        let partial = router.all_shards().query(numbered, &[]).await.unwrap_err();
        partial.failed.iter().for_each(|failed| named(&failed.error));
        assert_eq!(number(&old, "SELECT sum(likes) FROM app.photos").await, likes);
        let key = router.by_key(3_i64).execute(numbered, &[]).await.unwrap();
        assert_eq!(u64::try_from(number(&old,
            "SELECT count(*) FROM app.photos WHERE user_id % 64 = 3").await).unwrap(), key);
    }

    /// With `log`, statements without a key run and are counted by their place; else they are
    /// refused.
    async fn statements_without_a_key_are_counted_by_their_place(version) {
        let world = world(version, &format!("{UNSHARDED}\nunrouted = \"log\"")).await;
        let router = world.router().await;
        let count = "SELECT count(*) FROM {shard}.photos";
        let mut place = 0;
        for _ in 0..3 {
            place = line!() + 1;
            let all = router.unrouted().unwrap();
            let (counted,): (i64,) = all.query_one_as(count, &[]).await.unwrap();
            assert_eq!(counted, 1000);
        }
        let elsewhere = router.unrouted().unwrap();
        let renamed = elsewhere.transaction(async |tx| {
            tx.execute("UPDATE {shard}.users SET name = 'x'", &[]).await
        });
        assert_eq!(renamed.await.unwrap(), 200);
        let numbered = elsewhere.query("SELECT {shard_id}", &[]).await.unwrap_err();
        assert!(matches!(numbered, Error::Unsharded { .. }), "{numbered}");
        let calls = router.unrouted_calls();
        assert_eq!(calls.iter().map(|one| one.calls).collect::<Vec<_>>(), [3, 1]);
        let at = format!("tests/it/unsharded.rs:{place}:");
        assert!(calls[0].place.starts_with(&at), "{calls:?}");

        let plain = world.config.path.clone();
        std::fs::write(&plain, config_text(&world.servers, UNSHARDED)).unwrap();
        let router = world.router().await;
        let error = router.unrouted().unwrap_err();
        assert!(error.to_string().contains("tests/it/unsharded.rs:"), "{error}");
        assert!(router.unrouted_calls().is_empty());
    }

    /// A statement is prepared once for all shards.
    async fn a_statement_is_prepared_once_for_all_shards(version) {
        let world = world(version, &format!("{UNSHARDED}\npool_size = 1")).await;
        let router = world.router().await;
        let of_user = "SELECT title FROM {shard}.photos WHERE user_id = $1";
        for user in 0..40_i64 {
            router.by_key(user).query(of_user, &[&user]).await.unwrap();
        }
        let prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%title%'";
        let (prepared,): (i64,) = router.by_key(1).query_one_as(prepared, &[]).await.unwrap();
        // The question names the column too.
        assert_eq!(prepared, 2);
    }

    /// A router that takes the host for another one than it says it is sends nothing.
    async fn a_config_of_another_layout_sends_nothing(version) {
        let world = world(version, UNSHARDED).await;
        let old = world.servers.app(0).await;
        // A trap: a statement for the shard would find its table.
        old.batch_execute("CREATE SCHEMA shard_0007; CREATE TABLE shard_0007.photos (id bigint);
            CREATE SCHEMA other; CREATE TABLE other.photos (id bigint)").await.unwrap();
        let refused = |error: Error| match error {
            Error::HostDiffers { source, .. } => source,
            Error::LookUp { source, .. } => match &*source {
                LookUpError::Differs(source) => source.clone(),
                _ => panic!("{source}"),
            },
            error => panic!("{error}"),
        };
        let other = UNSHARDED.replace("app", "other");
        let limit = config_text(&world.servers, UNSHARDED).replace("legacy_below = 1000000", "");
        let texts = [
            config_text(&world.servers, ""),
            config_text(&world.servers, &other),
            limit,
        ];
        let mut said = Vec::new();
        for text in texts {
            std::fs::write(&world.config.path, text).unwrap();
            let router: Router = world.router().await;
            let sent = router.by_key(7).execute("INSERT INTO {shard}.photos VALUES (7)", &[]).await;
            said.push(refused(sent.unwrap_err()));
            let rows = router.all_shards().query("SELECT FROM {shard}.photos", &[]).await;
            assert!(rows.unwrap_err().done.is_empty());
        }
        assert!(matches!(said[0], HostDiffers::Layout { recorded: "unsharded", .. }), "{said:?}");
        assert!(matches!(said[1], HostDiffers::Schema { .. }), "{said:?}");
        assert!(matches!(said[2], HostDiffers::LegacyBelow { recorded: LEGACY, .. }), "{said:?}");
        let rows = "SELECT (SELECT count(*) FROM shard_0007.photos)
            + (SELECT count(*) FROM other.photos) + (SELECT count(*) FROM app.photos)";
        assert_eq!(number(&old, rows).await, 1000);
        // The other way round: the host has shards, or is no host at all.
        let sharded = database(version, 1, "").await;
        let ask = async |world: &World| {
            let text = config_text(&world.servers, UNSHARDED);
            std::fs::write(&world.config.path, text).unwrap();
            let router = world.router().await;
            let insert = "INSERT INTO {shard}.users (name) VALUES ('x')";
            router.by_key(7).execute(insert, &[]).await.unwrap_err()
        };
        let error = ask(&sharded).await;
        assert!(!error.to_string().is_empty(), "{error}");
        std::fs::write(&sharded.config.path, config_text(&sharded.servers, "")).unwrap();
        sharded.run(&["bootstrap"]).await.ended(0);
        let error = refused(ask(&sharded).await);
        assert!(matches!(error, HostDiffers::Layout { recorded: "sharded", .. }), "{error}");
        let users = "SELECT count(*) FROM app.users";
        assert_eq!(number(&sharded.servers.app(0).await, users).await, 200);
    }

    /// Commands that work shard by shard are refused and change nothing; those that look report the
    /// truth.
    async fn commands_refuse_or_tell_the_truth(version) {
        let world = database(version, 2, UNSHARDED).await;
        let ran = world.run(&["bootstrap"]).await;
        // Its tables are there: nothing is missing in a config without migrations.
        assert!(!ran.ended(0).stderr.contains("no `migrations`"), "{}", ran.stderr);
        let before = world.everything().await;
        world.servers.write("0002_more.sql", "CREATE TABLE {shard}.more ()");
        for args in [
            &["move", "7", "--to", "db2", "--yes"][..],
            &["rebalance", "--plan"],
            &["drain", "db1", "--plan"],
            &["migrate", "up"],
            &["migrate", "status"],
            &["migrate", "plan"],
            &["migrate", "retry"],
            &["migrate", "backfill", "--status"],
            &["recover", "db1", "--plan"],
            &["moves", "repair", "7", "--plan"],
            &["lookups", "status"],
            &["bench"],
        ] {
            let ran = world.run(args).await;
            assert_eq!(ran.code(), 4, "{args:?}: {}", ran.stderr);
            assert!(ran.stderr.contains("db1 is unsharded"), "{args:?}: {}", ran.stderr);
        }
        assert_eq!(world.everything().await, before);
        let checked = world.run(&["check"]).await;
        let said = "it is unsharded: its schema app serves the shards 0-63";
        assert!(checked.ended(0).stdout.contains(said), "{}", checked.stdout);
        let table = world.text(&["host", "list"]).await;
        assert!(table.ended(0).stdout.contains("64"), "{}", table.stdout);
        let located = world.run(&["locate", "--key", "7"]).await;
        assert_eq!(located.ended(0).last()["schema"], "app", "{}", located.stdout);
        let legacy = world.run(&["locate", "--id", "7"]).await;
        assert!(legacy.ended(2).stderr.contains("before there were shards"), "{}", legacy.stderr);
        let decoded = world.run(&["id", "decode", "7"]).await;
        let said = "7 names no shard: those below 1000000";
        assert!(decoded.ended(0).stderr.contains(said), "{}", decoded.stderr);
        // What is pgshard's own is nothing to import.
        world.run(&["tickets", "create", "users"]).await.ended(0);
        let url = world.servers.server(0).url();
        let assessed = world.run(&["import", "assess", &url, "--key", "users.id"]).await;
        let tables = assessed.ended(0).last()["tables"].clone();
        assert_eq!(tables.as_array().unwrap().len(), 2, "{tables}");
        world.run(&["map", "rebuild", "--yes"]).await.ended(0);
        assert_eq!(world.everything().await, before);
        let rows = world.run(&["sql", "SELECT count(*) FROM {shard}.photos"]).await;
        assert_eq!(rows.ended(0).stdout.matches("1000").count(), 1, "{}", rows.stdout);
        let part = world.run(&["sql", "--shards", "7", "SELECT 1"]).await;
        assert_eq!(part.code(), 4, "{}", part.stderr);
        let from = world.run(&["init", "--from", &world.servers.server(0).url(), "--from",
            &world.servers.server(1).url(), "--config", "/nonexistent/pgshard.toml"]).await;
        assert!(from.code() != 0 && from.stderr.contains("unsharded"), "{}", from.stderr);
        // IDs come to their end, and the remedy helps.
        let old = world.servers.app(0).await;
        for (last, ends) in [(899_999_i64, false), (900_000, true)] {
            old.execute("SELECT setval('app.photos_id_seq', $1)", &[&last]).await.unwrap();
            let checked = world.run(&["check"]).await;
            assert_eq!(checked.stdout.contains("legacy_ids_end"), ends, "{}", checked.stdout);
        }
        // A sequence that is locked is not waited for.
        let locks = world.servers.app(0).await;
        locks.batch_execute("BEGIN; ALTER SEQUENCE app.photos_id_seq CACHE 2").await.unwrap();
        let checked = world.run(&["check"]).await;
        assert!(!checked.ended(0).stdout.contains("legacy"), "{}", checked.stdout);
        locks.batch_execute("ROLLBACK").await.unwrap();
        for client in [&old, &world.servers.app(1).await] {
            let raise = "UPDATE pgshard.cluster SET legacy_below = 2000000";
            client.batch_execute(raise).await.unwrap();
        }
        let text = config_text(&world.servers, UNSHARDED).replace("= 1000000", "= 2000000");
        std::fs::write(&world.config.path, text).unwrap();
        let checked = world.run(&["check"]).await;
        assert!(!checked.ended(0).stdout.contains("legacy"), "{}", checked.stdout);
        // A schema that is gone is seen.
        old.batch_execute("ALTER SCHEMA app RENAME TO gone").await.unwrap();
        let checked = world.run(&["check"]).await;
        assert!(checked.code() != 0 && checked.stdout.contains("schema_missing"),
            "{}", checked.stdout);
    }
}
