//! Objects of every kind over the types of extensions, and the questions that show how they behave.

use fastrand::Rng;

/// The extensions, each in a schema that the mover's path does not have.
pub(crate) const EXTENSIONS: [&str; 7] = [
    "citext",
    "ltree",
    "hstore",
    "intarray",
    "pg_trgm",
    "unaccent",
    "btree_gist",
];

/// A type, literals that its operators compare differently from those of text, and conditions.
struct Kind {
    name: &'static str,
    literals: [&'static str; 4],
    conditions: &'static [&'static str],
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "citext",
        literals: ["'A'", "'a'", "'B'", "'é'"],
        conditions: &[
            "{a} ~ {b}",
            "{a} LIKE {b}",
            "replace({a}, 'A', 'x') = {b}",
            "{a} > {b}",
        ],
    },
    Kind {
        name: "ltree",
        literals: ["'Top.A'", "'top.a'", "'Top'", "'Top.A.B'"],
        conditions: &[
            "{a} @> {b}",
            "{a} ~ 'Top.*'",
            "nlevel({a}) = nlevel({b})",
            "{a} < {b}",
        ],
    },
    Kind {
        name: "hstore",
        literals: ["'a=>1'", "'a=>1,b=>2'", "'b=>2,a=>1'", "''"],
        conditions: &["{a} @> {b}", "{a} ? 'b'", "({a} -> 'a') = ({b} -> 'a')"],
    },
    Kind {
        name: "int[]",
        literals: ["'{1,2}'", "'{2,1}'", "'{3}'", "'{1,2,3}'"],
        conditions: &[
            "{a} && {b}",
            "{a} @> {b}",
            "{a} @@ '1&2'",
            "icount({a}) > 1",
        ],
    },
    Kind {
        name: "text",
        literals: ["'Ärger'", "'Arger'", "'word'", "'words'"],
        conditions: &[
            "{a} % {b}",
            "unaccent({a}) = {b}",
            "similarity({a}, {b}) > 0.5",
            "{a} < {b}",
        ],
    },
];

/// Expressions in which an operator is named, or is looked up without a name.
const FORMS: [&str; 15] = [
    "{a} = {b}",
    "{a} IS DISTINCT FROM {b}",
    "{a} IS NOT DISTINCT FROM {b}",
    "NULLIF({a}, {b}) IS NULL",
    "CASE {a} WHEN {b} THEN true ELSE false END",
    "CASE WHEN {a} = {b} THEN true ELSE {a} <> {l} END",
    "{a} IN ({b}, {l})",
    "{a} = ANY (ARRAY[{b}, {l}])",
    "ROW(1, {a}) = ROW(1, {b})",
    "ROW({a}, 1) = ROW({b}, 1)",
    "({a}, 2) IN (({b}, 2), ({l}, 3))",
    "{a} BETWEEN SYMMETRIC {b} AND {l}",
    "{a} = {b} AND {a} IS DISTINCT FROM {l}",
    "GREATEST({a}, {b}) = {a}",
    "{a}::text IS DISTINCT FROM {b}::text",
];

/// Names that PostgreSQL has for something of its own.
const HIDING: [&str; 14] = [
    "text",
    "name",
    "regtype",
    "int4",
    "oid",
    "regclass",
    "pg_class",
    "pg_type",
    "pg_proc",
    "pg_depend",
    "format",
    "lower",
    "jsonb",
    "pg_namespace",
];

/// One object: what makes it, and what shows how it behaves. A `?` before a question: it is queried
/// as a role that is not the owner.
pub(crate) struct Object {
    pub(crate) name: String,
    pub(crate) sql: Vec<String>,
    pub(crate) questions: Vec<String>,
}

pub(crate) struct Generator {
    rng: Rng,
    shard: u16,
    count: usize,
    /// The `search_path` that a bound function gets.
    path: String,
}

struct Table {
    name: String,
    kind: &'static Kind,
}

impl Generator {
    pub(crate) fn new(seed: u64, shard: u16, path: &str) -> Generator {
        Generator {
            rng: Rng::with_seed(seed.wrapping_mul(977).wrapping_add(u64::from(shard))),
            shard,
            count: 0,
            path: path.to_owned(),
        }
    }

    /// A few objects, a table first.
    pub(crate) fn all(&mut self) -> Vec<Object> {
        let mut objects = Vec::new();
        if self.rng.u8(0..3) == 0 {
            objects.push(self.hiding());
        }
        for _ in 0..self.rng.usize(1..3) {
            let kind = &KINDS[self.rng.usize(0..KINDS.len())];
            let name = match self.rng.u8(0..5) {
                0 => HIDING[self.rng.usize(0..HIDING.len())].to_owned(),
                _ => self.name("t"),
            };
            let table = Table { name, kind };
            objects.push(self.table(&table));
            for _ in 0..self.rng.usize(1..5) {
                objects.push(self.object(&table));
            }
        }
        objects
    }

