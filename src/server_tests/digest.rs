//! Digests are the same if, and only if, the rows are, whatever their types and values are. The
//! oracle is PostgreSQL: two sides have the same rows if the sorted texts of all their values are
//! the same.

use std::collections::BTreeMap;

use crate::mover::Session;
use crate::mover::copy::ShardCopy;
use crate::mover::copy::digest::{Hashing, digest};
use crate::mover::preflight::table::TableShape;

use super::pair::Pair;

/// Columns, their types, and values that are easily confused.
const COLUMNS: [(&str, &str, &[&str]); 23] = [
    ("yes", "boolean", &["NULL", "true", "false"]),
    ("i2", "smallint", &["NULL", "0", "1", "-1", "32767"]),
    ("i4", "integer", &["NULL", "0", "1", "-1", "2147483647"]),
    (
        "i8",
        "bigint",
        &[
            "NULL",
            "0",
            "1",
            "-1",
            "4294967296",
            "-4294967296",
            "-4294967297",
            "9223372036854775807",
        ],
    ),
    (
        "other",
        "bigint",
        &[
            "NULL",
            "0",
            "1",
            "-1",
            "4294967296",
            "-4294967296",
            "-4294967297",
            "9223372036854775807",
        ],
    ),
    (
        "words",
        "text",
        &[
            "NULL",
            "''",
            "'a'",
            "'A'",
            "'a '",
            "'ä'",
            "repeat('x', 9000)",
            "repeat('x', 9001)",
        ],
    ),
    (
        "more",
        "varchar(5)",
        &["NULL", "''", "'a'", "'A'", "'a '", "'NULL'"],
    ),
    ("padded", "char(3)", &["NULL", "''", "'a'", "'A'", "' a'"]),
    (
        "u",
        "uuid",
        &[
            "NULL",
            "'00000000-0000-0000-0000-000000000000'",
            "'00000000-0000-0000-0000-000000000001'",
        ],
    ),
    (
        "f4",
        "real",
        &[
            "NULL",
            "0",
            "'-0'",
            "1",
            "'NaN'",
            "-'NaN'::real",
            "'-Infinity'",
        ],
    ),
    (
        "f8",
        "double precision",
        &[
            "NULL",
            "0",
            "'-0'",
            "1",
            "'NaN'",
            "-'NaN'::double precision",
            "'Infinity'",
        ],
    ),
    (
        "day",
        "date",
        &[
            "NULL",
            "'2000-01-01'",
            "'2000-01-02'",
            "'infinity'",
            "'-infinity'",
        ],
    ),
    (
        "at",
        "timestamp",
        &[
            "NULL",
            "'2000-01-01'",
            "'2000-01-01 01:11:34.967296'",
            "'infinity'",
        ],
    ),
    (
        "z",
        "timestamptz",
        &[
            "NULL",
            "'2000-01-01Z'",
            "'2000-01-01 01:11:34.967296Z'",
            "'-infinity'",
        ],
    ),
    (
        "price",
        "numeric",
        &["NULL", "0", "0.0", "1", "1.0", "1.00", "'NaN'", "1e30"],
    ),
    (
        "doc",
        "jsonb",
        &[
            "NULL",
            "'null'",
            "'1'",
            "'1.0'",
            "'{}'",
            "'[]'",
            "'{\"a\": 1}'",
        ],
    ),
    ("raw", "bytea", &["NULL", "''", "'\\x00'", "'\\x0000'"]),
    (
        "spot",
        "point",
        &[
            "NULL",
            "'(0,0)'",
            "'(-0,0)'",
            "point(-'NaN'::float8, 0)",
            "point('NaN', 0)",
        ],
    ),
    (
        "list",
        "bigint[]",
        &[
            "NULL",
            "'{}'",
            "'{NULL}'",
            "'{0}'",
            "'[0:0]={0}'",
            "'{4294967296}'",
        ],
    ),
    // Equal ones, too: their operator compares lengths.
    (
        "pause",
        "interval",
        &[
            "NULL",
            "'0'",
            "'1 day'",
            "'24 h'",
            "'1 mon'",
            "'30 days'",
            "'-1 mon'",
        ],
    ),
    (
        "pauses",
        "interval[]",
        &["NULL", "'{}'", "'{NULL}'", "'{1 day}'", "'{24 h}'"],
    ),
    // Its OID differs from version to version.
    (
        "who",
        "information_schema.sql_identifier",
        &["NULL", "'a'", "'A'", "''"],
    ),
    ("mood", "{shard}.mood", &["NULL", "'good'", "'bad'"]),
];

