//! A second, simple applier of changes, against which the first and the copy are checked. It reads
//! the text of `test_decoding`, uses one statement for each change, has no batches, and every
//! change must hit the row that it is meant for.

use tokio_postgres::Client;

use crate::mover::Session;
use crate::mover::copy::ShardCopy;
use crate::mover::copy::chunk::read_from;
use crate::mover::copy::chunks::{Chunks, Unseen};
use crate::mover::copy::snapshot::widen;
use crate::mover::preflight::table::TableShape;
use crate::pg::{quote_ident, quote_literal};

use super::pair::one;

/// Column names and texts; `None` is null.
type Values = Vec<(String, Option<String>)>;

/// What `test_decoding` writes for a TOAST value that was not changed.
const UNCHANGED: &str = "unchanged-toast-datum";

#[derive(Debug, PartialEq)]
enum Change {
    Insert(Values),
    Update {
        old: Option<Values>,
        new: Values,
        unchanged: Vec<String>,
    },
    Delete(Values),
    Truncate,
}

impl Change {
    /// Removes the values that the target generates by itself.
    fn forget_generated(&mut self, table: &TableShape) {
        let generated = |name: &str| {
            table
                .columns
                .iter()
                .any(|column| column.generated && column.name == name)
        };
        if let Change::Insert(values) | Change::Update { new: values, .. } = self {
            values.retain(|(name, _)| !generated(name));
        }
    }
}

/// How many changes were in the copy already, and how many were not.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) skipped: u64,
    pub(crate) applied: u64,
    pub(crate) read_again: u64,
}

/// Creates the slot that the changes are read from.
pub(crate) async fn make_slot(client: &Client) {
    one::<String>(
        client,
        "SELECT slot_name::text FROM pg_create_logical_replication_slot('trial', 'test_decoding')",
    )
    .await;
}

/// Applies all changes since the slot was made.
pub(crate) async fn apply_all(
    source: &Session,
    target: &Session,
    work: &ShardCopy,
    chunks: &mut std::collections::BTreeMap<String, Chunks>,
) -> Counts {
    let mut counts = Counts::default();
    let near = u64::try_from(
        one::<i64>(&source.client, "SELECT pg_current_xact_id()::text::bigint").await,
    )
    .unwrap();
    let sql =
        "SELECT xid::text::bigint, data FROM pg_logical_slot_get_changes('trial', NULL, NULL)";
    for row in source.client.query(sql, &[]).await.unwrap() {
        let (xid, data): (i64, String) = (row.get(0), row.get(1));
        let xid = widen(u32::try_from(xid).unwrap(), near);
        // A message is what makes a snapshot durable at the source.
        if ["BEGIN", "COMMIT", "message:"]
            .iter()
            .any(|start| data.starts_with(start))
        {
            continue;
        }
        let (names, mut change) = parse(&data);
        for name in names
            .iter()
            .filter(|(schema, _)| *schema == work.source_schema)
            .map(|(_, name)| name)
        {
            let Some(table) = work.table(name) else {
                continue;
            };
            let chunks = chunks.get_mut(name).unwrap();
            change.forget_generated(table);
            apply(
                source,
                target,
                work,
                table,
                chunks,
                &change,
                xid,
                &mut counts,
            )
            .await;
        }
    }
    counts
}