    fn name(&mut self, prefix: &str) -> String {
        self.count += 1;
        format!("{prefix}_{}_{}", self.shard, self.count)
    }

    fn literal(&mut self, kind: &Kind) -> String {
        format!("{}::{}", kind.literals[self.rng.usize(0..4)], kind.name)
    }

    fn condition(&mut self, kind: &Kind, a: &str, b: &str) -> String {
        let form = match self.rng.u8(0..4) {
            0 => kind.conditions[self.rng.usize(0..kind.conditions.len())],
            _ => FORMS[self.rng.usize(0..FORMS.len())],
        };
        let literal = self.literal(kind);
        let b = if self.rng.u8(0..4) == 0 {
            self.literal(kind)
        } else {
            b.to_owned()
        };
        form.replace("{a}", a)
            .replace("{b}", &b)
            .replace("{l}", &literal)
    }

    fn table(&mut self, table: &Table) -> Object {
        let (name, kind) = (&table.name, table.kind);
        let mut columns = format!(
            "id int PRIMARY KEY, e {}, f {}, n int",
            kind.name, kind.name
        );
        if self.rng.bool() {
            let (a, b) = (self.literal(kind), self.literal(kind));
            columns += &format!(", d boolean DEFAULT ({})", self.condition(kind, &a, &b));
        }
        if self.rng.bool() {
            let condition = self.condition(kind, "e", "f");
            columns += &format!(", g boolean GENERATED ALWAYS AS ({condition}) STORED");
        }
        if self.rng.bool() {
            let condition = self.condition(kind, "e", "f");
            columns += &format!(", CHECK ((id < 1000) OR ({condition}))");
        }
        let rows: Vec<String> = (0..40)
            .map(|id| {
                let (e, f) = (self.literal(kind), self.literal(kind));
                let f = if id % 9 == 8 { "NULL".to_owned() } else { f };
                format!("({id}, {e}, {f}, {})", id % 5)
            })
            .collect();
        let rows = rows.join(", ");
        let mut questions = vec![format!("SELECT t FROM {{s}}.{name} t ORDER BY id")];
        for _ in 0..3 {
            let (e, f) = (self.literal(kind), self.literal(kind));
            questions.push(format!(
                "BEGIN; INSERT INTO {{s}}.{name} (id, e, f) VALUES (1001, {e}, {f}) RETURNING \
                 {name}; SELECT {name} FROM {{s}}.{name} WHERE id > 1000; ROLLBACK"
            ));
            questions.push(format!(
                "BEGIN; UPDATE {{s}}.{name} SET e = {e}; SELECT t FROM {{s}}.{name} t ORDER BY id; \
                 ROLLBACK"
            ));
        }
        Object {
            name: name.clone(),
            sql: vec![
                format!("CREATE TABLE {{s}}.{name} ({columns})"),
                format!("INSERT INTO {{s}}.{name} (id, e, f, n) VALUES {rows}"),
                format!("GRANT SELECT, INSERT ON {{s}}.{name} TO reader"),
            ],
            questions,
        }
    }

    /// Something by a name of PostgreSQL's own, or an operator that hides one.
    fn hiding(&mut self) -> Object {
        let name = HIDING[self.rng.usize(0..HIDING.len())];
        let own = self.name("own");
        let sql = match self.rng.u8(0..6) {
            0 => vec![format!("CREATE TABLE {{s}}.{name} (a int)")],
            1 => vec![format!("CREATE TYPE {{s}}.{name} AS ENUM ('a', 'b')")],
            2 => vec![format!(
                "CREATE DOMAIN {{s}}.{name} AS int CHECK (VALUE > 0)"
            )],
            3 => vec![format!(
                "CREATE FUNCTION {{s}}.{name}(pg_catalog.text) RETURNS pg_catalog.text LANGUAGE \
                 sql IMMUTABLE AS $$ SELECT 'hidden' $$"
            )],
            4 => {
                let types = [
                    "pg_catalog.text",
                    "pg_catalog.int4",
                    "pg_catalog.oid",
                    "citext",
                ];
                let of = types[self.rng.usize(0..types.len())];
                vec![
                    format!(
                        "CREATE FUNCTION {{s}}.{own}({of}, {of}) RETURNS boolean LANGUAGE sql \
                         IMMUTABLE RETURN true"
                    ),
                    format!(
                        "CREATE OPERATOR {{s}}.= (FUNCTION = {{s}}.{own}, LEFTARG = {of}, RIGHTARG \
                         = {of})"
                    ),
                ]
            }
            _ => vec![format!(
                "CREATE FUNCTION {{s}}.pg_get_expr(pg_node_tree, oid) RETURNS text LANGUAGE sql \
                 IMMUTABLE AS $$ SELECT 'hidden' $$"
            )],
        };
        let name = sql
            .last()
            .map(|sql| sql.contains("OPERATOR"))
            .map_or(name, |is_operator| if is_operator { "=" } else { name });
        let name = if sql[0].contains("pg_get_expr") {
            "pg_get_expr"
        } else {
            name
        };
        Object {
            name: name.to_owned(),
            sql,
            questions: Vec::new(),
        }
    }

