//! What a caller leaves in a session does not reach the next one; and row level security by a
//! setting.

use std::time::Duration;

use pgshard::Router;
use pgshard::router::{Error, Recycle};

use super::by_hand::Shards;
use super::ways::Ways;
use super::{COUNT, INSERT};

/// What can be seen in a session that is as good as new.
const SEEN: &str = "SELECT coalesce(nullif(current_setting('app.tenant', true), ''), '-') || ' '
    || current_setting('statement_timeout') || ' ' || \
    coalesce(to_regclass('pg_temp.photos')::text, '-')";

const NEW: &str = "- 0 -";

async fn seen(router: &Router) -> String {
    router.by_key(1).query_one(SEEN, &[]).await.unwrap().get(0)
}

/// A function of the application, which the router does not know about, and a trigger that it
/// cannot know about.
async fn prepare(shards: &Shards) {
    let sql = "
        CREATE FUNCTION public.remember(tenant text) RETURNS text LANGUAGE sql AS $$ SELECT \
        set_config('app.tenant',
            tenant, false) $$;
        CREATE FUNCTION public.remembers() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM public.remember(NEW.title); RETURN NEW; END $$;
        CREATE TRIGGER remembers BEFORE INSERT ON shard_0001.photos FOR EACH ROW EXECUTE FUNCTION \
        public.remembers()";
    shards
        .cluster
        .superuser(0)
        .await
        .batch_execute(sql)
        .await
        .unwrap();
}

