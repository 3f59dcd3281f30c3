//! A random schema from a seed: each table depends on its number only, so that leaving some out
//! does not change the others.

use std::collections::BTreeSet;
use std::fmt::Write;

use fastrand::Rng;
use pgshard::pg::quote_ident;

use super::values::{Kind, TYPES};

/// How a column gets its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Plain,
    /// From a default; statements give a value sometimes.
    Default,
    /// GENERATED ALWAYS AS IDENTITY.
    Always,
    /// Computed from the others.
    Generated,
    /// It is a key of another table, or of this one: that table and column.
    Reference(String, String),
}

#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Quoted.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) fill: Fill,
    pub(crate) nullable: bool,
}

/// How the rows of a table are identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Primary,
    Composite,
    /// A deferrable key; with REPLICA IDENTITY FULL, or that is lent.
    Deferrable,
    /// A unique index, for REPLICA IDENTITY USING INDEX, or to be lent as that.
    Index,
    /// No key; with REPLICA IDENTITY FULL, or that is lent.
    Full,
    /// A primary key, with REPLICA IDENTITY FULL.
    PrimaryAndFull,
    /// A primary key, with REPLICA IDENTITY USING INDEX of another.
    PrimaryAndIndex,
    NextId,
    Always,
    ByDefault,
    Serial,
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Quoted.
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    /// The columns of the key, if it has one, by number.
    pub(crate) key: Vec<usize>,
    /// Whether ON CONFLICT can name the key.
    pub(crate) arbiter: bool,
    pub(crate) deferrable: bool,
    /// How many different values keys have.
    pub(crate) values: u32,
    pub(crate) rows: u32,
    /// The partitions that hold rows, quoted; empty for a plain table.
    pub(crate) partitions: Vec<String>,
    create: String,
    after: String,
}

impl Table {
    /// The statements that create it again, if it is a table of its own.
    pub(crate) fn create_again(&self) -> String {
        format!(
            "{}{}",
            self.create,
            self.after
                .replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
        )
    }

    pub(crate) fn qualified(&self) -> String {
        format!("{{shard}}.{}", self.name)
    }

    /// Columns that a statement can name a value for.
    pub(crate) fn writable(&self) -> impl Iterator<Item = (usize, &Column)> {
        self.columns
            .iter()
            .enumerate()
            .filter(|(_, c)| !matches!(c.fill, Fill::Generated | Fill::Always))
    }
}

pub(crate) struct Schema {
    pub(crate) tables: Vec<Table>,
    /// Sequences that statements call by name.
    pub(crate) sequences: Vec<String>,
    /// Tables that a crash empties.
    unlogged: Vec<String>,
}

const SEQUENCES: &str = "
    CREATE SEQUENCE {shard}.plain START 1000 INCREMENT 7;
    CREATE SEQUENCE {shard}.cached CACHE 10;
    CREATE SEQUENCE {shard}.round MINVALUE 1 MAXVALUE 50 CYCLE;
    CREATE SEQUENCE {shard}.\"Wide round\" MINVALUE 1 MAXVALUE 100000 START 99900 CYCLE;
    CREATE SEQUENCE {shard}.never_used START 42;
";

/// Sequences that end soon.
const SHORT: &str = "
    CREATE SEQUENCE {shard}.down AS smallint INCREMENT -1 MAXVALUE 32000 MINVALUE 1 START 12000;
    CREATE SEQUENCE {shard}.small AS smallint START 23000;
";

/// What a schema can have in addition to what it always has; `--without` takes these names.
pub(crate) const FEATURES: [&str; 8] = [
    "always",
    "deferrable",
    "identity-full",
    "composites",
    "short",
    "generated",
    "partitions",
    "unlogged",
];