/// Tables with all of these columns, without a key and with one; with numbers alone; with nothing
/// but columns that are hashed without a seed; and with more columns than are hashed one around the
/// other.
fn tables() -> String {
    let columns = COLUMNS
        .map(|(name, kind, _)| format!("{name} {kind}"))
        .join(", ");
    let wide = (0..300)
        .map(|at| format!("c{at} bigint"))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "CREATE TYPE {{shard}}.mood AS ENUM ('good', 'bad');
         CREATE TABLE {{shard}}.loose ({columns});
         CREATE TABLE {{shard}}.keyed (id bigint NOT NULL, k text NOT NULL, {columns});
         CREATE TABLE {{shard}}.numbers (a bigint NOT NULL, b bigint NOT NULL, c bigint);
         CREATE TABLE {{shard}}.stamps (at timestamptz, price numeric);
         CREATE TABLE {{shard}}.wide ({wide})"
    )
}

const KEYS: &str =
    "ALTER TABLE {shard}.keyed ADD PRIMARY KEY (id, k); ALTER TABLE {shard}.numbers ADD PRIMARY \
        KEY (b, a);
    ALTER TABLE {shard}.loose REPLICA IDENTITY FULL";

/// The values of a column of these tables. A key has no null.
fn values(table: &TableShape, column: &str) -> Vec<&'static str> {
    let pool: &[&str] = match (table.name.as_str(), column) {
        ("keyed", "id") | ("numbers", "a" | "b") => {
            &["0", "1", "-1", "4294967296", "-4294967297", "7"]
        }
        ("keyed", "k") => &["''", "'a'", "'A'", "'b'"],
        ("numbers" | "wide", _) => COLUMNS[3].2,
        _ => {
            COLUMNS
                .iter()
                .find(|(name, ..)| *name == column)
                .expect("a column")
                .2
        }
    };
    pool.to_vec()
}

type Rows = Vec<Vec<&'static str>>;

/// Rows with different keys.
fn rows(rng: &mut fastrand::Rng, table: &TableShape) -> Rows {
    let mut rows: Rows = Vec::new();
    for _ in 0..rng.usize(0..6) {
        let row = table
            .columns
            .iter()
            .map(|column| *rng.choice(&values(table, &column.name)).expect("a pool"))
            .collect();
        rows.push(row);
    }
    unique(table, rows)
}

/// The rows without those that share their key with another.
fn unique(table: &TableShape, rows: Rows) -> Rows {
    if table.key.is_empty() {
        return rows;
    }
    let by_key: BTreeMap<Vec<&str>, Vec<&'static str>> = rows
        .into_iter()
        .map(|row| (table.key.iter().map(|at| row[*at]).collect(), row))
        .collect();
    by_key.into_values().collect()
}

/// The rows with some things exchanged, replaced, removed or added; or the same ones in another
/// order.
fn alter(rng: &mut fastrand::Rng, table: &TableShape, mut rows: Rows) -> Rows {
    rng.shuffle(&mut rows);
    let width = table.columns.len();
    for _ in 0..rng.usize(0..4) {
        if rows.is_empty() {
            break;
        }
        let (one, other) = (rng.usize(..rows.len()), rng.usize(..rows.len()));
        let (this, that) = (rng.usize(..width), rng.usize(..width));
        match rng.u8(..6) {
            // Two rows exchange a value.
            0 | 1 => {
                let value = rows[one][this];
                rows[one][this] = rows[other][this];
                rows[other][this] = value;
            }
            // A row's values exchange their places.
            2 if values(table, &table.columns[this].name)
                == values(table, &table.columns[that].name) =>
            {
                rows[one].swap(this, that);
            }
            3 => {
                rows[one][this] = rng
                    .choice(values(table, &table.columns[this].name))
                    .expect("a pool")
            }
            4 => drop(rows.swap_remove(one)),
            _ => rows.push(rows[one].clone()),
        }
    }
    unique(table, rows)
}

