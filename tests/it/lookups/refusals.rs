//! What cannot be looked up is refused when the look-up is made.

use pgshard::lookups::{Definition, Fold, Step, migration};

use super::support::TestCluster;

on_each_version! {
    async fn a_lookup_of_the_wrong_columns_is_refused(version) {
        let cluster = TestCluster::start(version, 1);
        let client = cluster.superuser(0).await;
        client
            .batch_execute(
                "CREATE SCHEMA s;
                CREATE TABLE s.t (id bigint PRIMARY KEY, a text UNIQUE, b text, n numeric \
                UNIQUE, c char(3) UNIQUE,
                    k bigint, \"odd\"\" @name\" text UNIQUE, d date UNIQUE);
                CREATE TABLE s.parts (id bigint NOT NULL, a text, UNIQUE (id, a)) PARTITION BY \
                HASH (id);
                CREATE TABLE s.guarded (id bigint NOT NULL, a text UNIQUE);
                ALTER TABLE s.guarded ENABLE ROW LEVEL SECURITY;",
            )
            .await
            .unwrap();
        let define =
            |table: &str, column: &str, key: &str| Definition::new("x", table, [column], key);
        let refused = [
            (define("u", "a", "id"), "a table that this shard does not have"),
            (define("parts", "a", "id"), "cannot be over"),
            (define("guarded", "a", "id"), "cannot be over"),
            (define("t", "z", "id"), "cannot be over these columns"),
            (define("t", "n", "id"), "cannot be over these columns"),
            (define("t", "c", "id"), "cannot be over these columns"),
            (define("t", "c", "id").fold(Fold::Ascii), "cannot be over these columns"),
            (define("t", "a", "k"), "no key column"),
            (define("t", "a", "z"), "no key column"),
            (define("t", "b", "id"), "wants a unique index"),
        ];
        for (definition, why) in refused {
            let sql = migration(&definition, Step::Create).replace("{shard}", "s");
            let error = client.batch_execute(&sql).await.unwrap_err();
            let message = error.as_db_error().unwrap().message();
            assert!(message.contains(why), "{definition:?}: {message}");
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        // Not every build has ICU.
        let any_case = "CREATE COLLATION s.any_case (provider = icu, locale = 'und-u-ks-level2', \
            deterministic = false); CREATE TABLE s.i (id bigint NOT NULL, i text COLLATE \
            s.any_case UNIQUE)";
        if client.batch_execute(any_case).await.is_ok() {
            let sql = migration(&define("i", "i", "id"), Step::Create).replace("{shard}", "s");
            let error = client.batch_execute(&sql).await.unwrap_err();
            assert!(error.as_db_error().unwrap().message().contains("cannot be over these \
            columns"));
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        for definition in [
            define("t", "a", "id"),
            Definition::new("folded", "t", ["b"], "id").fold(Fold::Ascii),
            Definition::new("odd", "t", ["odd\" @name"], "id"),
            Definition::new("day", "t", ["d"], "id"),
        ] {
            let sql = migration(&definition, Step::Create).replace("{shard}", "s");
            client.batch_execute(&sql).await.unwrap();
        }
        let row = client
            .query_one("SELECT count(*) FILTER (WHERE covered AND state = 'enforcing') FROM \
            s.pgshard_lookup", &[])
            .await
            .unwrap();
        assert_eq!(row.get::<_, i64>(0), 4);
    }
}