impl Schema {
    /// The tables with these numbers, of a schema with a number of tables that depends on the seed.
    pub(crate) fn generate(
        seed: u64,
        only: Option<&[usize]>,
        without: &BTreeSet<String>,
    ) -> Schema {
        let mut rng = Rng::with_seed(seed);
        let count = match rng.u8(0..20) {
            0 => rng.usize(60..151),
            1..4 => rng.usize(10..30),
            _ => rng.usize(2..9),
        };
        let wanted = |number: &usize| only.is_none_or(|only| only.contains(number));
        let mut tables: Vec<Table> = Vec::new();
        for number in (0..count).filter(wanted) {
            let rng = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number as u64 + 1));
            let (sql, after) = (String::new(), String::new());
            let maker = Maker {
                rng,
                number,
                many: count > 30,
                without,
                sql,
                after,
            };
            let table = maker.make(&tables);
            tables.push(table);
        }
        let mut sequences: Vec<String> = [
            "plain",
            "cached",
            "round",
            "\"Wide round\"",
            "down",
            "small",
        ]
        .map(str::to_owned)
        .into();
        if without.contains("short") {
            sequences.truncate(4);
        }
        // With a generator of its own, so that other tables do not change.
        let mut rng = Rng::with_seed(seed.wrapping_mul(31));
        let unlogged = tables.iter().filter(|table| {
            let (reference, own) = (
                format!("REFERENCES {{shard}}.{} ", table.name),
                format!("ALTER TABLE {{shard}}.{} ", table.name),
            );
            let mut statements = tables.iter().flat_map(|other| other.after.lines());
            let is_referred_to =
                statements.any(|one| one.contains(&reference) && !one.starts_with(&own));
            rng.u8(0..6) == 0
                && table.partitions.is_empty()
                && !is_referred_to
                && !without.contains("unlogged")
        });
        let unlogged = unlogged.map(|table| table.name.clone()).collect();
        Schema {
            tables,
            sequences,
            unlogged,
        }
    }

    /// One of its tables, with its sequences: what statements are made for.
    pub(crate) fn of_one(table: &Table, all: &Schema) -> Schema {
        Schema {
            tables: vec![table.clone()],
            sequences: all.sequences.clone(),
            unlogged: Vec::new(),
        }
    }

    /// The schema as a shard migration.
    pub(crate) fn sql(&self) -> String {
        let mut sql = format!("{TYPES}{SEQUENCES}");
        if self.sequences.iter().any(|name| name == "small") {
            sql += SHORT;
        }
        sql += "CREATE TABLE {shard}.txlog (n bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT \
            clock_timestamp());\n";
        // For a statement that was prepared long ago and reads it.
        sql += "CREATE TABLE {shard}.moods (m {shard}.mood PRIMARY KEY); INSERT INTO {shard}.moods \
            VALUES ('sad'), \
                ('ok');\n";
        sql += "CREATE TABLE {shard}.trail (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
            what text, old text);\n";
        sql += "CREATE FUNCTION {shard}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO {shard}.trail (what, old) VALUES (TG_TABLE_NAME || ' ' || TG_OP, \
            left(OLD::text, 100));
            RETURN NULL; END $$;\n";
        self.tables.iter().for_each(|table| sql += &table.create);
        self.tables.iter().for_each(|table| sql += &table.after);
        self.unlogged
            .iter()
            .for_each(|name| writeln!(sql, "ALTER TABLE {{shard}}.{name} SET UNLOGGED;").unwrap());
        sql
    }
}

/// How a table is partitioned: the key, the statements that create the partitions of `{table}`, and
/// those that hold rows.
struct Partitioned {
    by: String,
    made: String,
    leaves: Vec<String>,
}

struct Maker<'a> {
    rng: Rng,
    without: &'a BTreeSet<String>,
    number: usize,
    /// Whether there are many tables: then each is small.
    many: bool,
    sql: String,
    after: String,
}