#[allow(clippy::too_many_arguments, reason = "a test's own")]
async fn apply(
    source: &Session,
    target: &Session,
    work: &ShardCopy,
    table: &TableShape,
    chunks: &mut Chunks,
    change: &Change,
    xid: u64,
    counts: &mut Counts,
) {
    let name = format!(
        "{}.{}",
        quote_ident(&work.target_schema),
        quote_ident(&table.name)
    );
    let run = async |sql: String| {
        let hit = target
            .client
            .execute(sql.as_str(), &[])
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        assert_eq!(hit, 1, "{xid}: {sql}");
    };
    let insert = |values: &Values| {
        let columns: Vec<String> = values.iter().map(|(name, _)| quote_ident(name)).collect();
        let literals: Vec<String> = values.iter().map(|(_, text)| literal(text)).collect();
        format!(
            "INSERT INTO {name} ({}) VALUES ({})",
            columns.join(", "),
            literals.join(", ")
        )
    };
    let delete = |key: &[Option<String>]| format!("DELETE FROM {name} WHERE {}", is(table, key));
    match change {
        Change::Insert(values) => {
            if sees(chunks, &key_of(table, values), xid) {
                counts.skipped += 1;
            } else {
                counts.applied += 1;
                run(insert(values)).await;
            }
        }
        Change::Delete(values) => {
            let key = key_of(table, values);
            if sees(chunks, &key, xid) {
                counts.skipped += 1;
            } else {
                counts.applied += 1;
                run(delete(&key)).await;
            }
        }
        Change::Update {
            old,
            new,
            unchanged,
        } => {
            let new_key = key_of(table, new);
            let old_key = old
                .as_ref()
                .map_or_else(|| new_key.clone(), |old| key_of(table, old));
            match (sees(chunks, &old_key, xid), sees(chunks, &new_key, xid)) {
                (true, true) => counts.skipped += 1,
                (false, true) => {
                    counts.applied += 1;
                    run(delete(&old_key)).await;
                }
                (false, false) => {
                    counts.applied += 1;
                    let set: Vec<String> = new
                        .iter()
                        .map(|(name, text)| format!("{} = {}", quote_ident(name), literal(text)))
                        .collect();
                    run(format!(
                        "UPDATE {name} SET {} WHERE {}",
                        set.join(", "),
                        is(table, &old_key)
                    ))
                    .await;
                }
                (true, false) if unchanged.is_empty() => {
                    counts.applied += 1;
                    run(insert(new)).await;
                }
                (true, false) => {
                    counts.read_again += 1;
                    let snapshot =
                        read_from(source, work, &[table], "SET LOCAL lock_timeout = '2s'")
                            .await
                            .unwrap();
                    let found = read_again(source, work, table, &new_key).await;
                    target
                        .client
                        .execute(delete(&new_key).as_str(), &[])
                        .await
                        .unwrap();
                    if let Some(texts) = found {
                        run(format!(
                            "INSERT INTO {name} ({}) VALUES ({})",
                            table.written(),
                            texts.join(", ")
                        ))
                        .await;
                    }
                    chunks.add_reread(new_key, snapshot);
                }
            }
        }
        Change::Truncate => {
            let Some(condition) = unseen(table, chunks, xid) else {
                return counts.skipped += 1;
            };
            counts.applied += 1;
            target
                .client
                .batch_execute(&format!("DELETE FROM {name} WHERE {condition}"))
                .await
                .unwrap();
        }
    }
}

/// The row as literals, as the snapshot that was taken on this session sees it.
async fn read_again(
    source: &Session,
    work: &ShardCopy,
    table: &TableShape,
    key: &[Option<String>],
) -> Option<Vec<String>> {
    let written = table.columns.iter().filter(|column| !column.generated);
    let casts: Vec<String> = written
        .map(|column| format!("{}::text", column.quoted()))
        .collect();
    let from = format!(
        "{}.{}",
        quote_ident(&work.source_schema),
        quote_ident(&table.name)
    );
    let sql = format!(
        "SELECT {} FROM {from} WHERE {}",
        casts.join(", "),
        is(table, key)
    );
    let found = source.client.query(sql.as_str(), &[]).await.unwrap();
    source.client.batch_execute("ROLLBACK").await.unwrap();
    let [row] = found.as_slice() else { return None };
    Some((0..row.len()).map(|at| literal(&row.get(at))).collect())
}

/// The condition for the rows that a transaction's TRUNCATE removes: those of chunks that do not
/// see it.
fn unseen(table: &TableShape, chunks: &Chunks, xid: u64) -> Option<String> {
    match chunks.unseen_ranges(xid) {
        Unseen::None => None,
        Unseen::All => Some("true".to_owned()),
        Unseen::Ranges { ranges, but } => {
            let column = table.first_key_column();
            let ranges: Vec<String> = ranges
                .iter()
                .map(|range| format!("({})", range.condition(column)))
                .collect();
            let but: Vec<String> = but
                .iter()
                .map(|key| format!("AND NOT ({})", is(table, key)))
                .collect();
            Some(format!("({}) {}", ranges.join(" OR "), but.join(" ")))
        }
    }
}

fn sees(chunks: &Chunks, key: &[Option<String>], xid: u64) -> bool {
    let key: Vec<Option<&str>> = key.iter().map(Option::as_deref).collect();
    chunks.sees(key.first().copied().flatten(), &key, xid)
}

fn key_of(table: &TableShape, values: &Values) -> Vec<Option<String>> {
    let value = |name: &str| {
        values
            .iter()
            .find(|(column, _)| column == name)
            .and_then(|(_, text)| text.clone())
    };
    table
        .key_columns()
        .map(|column| value(&column.name))
        .collect()
}