on_each_version! {
    /// A SELECT can leave a temporary table, a setting or a lock behind. The next caller meets none
    /// of them, whichever way statements are sent.
    async fn of_a_select(version) {
        let shards = Shards::start(version, 4).await;
        prepare(&shards).await;
        shards.db[0]
            .batch_execute(
                "INSERT INTO shard_0001.photos VALUES (1, 'secret of shard \
            1')",
            )
            .await
            .unwrap();
        for Ways { name, router, .. } in Ways::all(&shards).await {
            assert_eq!(seen(&router).await, NEW, "{name}");
            router
                .by_key(1)
                .execute(
                    "SELECT id, title INTO TEMP photos FROM \
                {shard}.photos",
                    &[],
                )
                .await
                .unwrap();
            let orm = router.by_key(0).orm_transaction(async |tx| {
                let titles = tx.query("SELECT title FROM photos", &[]).await?;
                assert!(titles.is_empty(), "{name} {titles:?}");
                tx.execute("INSERT INTO photos (id, title) VALUES (7, 'mine')", &[])
                    .await
            });
            orm.await.unwrap();
            assert_eq!(shards.titles(0, 0).await, ["mine"], "{name}");
            shards.db[0]
                .batch_execute("TRUNCATE shard_0000.photos")
                .await
                .unwrap();
            for sql in [
                "SELECT set_config('app.tenant', $1, false)",
                "SELECT public.remember($1)",
                "WITH a AS (SELECT set_config('app.tenant', $1, false)) SELECT \
                    set_config('statement_timeout', '77s', \
                 false) FROM a",
                "SELECT $1::text AS title INTO TEMP photos",
                "CREATE TEMP TABLE photos (title text DEFAULT 'DO')",
                "SET statement_timeout = '78s'",
                "DO $$ BEGIN PERFORM set_config('app.tenant', 'DO', false); END $$",
            ] {
                let them: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&"them"];
                let with = if sql.contains("$1") { &them[..] } else { &[] };
                // The router cannot see what a DO leaves in a pooler's session: it may commit
                // halfway.
                if !(name == "pooled" && sql.starts_with("DO")) {
                    router.by_key(0).query(sql, with).await.unwrap();
                    assert_eq!(seen(&router).await, NEW, "{name} {sql}");
                }
                // In a transaction, committed and rolled back.
                for commits in [true, false] {
                    let result = router.by_key(0).transaction(async |tx| {
                        tx.query(sql, with).await?;
                        if commits {
                            Ok::<_, Error>(())
                        } else {
                            tx.query("SELECT 1/0", &[]).await.map(drop)
                        }
                    });
                    assert_eq!(result.await.is_ok(), commits, "{name} {sql}");
                    assert_eq!(seen(&router).await, NEW, "{name} {sql}, commits: {commits}");
                }
            }
            // A lock of the session is released even if the connection is never borrowed again.
            router
                .by_key(0)
                .query("SELECT pg_advisory_lock(7)", &[])
                .await
                .unwrap();
            let lock = shards.db[0].batch_execute(
                "SET lock_timeout = '20s'; SELECT pg_advisory_lock(7); SELECT \
                    pg_advisory_unlock(7)",
            );
            lock.await
                .unwrap_or_else(|error| panic!("{name}: {error:?}"));
            // Also the lock of a statement that was given up. (PgBouncer 1.18 refuses connections
            // after that.)
            if name == "pooled" {
                continue;
            }
            let sleeps = router.by_key(0).query(
                "SELECT pg_sleep(60) FROM \
                pg_advisory_lock(7)",
                &[],
            );
            assert!(
                tokio::time::timeout(Duration::from_millis(300), sleeps)
                    .await
                    .is_err()
            );
            let lock = shards.db[0].batch_execute(
                "SELECT pg_advisory_lock(7); SELECT \
                pg_advisory_unlock(7)",
            );
            lock.await
                .unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert_eq!(seen(&router).await, NEW, "{name}");
        }
    }

    /// What the text does not show stays if only the text is examined; if every session is cleaned
    /// it does not.
    async fn where_all_is_cleaned(version) {
        let shards = Shards::start(version, 4).await;
        prepare(&shards).await;
        for Ways { name, router, .. } in
            Ways::with(&shards, |options| options.recycle = Recycle::Clean).await
        {
            router
                .by_key(1)
                .execute(INSERT, &[&1_i64, &"them"])
                .await
                .unwrap();
            assert_eq!(seen(&router).await, NEW, "{name}");
            let both = router
                .by_key(1)
                .transaction(async |tx| tx.execute(INSERT, &[&2_i64, &"them"]).await);
            both.await.unwrap();
            assert_eq!(seen(&router).await, NEW, "{name}");
            assert_eq!(shards.titles(0, 1).await, ["them", "them"], "{name}");
            shards.db[0]
                .batch_execute("TRUNCATE shard_0001.photos")
                .await
                .unwrap();
        }
        // The same over the pipelined connections of a call over many shards.
        let mut options = shards.options();
        (options.hosts[0].pool_size, options.recycle) = (1, Recycle::Clean);
        let router = Router::new(options);
        let sql = "INSERT INTO {shard}.photos (id, title) SELECT * FROM unnest($1::bigint[], \
            $2::text[])";
        let rows = [1_i64, 2];
        let inserted = router.insert_many(&rows, |_| 1_i64).unwrap();
        let columns = |rows: &[&i64]| {
            pgshard::columns![
                rows.iter().map(|id| **id),
                rows.iter().map(|_| "them".to_owned())
            ]
        };
        inserted.query(sql, columns).await.unwrap();
        assert_eq!(seen(&router).await, NEW);
    }

    /// A temporary table of the transaction's own does not hide the shard's.
    async fn temporary_tables_come_last(version) {
        let shards = Shards::start(version, 4).await;
        for Ways { name, router, .. } in Ways::all(&shards).await {
            let rows = router.by_key(0).orm_transaction(async |tx| {
                tx.execute(
                    "CREATE TEMP TABLE photos (id bigint, title text) ON COMMIT \
                    DROP",
                    &[],
                )
                .await?;
                tx.execute("INSERT INTO photos (id, title) VALUES (1, 'kept')", &[])
                    .await
            });
            rows.await.unwrap();
            assert_eq!(shards.titles(0, 0).await, ["kept"], "{name}");
            shards.db[0]
                .batch_execute("TRUNCATE shard_0000.photos")
                .await
                .unwrap();
        }
    }

    /// Row level security by a setting: each transaction sets its own tenant, as
    /// docs/applications.md shows. No tenant sees another's rows, and without a tenant no rows are
    /// visible.
    async fn row_level_security(version) {
        let shards = Shards::start(version, 4).await;
        shards.db[0]
            .batch_execute(
                "
            ALTER TABLE shard_0000.photos ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
            CREATE POLICY of_tenant ON shard_0000.photos USING (title = \
            current_setting('app.tenant', true))",
            )
            .await
            .unwrap();
        // The pooler has three sessions, so that there is one for look-ups, too: a refusal by the
        // policy causes a look-up.
        for Ways {
            name,
            router,
            pooled,
            ..
        } in Ways::with(&shards, |options| options.hosts[0].pool_size = 2).await
        {
            let first = if pooled {
                200
            } else if name == "named" {
                0
            } else {
                100
            };
            let mut tenants = tokio::task::JoinSet::new();
            for tenant in 0..6_i64 {
                let router = router.clone();
                tenants.spawn(async move {
                    let own = &format!("{name} tenant {tenant}");
                    for round in 0..4_i64 {
                        let id = (first + tenant) * 100 + round;
                        let count = router
                            .by_key(0)
                            .transaction(async |tx| {
                                tx.execute(
                                    "SELECT set_config('app.tenant', $1, \
                                    true)",
                                    &[own],
                                )
                                .await?;
                                tx.execute(INSERT, &[&id, own]).await?;
                                let foreign: Result<u64, Error> = tx
                                    .savepoint(async {
                                        tx.execute(INSERT, &[&(id + 50), &"another's"]).await
                                    })
                                    .await;
                                assert_eq!(foreign.unwrap_err().code().unwrap().code(), "42501");
                                let titles =
                                    tx.query("SELECT title FROM {shard}.photos", &[]).await?;
                                assert!(titles.iter().all(|row| row.get::<_, &str>(0) == *own));
                                if round == 3 {
                                    tx.query("SELECT 1/0", &[]).await?;
                                }
                                Ok::<usize, Error>(titles.len())
                            })
                            .await;
                        match count {
                            Ok(count) => assert_eq!(count, round as usize + 1, "{own}"),
                            Err(error) => assert!(
                                round == 3
                                    && error.code().is_some_and(|code| code.code() == "22012"),
                                "{own} {error:?}"
                            ),
                        }
                        // The same for an ORM, which does not know the schema.
                        let orm = router.by_key(0).orm_transaction(async |tx| {
                            tx.execute(&format!("SET LOCAL app.tenant = '{own}'"), &[])
                                .await?;
                            tx.query_one_as::<(i64,)>("SELECT count(*) FROM photos", &[])
                                .await
                        });
                        assert_eq!(orm.await.unwrap().0, round.min(2) + 1, "{own}");
                        let without: i64 =
                            router.by_key(0).query_one(COUNT, &[]).await.unwrap().get(0);
                        assert_eq!(without, 0, "{own}");
                    }
                });
            }
            let all = async {
                while let Some(done) = tenants.join_next().await {
                    done.unwrap()
                }
            };
            tokio::time::timeout(Duration::from_secs(60), all)
                .await
                .unwrap();
        }
    }
}
