//! SQL that names no shard: `search_path` for one transaction.

use std::time::Duration;

use sea_query::{Expr, ExprTrait, Iden, Order, PostgresQueryBuilder, Query};

use super::by_hand::Shards;

/// The names as an application defines them for sea-query.
#[derive(Iden)]
enum Photos {
    Table,
    Id,
    Title,
}

on_each_version! {
    /// The query builder does not know the shard, but the transaction does; after it the connection
    /// is as before.
    async fn the_path_ends_with_the_transaction(version) {
        let shards = Shards::start(version, 4).await;
        let mut options = shards.options();
        for host in &mut options.hosts {
            host.pool_size = 1;
        }
        let router = pgshard::Router::new(options);
        for key in 0..4_i64 {
            let insert = Query::insert()
                .into_table(Photos::Table)
                .columns([Photos::Id, Photos::Title])
                .values_panic([key.into(), format!("photo {key}").into()])
                .to_string(PostgresQueryBuilder);
            let select = Query::select()
                .column(Photos::Title)
                .from(Photos::Table)
                .and_where(Expr::col(Photos::Id).lte(key))
                .order_by(Photos::Id, Order::Asc)
                .to_string(PostgresQueryBuilder);
            let titles = router.by_key(key).orm_transaction(async |tx| {
                tx.execute(&insert, &[]).await?;
                tx.query(&select, &[]).await
            });
            let titles: Vec<String> = titles.await.unwrap().iter().map(|row| row.get(0)).collect();
            assert_eq!(titles, [format!("photo {key}")]);
        }
        let path = "SELECT current_setting('search_path')";
        let before: String = router.by_key(0).query_one(path, &[]).await.unwrap().get(0);
        assert!(!before.contains("shard_"), "{before}");
        let failed = router
            .by_key(0)
            .orm_transaction(async |tx| tx.query("SELECT * FROM nothing", &[]).await);
        assert_eq!(failed.await.unwrap_err().code().unwrap().code(), "42P01");
        let after: String = router.by_key(0).query_one(path, &[]).await.unwrap().get(0);
        assert_eq!(after, before);
        let error = router
            .by_key(0)
            .query("SELECT * FROM photos", &[])
            .await
            .unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42P01");
    }

    /// A table that exists only in `public` belongs to no shard, unless `public` is in the
    /// transaction's `search_path`.
    async fn names_do_not_fall_through(version) {
        let shards = Shards::start(version, 2).await;
        shards
            .cluster
            .superuser(0)
            .await
            .batch_execute(
                "CREATE TABLE public.settings (n int); GRANT SELECT ON public.settings \
                TO PUBLIC",
            )
            .await
            .unwrap();
        let router = shards.router();
        let sql = "SELECT n FROM settings";
        let error = router
            .by_key(0)
            .orm_transaction(async |tx| tx.query(sql, &[]).await)
            .await
            .unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42P01");
        let both = router
            .by_key(0)
            .build_transaction()
            .search_path(&["public"]);
        assert!(
            both.run(async |tx| tx.query(sql, &[]).await)
                .await
                .unwrap()
                .is_empty()
        );
    }

    /// The same prepared text in shards with different types, and through a move.
    async fn through_a_move(version) {
        let shards = Shards::start(version, 4).await;
        let mut options = shards.options();
        for host in &mut options.hosts {
            host.pool_size = 1;
        }
        let router = pgshard::Router::new(options);
        let insert = "INSERT INTO photos (id, title) VALUES ($1, $2) RETURNING kind";
        let write = async |key: i64, id: i64| {
            router
                .by_key(key)
                .orm_transaction(async |tx| tx.query_one(insert, &[&id, &"x"]).await.map(drop))
                .await
        };
        for round in 0..3 {
            write(0, round).await.unwrap();
            write(1, round).await.unwrap();
        }
        let moving = shards.prepare(1, 0).await;
        moving.fence(Duration::from_secs(60)).await;
        let waiting = write(1, 10);
        let finishing = async {
            moving.decide().await;
            moving.open().await;
        };
        let (written, ()) = tokio::join!(waiting, finishing);
        written.unwrap();
        assert_eq!(shards.titles(1, 1).await.len(), 4);
    }
}