fn is(table: &TableShape, key: &[Option<String>]) -> String {
    let one = table
        .key_columns()
        .zip(key)
        .map(|(column, text)| format!("{} = {}", column.quoted(), literal(text)));
    one.collect::<Vec<_>>().join(" AND ")
}

fn literal(text: &Option<String>) -> String {
    text.as_ref()
        .map_or_else(|| "NULL".to_owned(), |text| quote_literal(text))
}

/// Reads
/// `table shard_0007.t: UPDATE: old-key: id[bigint]:1 new-tuple: id[bigint]:2 v[text]:'it''s'`.
fn parse(data: &str) -> (Vec<(String, String)>, Change) {
    let mut reader = Reader {
        rest: data.strip_prefix("table ").expect("a line is of a table"),
    };
    let mut names = Vec::new();
    loop {
        let schema = reader.name(&['.']);
        names.push((schema, reader.name(&[':', ','])));
        reader.skip(":");
        if !reader.skip(", ") {
            break;
        }
    }
    reader.skip(" ");
    let change = match reader.rest.split_once(':').expect("a line has a verb") {
        ("INSERT", rest) => Change::Insert(Reader { rest }.values().0),
        ("DELETE", rest) => Change::Delete(Reader { rest }.values().0),
        ("UPDATE", rest) => {
            let mut reader = Reader { rest };
            let old = reader.skip(" old-key:").then(|| reader.values().0);
            reader.skip(" new-tuple:");
            let (new, unchanged) = reader.values();
            Change::Update {
                old,
                new,
                unchanged,
            }
        }
        ("TRUNCATE", _) => Change::Truncate,
        (verb, _) => panic!("{verb} in {data}"),
    };
    (names, change)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Reads a name, quoted or not, up to one of these marks. It also takes the mark, unless that
    /// is a comma or a colon.
    fn name(&mut self, until: &[char]) -> String {
        let name = if self.rest.starts_with('"') {
            self.rest = &self.rest[1..];
            self.quoted('"')
        } else {
            let end = self.rest.find(until).expect("a name ends");
            let name = &self.rest[..end];
            self.rest = &self.rest[end..];
            name.to_owned()
        };
        self.skip(".");
        name
    }

    fn quoted(&mut self, mark: char) -> String {
        let mut text = String::new();
        loop {
            let end = self.rest.find(mark).expect("a quote ends");
            text.push_str(&self.rest[..end]);
            self.rest = &self.rest[end + 1..];
            if !self.rest.starts_with(mark) {
                return text;
            }
            text.push(mark);
            self.rest = &self.rest[1..];
        }
    }

    /// Values, and the names of columns with values that are not sent.
    fn values(&mut self) -> (Values, Vec<String>) {
        let (mut values, mut unchanged) = (Vec::new(), Vec::new());
        while self.rest.starts_with(' ') && !self.rest.starts_with(" new-tuple:") {
            self.rest = &self.rest[1..];
            let name = self.name(&['[']);
            let end = self.rest.find("]:").expect("a type ends");
            self.rest = &self.rest[end + 2..];
            if self.skip("'") {
                values.push((name, Some(self.quoted('\''))));
                continue;
            }
            let end = self.rest.find(' ').unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            match word {
                UNCHANGED => unchanged.push(name),
                "null" => values.push((name, None)),
                word => values.push((name, Some(word.to_owned()))),
            }
        }
        (values, unchanged)
    }
}

#[test]
fn lines_of_each_kind_are_decoded() {
    let text = |text: &str| Some(text.to_owned());
    let (table, old) = (
        r#"table s."we""ird": UPDATE:"#,
        r#"old-key: "a b"[bigint]:1"#,
    );
    let new = concat!(
        r#"new-tuple: "a b"[bigint]:-2 v[character varying]:'it''s x' n[text]:null "#,
        "l[text]:unchanged-toast-datum"
    );
    let line = format!("{table} {old} {new}");
    let (names, change) = parse(&line);
    assert_eq!(names, [("s".to_owned(), "we\"ird".to_owned())]);
    let new = vec![
        ("a b".to_owned(), text("-2")),
        ("v".to_owned(), text("it's x")),
        ("n".to_owned(), None),
    ];
    let old = Some(vec![("a b".to_owned(), text("1"))]);
    assert_eq!(
        change,
        Change::Update {
            old,
            new,
            unchanged: vec!["l".to_owned()]
        }
    );
    let (names, change) = parse("table s.a, s.b: TRUNCATE: (no-flags)");
    assert_eq!((names.len(), change), (2, Change::Truncate));
}