async fn put(session: &Session, schema: &str, table: &TableShape, rows: &Rows) {
    let mut sql = format!("TRUNCATE {schema}.{}", table.name);
    for row in rows {
        sql += &format!(
            "; INSERT INTO {schema}.{} VALUES ({})",
            table.name,
            row.join(", ")
        );
    }
    session
        .client
        .batch_execute(&sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// The sorted texts of all values.
async fn texts(session: &Session, schema: &str, table: &TableShape) -> Vec<Vec<Option<String>>> {
    let values: Vec<String> = table
        .columns
        .iter()
        .map(|column| format!("{}::text", column.quoted()))
        .collect();
    let sql = format!(
        "SELECT ARRAY[{}] FROM {schema}.{}",
        values.join(", "),
        table.name
    );
    let mut rows: Vec<Vec<Option<String>>> = session
        .client
        .query(&sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    rows.sort();
    rows
}

async fn agree_with_postgres(versions: [u32; 2], cases: usize) {
    let pair = Pair::start(versions).await;
    let work: ShardCopy = pair.shard(7, &tables(), KEYS).await;
    pair.app(1)
        .await
        .batch_execute(&KEYS.replace("{shard}", &work.target_schema))
        .await
        .unwrap();
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut same, mut different) = (0, 0);
    for case in 0..cases {
        let table = rng.choice(&work.tables).expect("a table");
        let ours = rows(&mut rng, table);
        let theirs = alter(&mut rng, table, ours.clone());
        put(&source, &work.source_schema, table, &ours).await;
        put(&target, &work.target_schema, table, &theirs).await;
        let here = texts(&source, &work.source_schema, table).await;
        let there = texts(&target, &work.target_schema, table).await;
        for hashing in [Hashing::Binary, Hashing::Text] {
            let one = digest(&source, &work.source_schema, table, "true", hashing)
                .await
                .unwrap();
            let other = digest(&target, &work.target_schema, table, "true", hashing)
                .await
                .unwrap();
            assert_eq!(
                one == other,
                here == there,
                "case {case} of seed {seed}, {hashing:?}, table {}:\n{ours:?}\n{theirs:?}\n{one}, \
                    {other}",
                table.name
            );
        }
        *if here == there {
            &mut same
        } else {
            &mut different
        } += 1;
    }
    assert!(
        same > cases / 10 && different > cases / 10,
        "{same} the same, {different} different: little to get wrong"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agree_with_postgres_15() {
    agree_with_postgres([15, 15], 600).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agree_with_postgres_18_to_15() {
    agree_with_postgres([18, 15], 600).await;
}

/// Two texts that a collation calls equal are two texts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collations_hide_nothing() {
    let pair = Pair::start([15, 15]).await;
    let tables = "CREATE COLLATION {shard}.any_case (provider = icu, locale = 'und-u-ks-level2', \
            deterministic = false);
        CREATE TABLE {shard}.t (a text COLLATE {shard}.any_case, b varchar COLLATE \
        {shard}.any_case)";
    let work = pair.shard(7, tables, "").await;
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    let table = &work.tables[0];
    for (ours, theirs) in [
        ("('a', 'x')", "('A', 'x')"),
        ("('a', 'x')", "('a', 'X')"),
        ("('a', 'x')", "('a', 'x')"),
    ] {
        let equal: bool = super::pair::one(
            &source.client,
            &format!("SELECT {ours}::text = {theirs}::text COLLATE \"C\""),
        )
        .await;
        let put = async |session: &Session, schema: &str, row: &str| {
            let sql = format!("TRUNCATE {schema}.t; INSERT INTO {schema}.t VALUES {row}");
            session.client.batch_execute(&sql).await.unwrap();
        };
        put(&source, &work.source_schema, ours).await;
        put(&target, &work.target_schema, theirs).await;
        let one = digest(&source, &work.source_schema, table, "true", Hashing::Binary)
            .await
            .unwrap();
        let other = digest(&target, &work.target_schema, table, "true", Hashing::Binary)
            .await
            .unwrap();
        assert_eq!(one == other, equal, "{ours} {theirs}");
    }
}

/// The largest interval of a version that has no infinite ones has the bytes of an infinite one of
/// a version that has them. They are two values, in whatever they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_interval_is_not_infinite() {
    let pair = Pair::start([18, 15]).await;
    let tables = "CREATE DOMAIN {shard}.pause AS interval;
        CREATE TABLE {shard}.a (i interval); CREATE TABLE {shard}.b (id int, i interval[]);
        CREATE TABLE {shard}.c (id int, i {shard}.pause, t text)";
    let work = pair.shard(7, tables, "").await;
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    let largest = "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807";
    for table in &work.tables {
        let put = async |session: &Session, schema: &str, value: &str| {
            let value = if table.name == "b" {
                format!("ARRAY[interval '{value}']")
            } else {
                format!("'{value}'")
            };
            let sql = format!(
                "TRUNCATE {schema}.{0}; INSERT INTO {schema}.{0} (i) VALUES ({value})",
                table.name
            );
            session.client.batch_execute(&sql).await.unwrap();
        };
        put(&target, &work.target_schema, largest).await;
        put(&source, &work.source_schema, "infinity").await;
        for hashing in [Hashing::Binary, Hashing::Text] {
            let one = digest(&source, &work.source_schema, table, "true", hashing)
                .await
                .unwrap();
            let other = digest(&target, &work.target_schema, table, "true", hashing)
                .await
                .unwrap();
            assert_ne!(one, other, "{hashing:?}, table {}", table.name);
        }
    }
}
