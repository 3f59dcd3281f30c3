//! Rows are written only with a claim, and a value belongs to one key.

use std::time::{Duration, Instant};

use pgshard::router::{Error, LookupProblem, Transaction};

use super::{INSERT, both, register, rows, world};

on_each_version! {
    async fn a_value_belongs_to_one_key(version) {
        let world = world(&[version, version], 8).await;
        let router = world.router().await;
        register(&router, 1, "ada@example.com").await.unwrap();
        let taken = register(&router, 2, "ada@example.com").await.unwrap_err();
        assert!(
            matches!(&taken, Error::Taken { lookup, key } if lookup == "emails" && key == "1"),
            "{taken}"
        );
        assert!(taken.is_unique_violation() && taken.is_application() && !taken.may_have_run());
        // Another case is another value without folding.
        register(&router, 2, "Ada@example.com").await.unwrap();
        // The row's own key may claim the value again, as an update of all columns does.
        let update = "UPDATE {shard}.users SET email = $2, name = 'Ada' WHERE id = $1";
        let email = "ada@example.com";
        let updated = router.claiming(1_i64, [("emails", email)]).unwrap()
            .execute(update, &both(&1, &email)).await.unwrap();
        assert_eq!(updated, 1);
        // A row that gives the value up makes it free, without any other statement.
        router.by_key(1).execute("UPDATE {shard}.users SET email = NULL", &[]).await.unwrap();
        register(&router, 3, email).await.unwrap();
        router.by_key(3).execute("DELETE FROM {shard}.users WHERE id = 3", &[]).await.unwrap();
        register(&router, 4, email).await.unwrap();
        let expected = [(2, "Ada@example.com".to_owned()), (4, email.to_owned())];
        assert_eq!(rows(&world).await, expected);
    }

    async fn a_row_without_a_claim_is_refused(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        let plain = router.by_key(1).execute(INSERT, &both(&1, &"a")).await.unwrap_err();
        assert_eq!(plain.code().unwrap().code(), "SH003", "{plain}");
        // NULL is no value.
        router.by_key(1).execute(INSERT, &both(&1, &Option::<&str>::None)).await.unwrap();
        // A claim is for its own value, its own key, and its own transaction.
        let claimed = || router.claiming(5_i64, [("emails", "b")]).unwrap();
        let other = claimed().execute(INSERT, &both(&5, &"c")).await.unwrap_err();
        assert_eq!(other.code().unwrap().code(), "SH003", "{other}");
        let other = claimed().execute(INSERT, &both(&9, &"b")).await.unwrap_err();
        assert_eq!(other.code().unwrap().code(), "SH003", "{other}");
        claimed().transaction(async |_| Ok::<_, Error>(())).await.unwrap();
        let later = router.by_key(5).execute(INSERT, &both(&5, &"b")).await.unwrap_err();
        assert_eq!(later.code().unwrap().code(), "SH003", "{later}");
        // A row that has its value keeps it without a claim, and may not change its key.
        claimed().execute(INSERT, &both(&5, &"b")).await.unwrap();
        let touch = "UPDATE {shard}.users SET email = email, name = 'x' WHERE id = 5";
        router.by_key(5).execute(touch, &[]).await.unwrap();
        let rekey = "UPDATE {shard}.users SET id = 13 WHERE id = 5";
        let moved = router.by_key(5).execute(rekey, &[]).await.unwrap_err();
        assert_eq!(moved.code().unwrap().code(), "SH003", "{moved}");
        assert_eq!(rows(&world).await, [(5, "b".to_owned())]);
    }

    /// A transaction that is rolled back holds nothing, and neither does one that never begins.
    async fn a_claim_without_a_row_is_no_obstacle(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        let given_up = router.claiming(1_i64, [("emails", "a")]).unwrap()
            .transaction(async |tx: Transaction| {
                tx.execute(INSERT, &both(&1, &"a")).await?;
                Err::<(), Error>(Error::Closed)
            })
            .await;
        assert!(matches!(given_up, Err(Error::Closed)));
        // Its claim is not spent, so the next one waits until it is two seconds old.
        let began = Instant::now();
        register(&router, 2, "a").await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
        assert_eq!(rows(&world).await, [(2, "a".to_owned())]);
    }

    /// The holder of a claim sleeps until another has the value, and then begins its transaction:
    /// it may not write the row.
    async fn a_sleeper_does_not_write_what_another_has(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        let asleep = router.claiming(1_i64, [("emails", "a")]).unwrap()
            .transaction(async |tx: Transaction| {
                // The transaction is open, with its claim used: another claimer waits for half a
                // second and gives up.
                let busy = register(&router, 2, "a").await.unwrap_err();
                let of_key = matches!(&busy, Error::Busy { key, shard, .. }
                    if key.as_deref() == Some("1") && shard.get() == 1);
                assert!(of_key && busy.is_retryable(), "{busy}");
                tx.execute(INSERT, &both(&1, &"a")).await
            })
            .await;
        assert_eq!(asleep.unwrap(), 1);
        let client = world.servers.app(0).await;
        // The claim of a process that sleeps: an entry, and no row.
        let claims = "UPDATE shard_0000.pgshard_claim SET outcome = 'void'";
        for shard in 0..4 {
            client.batch_execute(&claims.replace("0000", &format!("{shard:04}"))).await.unwrap();
        }
        router.by_key(1).execute("DELETE FROM {shard}.users", &[]).await.unwrap();
        register(&router, 3, "a").await.unwrap();
        assert_eq!(rows(&world).await, [(3, "a".to_owned())]);
    }

    /// Many concurrent calls for few values: one row for each value, and nothing but `Taken` and
    /// `Busy`.
    async fn of_many_calls_one_gets_the_value(version) {
        let world = world(&[version, version], 8).await;
        let router = world.router().await;
        for round in 0..5 {
            let email = format!("round{round}@example.com");
            let calls = (0..24_i64).map(|n| {
                let (router, email) = (router.clone(), email.clone());
                tokio::spawn(async move { register(&router, round * 100 + n, &email).await })
            });
            let mut written = 0;
            for call in calls.collect::<Vec<_>>() {
                match call.await.unwrap() {
                    Ok(rows) => written += rows,
                    Err(Error::Taken { .. } | Error::Busy { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            assert_eq!(written, 1);
        }
        let rows = rows(&world).await;
        assert_eq!(rows.len(), 5, "{rows:?}");
    }

    /// Every connection of the pool is in a transaction that waits for a claim.
    async fn a_full_pool_does_not_keep_claims_waiting(version) {
        let world = world(&[version], 4).await;
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let config = config.replace("[hosts.db1]", "[hosts.db1]\npool_size = 1");
        world.write("pgshard.toml", &config);
        let router = world.router().await;
        let claimed = router.by_key(1).transaction(async |tx: Transaction| {
            tx.execute("SELECT 1", &[]).await?;
            // On connections of its own; the row itself would need another of the pool's.
            let none = router.claiming(2_i64, [("emails", "a")])?;
            tokio::time::timeout(Duration::from_secs(1), none.execute(INSERT, &both(&2, &"a")))
                .await
                .map_err(|_| Error::Closed)
        });
        assert!(matches!(claimed.await, Err(Error::Closed)));
        let client = world.servers.app(0).await;
        let mut entries = 0;
        for shard in 0..4 {
            let sql = format!("SELECT count(*) FROM shard_{shard:04}.pgshard_entry");
            entries += client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0);
        }
        assert_eq!(entries, 1);
    }

    /// What a sleeper may still use, or a commit in doubt that is made again, is kept for a day.
    async fn claims_of_yesterday_are_swept(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        let client = world.servers.app(0).await;
        for id in 0..40_i64 {
            register(&router, id, &format!("{id}@example.com")).await.unwrap();
        }
        for shard in 0..4 {
            let old = format!(
                "UPDATE shard_{shard:04}.pgshard_claim SET at = at - CASE WHEN key::int < 32 THEN \
                 interval '24 hours' ELSE interval '23 hours' END"
            );
            client.batch_execute(&old).await.unwrap();
            // More than a statement reads.
            let many = format!(
                "INSERT INTO shard_{shard:04}.pgshard_claim SELECT 'emails', \
                 sha256(n::text::bytea), gen_random_uuid(), n::text, 'void', '1', \
                 now() - interval '1 hour' * (n % 48) FROM generate_series(1, 1200) AS n"
            );
            client.batch_execute(&many).await.unwrap();
        }
        let swept = world.run(&["lookups", "sweep"]).await.ended(0).last();
        assert_eq!(swept["swept"]["emails"], 32 + 4 * 600);
        let swept = world.run(&["lookups", "sweep"]).await.ended(0).last();
        assert_eq!(swept["swept"]["emails"], 0);
        let mut left = 0;
        for shard in 0..4 {
            let sql = format!("SELECT count(*) FROM shard_{shard:04}.pgshard_claim");
            left += client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0);
        }
        assert_eq!(left, 8 + 4 * 600);
        // A spent claim that is gone frees nothing: the row is the truth.
        let taken = register(&router, 500, "1@example.com").await.unwrap_err();
        assert!(matches!(&taken, Error::Taken { key, .. } if key == "1"), "{taken}");
    }

    async fn find_answers_only_what_is_complete(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        register(&router, 1, "a").await.unwrap();
        let refused = router.lookup("emails").unwrap().find::<i64>("a").await.unwrap_err();
        assert!(
            matches!(refused, Error::Lookup { problem: LookupProblem::NotComplete, .. }),
            "{refused}"
        );
        let types = router.lookup("emails").unwrap().find::<i64>(5_i64).await.unwrap_err();
        assert!(
            matches!(types, Error::Lookup { problem: LookupProblem::OtherTypes { .. }, .. }),
            "{types}"
        );
        let unknown = router.lookup("names").unwrap_err();
        assert!(
            matches!(unknown, Error::Lookup { problem: LookupProblem::Undefined, .. }),
            "{unknown}"
        );
        let twice = router.claiming(1_i64, [("emails", "a"), ("emails", "a")]).unwrap_err();
        assert!(
            matches!(twice, Error::Lookup { problem: LookupProblem::Twice, .. }),
            "{twice}"
        );
    }
}