    /// A function over two values of a kind, in the shard or outside of it, with any sort of body.
    fn function(&mut self, kind: &Kind) -> (String, String) {
        let outside = self.rng.bool();
        let name = match outside {
            true => format!("public.{}", self.name("o")),
            false => format!("{{s}}.{}", self.name("fn")),
        };
        let condition = self.condition(kind, "$1", "$2");
        let path = match self.rng.bool() {
            true => format!(" SET search_path = {}", self.path),
            false => String::new(),
        };
        let body = match self.rng.u8(0..3) {
            0 => format!("LANGUAGE plpgsql IMMUTABLE{path} AS $$ BEGIN RETURN {condition}; END $$"),
            1 => format!("LANGUAGE sql IMMUTABLE{path} AS $$ SELECT {condition} $$"),
            _ => format!("LANGUAGE sql IMMUTABLE RETURN {condition}"),
        };
        let sql = format!(
            "CREATE FUNCTION {name}({0}, {0}) RETURNS boolean {body}",
            kind.name
        );
        (name, sql)
    }

    /// A condition over the columns e and f, that may call a function, with what makes that one.
    fn expression(&mut self, kind: &Kind) -> (Vec<String>, String) {
        if self.rng.u8(0..3) > 0 {
            return (Vec::new(), self.condition(kind, "e", "f"));
        }
        let (name, sql) = self.function(kind);
        (vec![sql], format!("{name}(e, f)"))
    }