impl Maker<'_> {
    fn has(&self, feature: &str) -> bool {
        debug_assert!(FEATURES.contains(&feature), "{feature} is in the list");
        !self.without.contains(feature)
    }

    fn make(mut self, before: &[Table]) -> Table {
        let plain_name = match self.rng.u8(0..6) {
            0 => format!("T {}", self.number),
            1 => format!("Ödd \"t{}\"", self.number),
            2 => format!("select{}", self.number),
            3 => format!("t{}_{}", self.number, "long".repeat(14))
                .chars()
                .take(63)
                .collect(),
            _ => format!("t{}", self.number),
        };
        let name = quote_ident(&plain_name);
        let key_kind = self.key_kind();
        let kind = match key_kind {
            Key::NextId | Key::Always | Key::ByDefault => Kind::Bigint,
            Key::Serial => Kind::Integer,
            Key::Deferrable => [Kind::Integer, Kind::Bigint, Kind::Text][self.rng.usize(0..3)],
            _ => Kind::KEYS[self.rng.usize(0..Kind::KEYS.len())],
        };
        let column = |name: &str, kind: Kind, fill: Fill| Column {
            name: quote_ident(name),
            kind,
            fill,
            nullable: true,
        };
        let mut columns = Vec::new();
        let mut parts = Vec::new();
        // It comes before the key, so that the key's number is not its position.
        if self.rng.bool() {
            columns.push(column("gone", Kind::Integer, Fill::Plain));
            parts.push("gone integer".to_owned());
            writeln!(self.after, "ALTER TABLE {{shard}}.{name} DROP COLUMN gone;").unwrap();
        }
        let key_name = ["id", "Key \"1\"", "k"][self.rng.usize(0..3)];
        let quoted_key = quote_ident(key_name);
        let key_at = columns.len();
        let (clause, fill) = match key_kind {
            Key::NextId => ("DEFAULT {shard}.next_id()", Fill::Default),
            Key::Always => ("GENERATED ALWAYS AS IDENTITY", Fill::Always),
            Key::ByDefault => (
                "GENERATED BY DEFAULT AS IDENTITY (INCREMENT BY 3)",
                Fill::Default,
            ),
            _ => ("NOT NULL", Fill::Plain),
        };
        let sql_type = if key_kind == Key::Serial {
            "serial"
        } else {
            kind.sql()
        };
        let clause = if key_kind == Key::Full { "" } else { clause };
        let fill = if key_kind == Key::Serial {
            Fill::Default
        } else {
            fill
        };
        parts.push(format!("{quoted_key} {sql_type} {clause}"));
        columns.push(Column {
            nullable: key_kind == Key::Full,
            ..column(key_name, kind, fill)
        });
        let mut key = vec![key_at];
        if matches!(key_kind, Key::Composite | Key::Index) && self.rng.bool() {
            let second =
                [Kind::Integer, Kind::TextC, Kind::Uuid, Kind::Double][self.rng.usize(0..4)];
            // The key has its columns in another order than the table.
            key.insert(self.rng.usize(0..2), columns.len());
            parts.push(format!("second {} NOT NULL", second.sql()));
            columns.push(Column {
                nullable: false,
                ..column("second", second, Fill::Plain)
            });
        }
        if key_kind == Key::PrimaryAndIndex {
            let kind = [Kind::Integer, Kind::TextC, Kind::Uuid][self.rng.usize(0..3)];
            parts.push(format!("named {} NOT NULL", kind.sql()));
            columns.push(Column {
                nullable: false,
                ..column("named", kind, Fill::Plain)
            });
        }
        let wide = if self.many {
            self.rng.usize(1..4)
        } else {
            self.rng.usize(2..12)
        };
        let start = self.rng.usize(0..Kind::ALL.len());
        for at in 0..wide {
            let kind = match Kind::ALL[(start + at * 7) % Kind::ALL.len()] {
                Kind::Address | Kind::Addresses if !self.has("composites") => Kind::Text,
                kind => kind,
            };
            let name = match self.rng.u8(0..10) {
                0 => format!("Spalte {at}"),
                1 => format!("order\"{at}"),
                _ => format!("c{at}"),
            };
            let default = self.rng.u8(0..5) == 0;
            let value = super::values::literal(&kind.value(&mut self.rng));
            // A default of NULL counts as none.
            let clause = if default {
                format!(" DEFAULT {value}")
            } else {
                String::new()
            };
            parts.push(format!("{} {}{clause}", quote_ident(&name), kind.sql()));
            if kind == Kind::External {
                let name = quote_ident(&name);
                writeln!(
                    self.after,
                    "ALTER TABLE {{shard}}.{} ALTER COLUMN {name} SET STORAGE EXTERNAL;",
                    quote_ident(&plain_name)
                )
                .unwrap();
            }
            columns.push(column(
                &name,
                kind,
                if default { Fill::Default } else { Fill::Plain },
            ));
        }
        self.specials(
            &quote_ident(&plain_name),
            &quoted_key,
            kind,
            &key_kind,
            before,
            &mut columns,
            &mut parts,
        );
        let list = key
            .iter()
            .map(|at| columns[*at].name.clone())
            .collect::<Vec<_>>()
            .join(", ");
        let primary = match key_kind {
            Key::Full => None,
            Key::Index => None,
            Key::Deferrable => Some(format!(
                "PRIMARY KEY ({list}) DEFERRABLE INITIALLY {}",
                ["DEFERRED", "IMMEDIATE"][self.rng.usize(0..2)]
            )),
            _ => Some(format!("PRIMARY KEY ({list})")),
        };
        parts.extend(primary);
        let storage = if self.rng.u8(0..4) == 0 {
            " WITH (fillfactor = 60)"
        } else {
            ""
        };
        let partitioned = self.partitioned(&columns, &key, key_kind);
        let (by, made) = match &partitioned {
            Some(Partitioned { by, made, .. }) => (format!(" PARTITION BY {by}"), made.as_str()),
            None => (storage.to_owned(), ""),
        };
        writeln!(
            self.sql,
            "CREATE TABLE {{shard}}.{name} ({}){by};",
            parts.join(", ")
        )
        .unwrap();
        self.sql += &made.replace("{table}", &name);
        match key_kind {
            Key::Index | Key::PrimaryAndIndex => {
                let unique = quote_ident(&format!("Uq {}", self.number));
                let list = if key_kind == Key::Index {
                    list.as_str()
                } else {
                    "named"
                };
                writeln!(
                    self.sql,
                    "CREATE UNIQUE INDEX {unique} ON {{shard}}.{name} ({list});"
                )
                .unwrap();
                if key_kind == Key::PrimaryAndIndex || self.rng.bool() {
                    writeln!(
                        self.sql,
                        "ALTER TABLE {{shard}}.{name} REPLICA IDENTITY USING INDEX {unique};"
                    )
                    .unwrap();
                }
            }
            Key::Full | Key::Deferrable if self.rng.bool() => {}
            Key::Full | Key::Deferrable | Key::PrimaryAndFull => {
                writeln!(
                    self.sql,
                    "ALTER TABLE {{shard}}.{name} REPLICA IDENTITY FULL;"
                )
                .unwrap();
            }
            _ => {}
        }
        columns.retain(|column| column.name != "\"gone\"");
        let shift = usize::from(key_at > 0);
        let key: Vec<usize> = key.into_iter().map(|at| at - shift).collect();
        let values = if self.many {
            40
        } else {
            [30, 150, 1000][self.rng.usize(0..3)]
        };
        let rows = if self.many {
            self.rng.u32(0..20)
        } else {
            [0, 20, 100, 400][self.rng.usize(0..4)]
        };
        Table {
            name,
            arbiter: !matches!(key_kind, Key::Full | Key::Deferrable),
            deferrable: key_kind == Key::Deferrable,
            key: if key_kind == Key::Full {
                Vec::new()
            } else {
                key
            },
            columns,
            values,
            rows,
            partitions: partitioned
                .map(|partitioned| partitioned.leaves)
                .unwrap_or_default(),
            create: self.sql,
            after: self.after,
        }
    }

    /// Partitions every fourth table by a column of its key, if nothing but the key is unique. The
    /// column's numbers are small, so that rows move from one partition to another.
    fn partitioned(
        &mut self,
        columns: &[Column],
        key: &[usize],
        key_kind: Key,
    ) -> Option<Partitioned> {
        // With a generator of its own, so that tables without partitions do not change.
        let mut rng = Rng::with_seed(self.rng.clone().u64(..));
        let alone = columns
            .iter()
            .all(|column| !["\"position\"", "\"during\""].contains(&column.name.as_str()));
        let plain = |name: &String| {
            !columns
                .iter()
                .any(|column| column.name == *name && column.nullable)
        };
        if !self.has("partitions")
            || !alone
            || matches!(key_kind, Key::Deferrable | Key::PrimaryAndIndex)
            || rng.u8(0..4) > 0
        {
            return None;
        }
        let column = &columns[key[rng.usize(0..key.len())]];
        let (name, number) = (&column.name, self.number);
        let leaf = |part: &str| quote_ident(&format!("p{number} {part}"));
        let make = |part: &str, parent: &str, bound: &str| {
            format!(
                "CREATE TABLE {{shard}}.{} PARTITION OF {{shard}}.{parent} {bound};\n",
                leaf(part)
            )
        };
        let hashed = |parent: &str| {
            let parts = (0..3).map(|n| {
                let bound = format!("FOR VALUES WITH (MODULUS 3, REMAINDER {n})");
                make(&format!("h{n}"), parent, &bound)
            });
            parts.collect::<String>()
        };
        let hashes = || (0..3).map(|n| leaf(&format!("h{n}"))).collect::<Vec<_>>();
        let by_number = column.kind.is_number() && plain(name);
        Some(match rng.u8(0..3) {
            0 if by_number => {
                let low = make("low", "{table}", "FOR VALUES FROM (MINVALUE) TO (7)");
                let some = make("some", "{table}", "FOR VALUES FROM (7) TO (20)");
                let rest = make(
                    "rest",
                    "{table}",
                    &format!("DEFAULT PARTITION BY HASH ({name})"),
                );
                let leaves = [vec![leaf("low"), leaf("some")], hashes()].concat();
                Partitioned {
                    by: format!("RANGE ({name})"),
                    made: low + &some + &rest + &hashed(&leaf("rest")),
                    leaves,
                }
            }
            1 if by_number => {
                let some = make("some", "{table}", "FOR VALUES IN (1, 2, 3, 5, 8, 13, 21)");
                let rest = make("rest", "{table}", "DEFAULT");
                let leaves = vec![leaf("some"), leaf("rest")];
                Partitioned {
                    by: format!("LIST ({name})"),
                    made: some + &rest,
                    leaves,
                }
            }
            // An enum's hash differs from host to host.
            _ if column.kind == Kind::Mood => {
                let made = make("sad", "{table}", "FOR VALUES IN ('sad')")
                    + &make("rest", "{table}", "DEFAULT");
                Partitioned {
                    by: format!("LIST ({name})"),
                    made,
                    leaves: vec![leaf("sad"), leaf("rest")],
                }
            }
            _ => Partitioned {
                by: format!("HASH ({name})"),
                made: hashed("{table}"),
                leaves: hashes(),
            },
        })
    }

    fn key_kind(&mut self) -> Key {
        match self.any_key_kind() {
            Key::Deferrable if !self.has("deferrable") => Key::Composite,
            Key::Always if !self.has("always") => Key::ByDefault,
            Key::Full | Key::PrimaryAndFull | Key::Deferrable if !self.has("identity-full") => {
                Key::Primary
            }
            kind => kind,
        }
    }

    fn any_key_kind(&mut self) -> Key {
        match self.rng.u8(0..20) {
            0..5 => Key::Primary,
            5..8 => Key::Composite,
            8..10 => Key::Deferrable,
            10..12 => Key::Index,
            12..14 => Key::Full,
            14 => Key::PrimaryAndFull,
            15 => Key::NextId,
            16 => Key::Always,
            17 => Key::ByDefault,
            18 => Key::Serial,
            _ => Key::PrimaryAndIndex,
        }
    }

    /// Generated columns, identities, sequences, references, triggers, constraints.
    #[allow(clippy::too_many_arguments, reason = "parts of one long function")]
    fn specials(
        &mut self,
        name: &str,
        key: &str,
        kind: Kind,
        key_kind: &Key,
        before: &[Table],
        columns: &mut Vec<Column>,
        parts: &mut Vec<String>,
    ) {
        let number = self.number;
        let mut add = |column: &str, kind: Kind, fill: Fill, sql: String| {
            parts.push(format!("{} {sql}", quote_ident(column)));
            columns.push(Column {
                name: quote_ident(column),
                kind,
                fill,
                nullable: true,
            });
        };
        let (always, short, generated) =
            (self.has("always"), self.has("short"), self.has("generated"));
        let mut chance = |one_in: u8| self.rng.u8(0..one_in) == 0;
        let identity_taken = matches!(key_kind, Key::Always | Key::ByDefault);
        if !identity_taken && chance(4) && always {
            // Updated by `SET x = DEFAULT`, and by the trigger below.
            add(
                "rev",
                Kind::Bigint,
                Fill::Always,
                "bigint GENERATED ALWAYS AS IDENTITY".to_owned(),
            );
        } else if !identity_taken && chance(5) {
            add(
                "byd",
                Kind::Integer,
                Fill::Default,
                "integer GENERATED BY DEFAULT AS IDENTITY (START 5 INCREMENT -2 MINVALUE -100000 \
                    MAXVALUE 5)"
                    .to_owned(),
            );
        }
        if chance(6) && short {
            add(
                "tiny",
                Kind::Smallint,
                Fill::Default,
                "smallserial".to_owned(),
            );
            writeln!(
                self.after,
                "SELECT setval(pg_get_serial_sequence('{{shard}}.{}', 'tiny'), 23000);",
                name.replace('\'', "''")
            )
            .unwrap();
        }
        if chance(5) {
            add(
                "shared",
                Kind::Bigint,
                Fill::Default,
                "bigint DEFAULT nextval('{shard}.plain')".to_owned(),
            );
        }
        if chance(4) && generated {
            add("n", Kind::Integer, Fill::Plain, "integer".to_owned());
            add(
                "doubled",
                Kind::Bigint,
                Fill::Generated,
                "bigint GENERATED ALWAYS AS (n::bigint * 2) STORED".to_owned(),
            );
        }
        if chance(4) {
            add(
                "stamp",
                Kind::Integer,
                Fill::Default,
                "integer DEFAULT 0".to_owned(),
            );
            let also = match columns_have(parts, "rev") && self.rng.bool() {
                // A trigger may do this, although a statement may not.
                true => "NEW.rev := NEW.rev + 100000;",
                false => "",
            };
            writeln!(
                self.after,
                "CREATE FUNCTION {{shard}}.bump{number}() RETURNS trigger LANGUAGE plpgsql AS $$ \
                    BEGIN
                NEW.stamp := coalesce(NEW.stamp, 0) + 1; {also} RETURN NEW; END $$;
                CREATE TRIGGER bump BEFORE INSERT OR
                UPDATE ON {{shard}}.{name} FOR EACH ROW EXECUTE FUNCTION {{shard}}.bump{number}();"
            )
            .unwrap();
        }
        let mut chance = |one_in: u8| self.rng.u8(0..one_in) == 0;
        let mut add = |column: &str, kind: Kind, fill: Fill, sql: String| {
            parts.push(format!("{} {sql}", quote_ident(column)));
            columns.push(Column {
                name: quote_ident(column),
                kind,
                fill,
                nullable: true,
            });
        };
        if chance(5) {
            writeln!(
                self.after,
                "CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON {{shard}}.{name}
                FOR EACH ROW EXECUTE FUNCTION {{shard}}.note();"
            )
            .unwrap();
            if chance(2) {
                writeln!(
                    self.after,
                    "ALTER TABLE {{shard}}.{name} ENABLE ALWAYS TRIGGER noted;"
                )
                .unwrap();
            }
        }
        if chance(6) {
            add(
                "position",
                Kind::Integer,
                Fill::Plain,
                "integer UNIQUE DEFERRABLE INITIALLY DEFERRED".to_owned(),
            );
        }
        if chance(8) {
            add("during", Kind::Range, Fill::Plain, "int4range".to_owned());
            parts.push("EXCLUDE USING gist (during WITH &&)".to_owned());
        }
        let referable = matches!(
            key_kind,
            Key::Primary
                | Key::PrimaryAndFull
                | Key::PrimaryAndIndex
                | Key::NextId
                | Key::Always
                | Key::ByDefault
                | Key::Serial
        );
        let mut add = |column: &str, kind: Kind, fill: Fill, sql: String| {
            parts.push(format!("{} {sql}", quote_ident(column)));
            columns.push(Column {
                name: quote_ident(column),
                kind,
                fill,
                nullable: true,
            });
        };
        let actions = [
            "",
            "ON DELETE CASCADE",
            "ON DELETE SET NULL ON UPDATE CASCADE",
            "ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED",
        ];
        if referable && self.rng.u8(0..6) == 0 {
            let action = actions[self.rng.usize(0..actions.len())];
            add(
                "parent",
                kind,
                Fill::Reference(name.to_owned(), key.to_owned()),
                kind.sql().to_owned(),
            );
            writeln!(
                self.after,
                "ALTER TABLE {{shard}}.{name} ADD FOREIGN KEY (parent) REFERENCES {{shard}}.{name} \
                    {action};"
            )
            .unwrap();
        }
        let others: Vec<&Table> = before
            .iter()
            .filter(|t| t.key.len() == 1 && t.arbiter && t.is_primary())
            .collect();
        if !others.is_empty() && self.rng.u8(0..3) == 0 {
            let other = others[self.rng.usize(0..others.len())];
            let column = &other.columns[other.key[0]];
            let action = actions[self.rng.usize(0..actions.len())];
            add(
                "ref",
                column.kind,
                Fill::Reference(other.name.clone(), column.name.clone()),
                column.kind.sql().to_owned(),
            );
            writeln!(
                self.after,
                "ALTER TABLE {{shard}}.{name} ADD FOREIGN KEY (ref) REFERENCES {{shard}}.{} \
                    {action};",
                other.name
            )
            .unwrap();
            // A cycle.
            if referable && self.rng.u8(0..3) == 0 && !other.has("\"back") {
                writeln!(
                    self.after,
                    "ALTER TABLE {{shard}}.{} ADD COLUMN back_{number} {} REFERENCES \
                        {{shard}}.{name} ON DELETE \
                     SET NULL ON UPDATE CASCADE;",
                    other.name,
                    kind.sql()
                )
                .unwrap();
            }
        }
        if self.rng.u8(0..4) == 0 {
            writeln!(self.after, "CREATE INDEX ON {{shard}}.{name} ({key});").unwrap();
        }
    }
}

fn columns_have(parts: &[String], name: &str) -> bool {
    parts
        .iter()
        .any(|part| part.starts_with(&format!("\"{name}\" ")))
}

impl Table {
    fn is_primary(&self) -> bool {
        self.create.contains("PRIMARY KEY")
    }

    fn has(&self, name: &str) -> bool {
        self.columns
            .iter()
            .any(|column| column.name.starts_with(name))
    }
}
