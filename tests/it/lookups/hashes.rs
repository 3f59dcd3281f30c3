//! The hash of a value is the same in Rust and in the shards' trigger.

use pgshard::lookups::{Definition, Fold, Hash, Value, Values};
use tokio_postgres::Client;
use uuid::Uuid;

use super::support::TestCluster;

/// Texts that programs tend to treat differently.
const TEXTS: [&str; 16] = [
    "",
    " ",
    "a ",
    "A",
    "İIıi",
    "ß",
    "ẞ",
    "ǅ",
    "Σς",
    "é",
    "e\u{301}",
    "\u{feff}",
    "日本",
    "🙂",
    "\t\n\\\"'",
    "K",
];

fn text(random: &mut fastrand::Rng) -> String {
    let kind = random.u8(0..4);
    let length = match kind {
        0 => 1,
        1 => 3,
        2 => random.usize(0..40),
        _ => random.usize(0..300),
    };
    let part = || match kind {
        0 | 1 => TEXTS[random.usize(..TEXTS.len())].to_owned(),
        2 => random.char('\u{1}'..).to_string(),
        _ => random.char(' '..='~').to_string(),
    };
    std::iter::repeat_with(part).take(length).collect()
}

/// Compares the hash of each of the values, in one statement.
async fn compare(client: &Client, definition: &Definition, table: &str, values: &[Values]) {
    let sql = format!(
        "SELECT {} FROM {table} t ORDER BY n",
        definition.hash_sql("t")
    );
    let rows = client.query(&sql, &[]).await.unwrap();
    assert_eq!(rows.len(), values.len());
    for (row, values) in rows.iter().zip(values) {
        let hash: Vec<u8> = row.get(0);
        assert_eq!(
            hash,
            Hash::of(values, definition.fold).as_bytes(),
            "{values:?}"
        );
    }
}

on_each_version! {
    /// Thousands of values at random, with the collations and languages that the server has.
    async fn rust_and_postgresql_agree_on_the_hash(version) {
        let cluster = TestCluster::start(version, 1);
        let client = cluster.superuser(0).await;
        let mut random = fastrand::Rng::with_seed(fastrand::u64(..));
        println!("seed {}", random.get_seed());
        // The database's own, "C", and Turkish (İ and ı) where this build has it.
        let known = client
            .query_one(
                "SELECT array_agg(format('COLLATE %I', collname) ORDER BY collname) FROM \
                pg_collation
                WHERE collname IN ('C', 'tr-x-icu', 'und-x-icu', 'tr_TR.utf8', 'pg_c_utf8', \
                'pg_unicode_fast')",
                &[],
            )
            .await
            .unwrap();
        let mut collations: Vec<String> = known.get(0);
        collations.push(String::new());
        assert!(collations.len() > 1);
        let mut compared = 0;
        for (at, collation) in collations.iter().enumerate() {
            let table = format!("texts_{at}");
            client
                .batch_execute(&format!(
                    "CREATE TABLE {table} (n int PRIMARY KEY, a text {collation}, b varchar \
                    {collation}, i bigint, \
                        s smallint, u uuid, d date, e date)"
                ))
                .await
                .unwrap();
            let columns = ["a", "b", "i", "s", "u", "d", "e"];
            let mut all = Vec::new();
            for n in 0..500_i32 {
                let (a, b) = (text(&mut random), text(&mut random));
                let (i, s) = (random.i64(..) >> random.u8(0..63), random.i16(..));
                let u = Uuid::from_u128(random.u128(..));
                let d = jiff::civil::date(2000, 1, 1)
                    .checked_add(jiff::Span::new().days(random.i64(-900_000..2_900_000)))
                    .unwrap();
                // All that PostgreSQL has: from 4714 BC to the year 5874897.
                let e = match random.u8(..8) {
                    0 => i32::MAX,
                    1 => random.i32(-2_451_545..2_145_031_949),
                    _ => random.i32(-1_000_000..1_000_000),
                };
                client
                    .execute(
                        &format!("INSERT INTO {table} VALUES ($1, $2, $3, $4, $5, $6, $7, CASE \
                            $8::integer WHEN 2147483647 THEN date 'infinity' ELSE date \
                            '2000-01-01' + $8 END)"),
                        &[&n, &a, &b, &i, &s, &u, &d, &e],
                    )
                    .await
                    .unwrap();
                all.push([
                    Value::from(a),
                    Value::from(b),
                    Value::from(i),
                    Value::from(s),
                    Value::from(u),
                    Value::from(d),
                    Value::Day(e),
                ]);
            }
            // Settings that change how values are written elsewhere.
            client
                .batch_execute("SET datestyle = 'SQL, DMY'; SET bytea_output = 'escape'")
                .await
                .unwrap();
            for fold in Fold::ALL {
                for (at, column) in columns.iter().enumerate() {
                    let definition = Definition::new("one", &table, [*column], "n").fold(fold);
                    let values: Vec<Values> =
                        all.iter().map(|row| row[at].clone().into()).collect();
                    compare(&client, &definition, &table, &values).await;
                    compared += values.len();
                }
                let definition = Definition::new("all", &table, columns, "n").fold(fold);
                let values: Vec<Values> = all.iter().map(|row| row.clone().into()).collect();
                compare(&client, &definition, &table, &values).await;
                compared += values.len();
            }
        }
        assert!(compared >= 8_000 * collations.len());
        // A NULL in any column: no entry.
        let pair = Definition::new("pair", "texts_0", ["a", "i"], "n");
        let sql = format!(
            "SELECT {} FROM (VALUES ('a', NULL::bigint), (NULL, 1), (NULL, NULL)) t(a, i)",
            pair.hash_sql("t")
        );
        for row in client.query(&sql, &[]).await.unwrap() {
            assert_eq!(row.get::<_, Option<Vec<u8>>>(0), None);
        }
    }
}