    fn object(&mut self, table: &Table) -> Object {
        let (t, kind) = (format!("{{s}}.{}", table.name), table.kind);
        let name = self.name("x");
        let condition = self.condition(kind, "e", "f");
        let joined = self.condition(kind, "a.e", "b.f");
        let rows = format!("SELECT v FROM {{s}}.{name} v ORDER BY v::pg_catalog.text");
        let (mut sql, mut questions) = (Vec::new(), Vec::new());
        match self.rng.u8(0..17) {
            0 => {
                sql.push(format!(
                    "CREATE VIEW {{s}}.{name} AS SELECT id, {condition} AS c FROM {t}"
                ));
                questions.push(rows);
            }
            1 => {
                let join = [
                    "JOIN {t} b USING (e)",
                    "NATURAL JOIN {t} b",
                    "LEFT JOIN {t} b USING (e, n)",
                ];
                let join = join[self.rng.usize(0..3)].replace("{t}", &t);
                sql.push(format!(
                    "CREATE VIEW {{s}}.{name} AS SELECT count(*) AS c FROM {t} a {join}"
                ));
                questions.push(rows);
            }
            2 => {
                let join = [
                    "a.e IN (SELECT f FROM {t})",
                    "a.e = ANY (SELECT f FROM {t})",
                    "(a.id, a.e) IN (SELECT id, f FROM {t})",
                    "a.e NOT IN (SELECT f FROM {t} WHERE f IS NOT NULL)",
                ];
                let join = join[self.rng.usize(0..4)].replace("{t}", &t);
                sql.push(format!(
                    "CREATE VIEW {{s}}.{name} AS SELECT a.id, {join} AS c FROM {t} a"
                ));
                questions.push(rows);
            }
            3 => {
                sql.push(format!(
                    "CREATE MATERIALIZED VIEW {{s}}.{name} AS SELECT a.id, count(*) AS c \
                     FROM {t} a JOIN {t} b ON {joined} GROUP BY a.id"
                ));
                questions.push(rows);
            }
            4 => {
                let (made, expression) = self.expression(kind);
                sql.extend(made);
                sql.push(format!(
                    "CREATE MATERIALIZED VIEW {{s}}.{name} AS SELECT id, {expression} AS c FROM {t}"
                ));
                questions.push(rows);
            }
            5 | 6 => {
                let (made, expression) = self.expression(kind);
                sql.extend(made);
                let partial = self.rng.bool();
                sql.push(match partial {
                    true => format!("CREATE INDEX {name} ON {t} (id) WHERE {expression}"),
                    false => format!("CREATE INDEX {name} ON {t} (({expression}))"),
                });
                for scan in [
                    "enable_seqscan",
                    "enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL \
                     enable_indexonlyscan",
                ] {
                    questions.push(format!(
                        "BEGIN; SET LOCAL {scan} = off; SELECT count(*), sum(id) \
                     FROM {t} WHERE {expression}; ROLLBACK"
                    ));
                }
            }
            7 => {
                let (made, expression) = self.expression(kind);
                sql.extend(made);
                sql.push(format!(
                    "ALTER TABLE {t} ADD COLUMN {name} boolean GENERATED ALWAYS \
                     AS ({expression}) STORED"
                ));
                questions.push(format!("SELECT id, {name} FROM {t} ORDER BY id"));
            }
            8 => {
                let (made, expression) = self.expression(kind);
                sql.extend(made);
                sql.push(format!(
                    "ALTER TABLE {t} ADD CONSTRAINT {name} CHECK (id < 1000 OR {expression})"
                ));
            }
            9 => {
                let literal = self.literal(kind);
                let (a, b) = (self.literal(kind), self.literal(kind));
                let check = self.condition(kind, "VALUE", &a);
                sql.push(format!(
                    "CREATE DOMAIN {{s}}.{name} AS {} DEFAULT {b} CHECK ({check})",
                    kind.name
                ));
                for value in kind.literals {
                    questions.push(format!("SELECT {value}::{{s}}.{name}"));
                }
                sql.push(format!(
                    "CREATE TABLE {{s}}.{name}_t (id int PRIMARY KEY, v {{s}}.{name})"
                ));
                questions.push(format!(
                    "BEGIN; INSERT INTO {{s}}.{name}_t VALUES (1), (2, \
                     {literal}) RETURNING v; ROLLBACK"
                ));
            }
            10 => {
                sql.push(format!("ALTER TABLE {t} ENABLE ROW LEVEL SECURITY"));
                sql.push(format!(
                    "CREATE POLICY {name} ON {t} USING ({condition}) WITH CHECK ({condition})"
                ));
                questions.push(format!("?SELECT count(*), sum(id) FROM {t}"));
                for _ in 0..2 {
                    let (e, f) = (self.literal(kind), self.literal(kind));
                    questions.push(format!(
                        "?BEGIN; INSERT INTO {t} (id, e, f) VALUES (500, {e}, {f}); ROLLBACK"
                    ));
                }
            }
            11 | 12 => {
                let when = self.condition(kind, "OLD.e", "NEW.e");
                sql.push(format!(
                    "CREATE FUNCTION {{s}}.{name}_f() RETURNS trigger LANGUAGE plpgsql \
                     AS $$ BEGIN NEW.n := 77; RETURN NEW; END $$"
                ));
                sql.push(format!(
                    "CREATE TRIGGER {name} BEFORE UPDATE ON {t} FOR EACH ROW WHEN ({when}) \
                     EXECUTE FUNCTION {{s}}.{name}_f()"
                ));
            }
            13 => {
                let when = self.condition(kind, "NEW.e", "NEW.f");
                let instead = if self.rng.bool() {
                    "INSTEAD NOTHING"
                } else {
                    "ALSO DELETE FROM {t} WHERE id < 3"
                };
                let instead = instead.replace("{t}", &t);
                sql.push(format!(
                    "CREATE RULE {name} AS ON INSERT TO {t} WHERE {when} DO {instead}"
                ));
            }
            14 => {
                sql.push(format!(
                    "CREATE STATISTICS {{s}}.{name} ON ({condition}), n FROM {t}"
                ));
            }
            15 => {
                sql.push(format!(
                    "CREATE TABLE {{s}}.{name} (id int, e {0}, f {0}) PARTITION BY \
                     LIST (({condition}))",
                    kind.name
                ));
                sql.push(format!(
                    "CREATE TABLE {{s}}.{name}_1 PARTITION OF {{s}}.{name} FOR VALUES IN (true)"
                ));
                sql.push(format!(
                    "CREATE TABLE {{s}}.{name}_2 PARTITION OF {{s}}.{name} DEFAULT"
                ));
                sql.push(format!("INSERT INTO {{s}}.{name} SELECT id, e, f FROM {t}"));
                questions.push(format!(
                    "SELECT id, tableoid::pg_catalog.regclass FROM {{s}}.{name} ORDER BY id"
                ));
            }
            _ => {
                let (function, made) = self.function(kind);
                sql.push(made);
                questions.push(format!("SELECT id, {function}(e, f) FROM {t} ORDER BY id"));
            }
        }
        Object {
            name,
            sql,
            questions,
        }
    }
}
