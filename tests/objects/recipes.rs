//! Objects of the kinds and with the options that PostgreSQL has and applications rarely use, one
//! of each. What they are is compared by pg_dump, and what they do by questions.

use super::generator::Object;

/// Statements, and questions. `{s}` is the schema, `{n}` a name of the recipe's own. What a version
/// does not have is left out there.
struct Recipe {
    sql: &'static [&'static str],
    questions: &'static [&'static str],
}

const RECIPES: &[Recipe] = &[
    Recipe {
        sql: &[
            "CREATE FUNCTION {s}.{n}_diff(float8, float8) RETURNS float8 LANGUAGE sql IMMUTABLE \
             RETURN $1 - $2",
            "CREATE TYPE {s}.{n} AS RANGE (subtype = float8, subtype_diff = {s}.{n}_diff, \
             multirange_type_name = {n}_many)",
            "CREATE TABLE {s}.{n}_t (id int PRIMARY KEY, r {s}.{n}, m {s}.{n}_many, EXCLUDE USING \
             gist (r WITH &&) WHERE (id > 0))",
            "INSERT INTO {s}.{n}_t VALUES (1, '[1,2)', '{[1,2),[3,4)}'), (2, '[5,)', '{}')",
        ],
        questions: &[
            "SELECT t, upper_inf(r), range_merge(m) FROM {s}.{n}_t t ORDER BY id",
            "BEGIN; INSERT INTO {s}.{n}_t VALUES (3, '[6,7)', NULL); ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY DEFERRABLE, u int, v int, CONSTRAINT {n}_u \
             UNIQUE (u) DEFERRABLE INITIALLY DEFERRED, CONSTRAINT {n}_x EXCLUDE USING btree (v \
             WITH =) DEFERRABLE, o int REFERENCES {s}.{n} DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO {s}.{n} VALUES (1, 1, 1, 2), (2, 2, 2, 1)",
        ],
        questions: &[
            "BEGIN; INSERT INTO {s}.{n} VALUES (3, 1, 3, 9); UPDATE {s}.{n} SET u = 3, o = 1 WHERE \
             id = 3; SET CONSTRAINTS ALL IMMEDIATE; SELECT count(*) FROM {s}.{n}; ROLLBACK",
            "BEGIN; INSERT INTO {s}.{n} VALUES (3, 1, 3, 1); SELECT 1; SET CONSTRAINTS ALL \
             IMMEDIATE; ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) \
             VIRTUAL, c int GENERATED ALWAYS AS (a + 1) STORED)",
            "INSERT INTO {s}.{n} (id, a) VALUES (1, 2), (2, NULL)",
        ],
        questions: &["SELECT t FROM {s}.{n} t ORDER BY id"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int, b int)",
            "INSERT INTO {s}.{n} VALUES (1, NULL, NULL)",
            "ALTER TABLE {s}.{n} ADD CONSTRAINT {n}_a NOT NULL a NOT VALID",
            "ALTER TABLE {s}.{n} ADD CONSTRAINT {n}_b CHECK (b > 0) NOT ENFORCED",
        ],
        questions: &[
            "SELECT t FROM {s}.{n} t",
            "BEGIN; INSERT INTO {s}.{n} VALUES (2, NULL, 1); ROLLBACK",
            "BEGIN; INSERT INTO {s}.{n} VALUES (2, 1, -1) RETURNING 1; ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int CONSTRAINT {n}_nn NOT NULL, b int)",
            "INSERT INTO {s}.{n} VALUES (1, 1, -1)",
            "ALTER TABLE {s}.{n} ADD CONSTRAINT {n}_b CHECK (b > 0) NOT VALID",
            "ALTER TABLE {s}.{n} ADD CONSTRAINT {n}_c CHECK (a > 0) NO INHERIT",
            "ALTER TABLE {s}.{n} ADD CONSTRAINT {n}_f FOREIGN KEY (b) REFERENCES {s}.{n} NOT VALID",
        ],
        questions: &["BEGIN; INSERT INTO {s}.{n} VALUES (2, 1, -2); ROLLBACK"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int, at date, w text DEFAULT 'p', PRIMARY KEY (id, at)) \
             PARTITION BY RANGE (at)",
            "CREATE TABLE {s}.{n}_1 (w text DEFAULT 'q', at date NOT NULL, id int NOT NULL)",
            "ALTER TABLE {s}.{n} ATTACH PARTITION {s}.{n}_1 FOR VALUES FROM (MINVALUE) TO \
             ('2026-01-01')",
            "CREATE TABLE {s}.{n}_2 PARTITION OF {s}.{n} DEFAULT PARTITION BY HASH (id)",
            "CREATE TABLE {s}.{n}_2a PARTITION OF {s}.{n}_2 FOR VALUES WITH (MODULUS 2, REMAINDER \
             0)",
            "CREATE TABLE {s}.{n}_2b PARTITION OF {s}.{n}_2 FOR VALUES WITH (MODULUS 2, REMAINDER \
             1)",
            "CREATE INDEX {n}_i ON ONLY {s}.{n} (w)",
            "CREATE INDEX {n}_i1 ON {s}.{n}_1 (w)",
            "ALTER INDEX {s}.{n}_i ATTACH PARTITION {s}.{n}_i1",
            "INSERT INTO {s}.{n} VALUES (1, '2025-01-01'), (2, '2026-01-01'), (3, '2026-01-01')",
            "INSERT INTO {s}.{n}_1 (id, at) VALUES (9, '2025-01-02')",
        ],
        questions: &[
            "SELECT tableoid::pg_catalog.regclass, id, at, w FROM {s}.{n} ORDER BY id",
            "BEGIN; INSERT INTO {s}.{n}_1 (id, at) VALUES (10, '2025-01-02') RETURNING w; ROLLBACK",
            "SELECT indisvalid FROM pg_catalog.pg_index WHERE indexrelid = \
             '{s}.{n}_i'::pg_catalog.regclass",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a text DEFAULT 'p', b int)",
            "CREATE TABLE {s}.{n}_b (c int, CHECK (c > 0) NO INHERIT)",
            "CREATE TABLE {s}.{n}_1 (d int, a text DEFAULT 'c') INHERITS ({s}.{n}, {s}.{n}_b)",
            "CREATE TABLE {s}.{n}_2 (e int) INHERITS ({s}.{n}_1)",
            "ALTER TABLE {s}.{n}_2 ALTER b SET DEFAULT 7",
            "ALTER TABLE {s}.{n}_2 ADD PRIMARY KEY (id)",
            "INSERT INTO {s}.{n} VALUES (1)",
            "INSERT INTO {s}.{n}_2 (id) VALUES (2)",
        ],
        questions: &[
            "SELECT tableoid::pg_catalog.regclass, * FROM {s}.{n} ORDER BY id",
            "SELECT * FROM {s}.{n}_2",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int)",
            "CREATE TABLE {s}.{n}_log (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, w text)",
            "CREATE FUNCTION {s}.{n}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO \
             {s}.{n}_log (w) SELECT tg_name || tg_nargs || tg_argv[0] || count(*) FROM fresh; \
             RETURN NULL; END $$",
            "CREATE FUNCTION {s}.{n}_g() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO \
             {s}.{n}_log (w) VALUES (tg_name || tg_when || tg_level); RETURN NULL; END $$",
            "CREATE TRIGGER {n}_a AFTER INSERT ON {s}.{n} REFERENCING NEW TABLE AS fresh FOR EACH \
             STATEMENT EXECUTE FUNCTION {s}.{n}_f('it''s', 2)",
            "CREATE TRIGGER {n}_b AFTER UPDATE OF a ON {s}.{n} FOR EACH ROW EXECUTE FUNCTION \
             {s}.{n}_g()",
            "CREATE CONSTRAINT TRIGGER {n}_c AFTER DELETE ON {s}.{n} DEFERRABLE INITIALLY DEFERRED \
             FOR EACH ROW EXECUTE FUNCTION {s}.{n}_g()",
            "CREATE TRIGGER {n}_d AFTER INSERT ON {s}.{n} EXECUTE FUNCTION {s}.{n}_g()",
            "ALTER TABLE {s}.{n} DISABLE TRIGGER {n}_d",
            "ALTER TABLE {s}.{n} ENABLE ALWAYS TRIGGER {n}_b",
            "ALTER TABLE {s}.{n} ENABLE REPLICA TRIGGER {n}_c",
            "INSERT INTO {s}.{n} VALUES (1, 1), (2, 2)",
        ],
        questions: &[
            "BEGIN; INSERT INTO {s}.{n} VALUES (3, 3); UPDATE {s}.{n} SET a = 9; DELETE FROM \
                      {s}.{n} WHERE id = 1; SET CONSTRAINTS ALL IMMEDIATE; SELECT w FROM \
                      {s}.{n}_log \
                      ORDER BY id; ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int, b text)",
            "CREATE STATISTICS {s}.{n}_s (ndistinct, mcv) ON a, (lower(b)), (a + id) FROM {s}.{n}",
            "ALTER STATISTICS {s}.{n}_s SET STATISTICS 77",
            "CREATE STATISTICS {s}.{n}_e ON (a % 7) FROM {s}.{n}",
            "CREATE INDEX {n}_i ON {s}.{n} ((a + 1), lower(b)) WITH (fillfactor = 70)",
            "ALTER INDEX {s}.{n}_i ALTER COLUMN 1 SET STATISTICS 33",
            "ALTER TABLE {s}.{n} ALTER a SET STATISTICS 99, ALTER a SET (n_distinct = -0.5), \
                ALTER b \
             SET STORAGE EXTERNAL, ALTER b SET COMPRESSION pglz",
            "ALTER TABLE {s}.{n} SET (fillfactor = 60, autovacuum_enabled = off, \
             toast.autovacuum_enabled = off, parallel_workers = 3, toast_tuple_target = 256)",
            "ALTER TABLE {s}.{n} CLUSTER ON {n}_pkey",
        ],
        questions: &[],
    },
    Recipe {
        sql: &[
            "CREATE COLLATION {s}.{n}_c (provider = icu, locale = 'und-u-ks-level2', deterministic \
             = false)",
            "CREATE COLLATION {s}.{n}_d FROM \"C\"",
            "CREATE TYPE {s}.{n}_y AS (a text COLLATE {s}.{n}_d, b int)",
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a text COLLATE {s}.{n}_c UNIQUE, b text \
             COLLATE \"C\", y {s}.{n}_y)",
            "CREATE INDEX {n}_i ON {s}.{n} (b COLLATE {s}.{n}_d text_pattern_ops DESC NULLS LAST)",
            "INSERT INTO {s}.{n} VALUES (1, 'A', 'b', ('x', 1)), (2, 'b', 'A', NULL)",
        ],
        questions: &[
            "SELECT id FROM {s}.{n} WHERE a = 'a'",
            "BEGIN; INSERT INTO {s}.{n} VALUES (3, 'B'); ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TYPE {s}.{n}_c AS (a int, b text)",
            "CREATE DOMAIN {s}.{n}_d AS {s}.{n}_c CHECK ((VALUE).a > 0) DEFAULT ROW(1, 'x')",
            "CREATE DOMAIN {s}.{n}_e AS int[] NOT NULL CHECK (cardinality(VALUE) < 3)",
            "CREATE DOMAIN {s}.{n}_f AS {s}.{n}_e CONSTRAINT {n}_k CHECK (VALUE[1] > 1)",
            "ALTER DOMAIN {s}.{n}_f ADD CONSTRAINT {n}_l CHECK (VALUE[1] < 9) NOT VALID",
            "ALTER TYPE {s}.{n}_c ADD ATTRIBUTE d date",
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, d {s}.{n}_d, f {s}.{n}_f, c {s}.{n}_c[])",
            "INSERT INTO {s}.{n} VALUES (1, ROW(2, 'y', NULL), '{2}', ARRAY[ROW(1, 'z', \
             NULL)::{s}.{n}_c])",
        ],
        questions: &[
            "SELECT t FROM {s}.{n} t",
            "BEGIN; INSERT INTO {s}.{n} VALUES (2, ROW(0, 'y', NULL), '{2}'); ROLLBACK",
            "BEGIN; INSERT INTO {s}.{n} (id, f) VALUES (2, '{1}'); ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TYPE {s}.{n}_a AS (x int)",
            "CREATE FUNCTION {s}.{n}_f({s}.{n}_a) RETURNS text LANGUAGE sql IMMUTABLE RETURN \
             ($1).x::text",
            "CREATE CAST ({s}.{n}_a AS text) WITH FUNCTION {s}.{n}_f({s}.{n}_a) AS ASSIGNMENT",
            "CREATE FUNCTION {s}.{n}_lt({s}.{n}_a, {s}.{n}_a) RETURNS boolean LANGUAGE sql \
                IMMUTABLE \
             RETURN ($1).x < ($2).x",
            "CREATE OPERATOR {s}.<<< (FUNCTION = {s}.{n}_lt, LEFTARG = {s}.{n}_a, RIGHTARG = \
             {s}.{n}_a, COMMUTATOR = OPERATOR({s}.>>>), RESTRICT = scalarltsel, JOIN = \
             scalarltjoinsel)",
            "CREATE OPERATOR {s}.!! (FUNCTION = {s}.{n}_f, RIGHTARG = {s}.{n}_a)",
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a {s}.{n}_a, CHECK (a OPERATOR({s}.<<<) \
             ROW(9)::{s}.{n}_a))",
            "INSERT INTO {s}.{n} VALUES (1, ROW(1))",
        ],
        questions: &[
            "SELECT OPERATOR({s}.!!) a FROM {s}.{n}",
            "BEGIN; INSERT INTO {s}.{n} VALUES (2, ROW(10)); ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int CHECK (a > 0), b int)",
            "CREATE VIEW {s}.{n}_v AS SELECT id, a FROM {s}.{n}",
            "CREATE FUNCTION {s}.{n}_f(a int, OUT b int) LANGUAGE sql RETURN 1",
            "CREATE SEQUENCE {s}.{n}_q",
            "CREATE TYPE {s}.{n}_e AS ENUM ('a')",
            "CREATE STATISTICS {s}.{n}_s ON a, b FROM {s}.{n}",
            "CREATE RULE {n}_r AS ON DELETE TO {s}.{n} DO ALSO NOTIFY x",
            "COMMENT ON TABLE {s}.{n} IS 'it''s a \\ \"table\"'",
            "COMMENT ON COLUMN {s}.{n}.a IS E'two\\nlines'",
            "COMMENT ON COLUMN {s}.{n}_v.a IS 'of a view'",
            "COMMENT ON CONSTRAINT {n}_a_check ON {s}.{n} IS 'check'",
            "COMMENT ON CONSTRAINT {n}_pkey ON {s}.{n} IS 'key'",
            "COMMENT ON INDEX {s}.{n}_pkey IS 'index'",
            "COMMENT ON FUNCTION {s}.{n}_f(int) IS 'function'",
            "COMMENT ON SEQUENCE {s}.{n}_q IS 'sequence'",
            "COMMENT ON TYPE {s}.{n}_e IS 'type'",
            "COMMENT ON STATISTICS {s}.{n}_s IS 'statistics'",
            "COMMENT ON RULE {n}_r ON {s}.{n} IS 'rule'",
        ],
        questions: &["SELECT pg_catalog.col_description('{s}.{n}'::pg_catalog.regclass, 2)"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int NOT NULL)",
            "CREATE UNIQUE INDEX {n}_u ON {s}.{n} (a)",
            "ALTER TABLE {s}.{n} REPLICA IDENTITY USING INDEX {n}_u",
            "CREATE TABLE {s}.{n}_f (id int PRIMARY KEY, a int)",
            "ALTER TABLE {s}.{n}_f REPLICA IDENTITY FULL",
            "CREATE TABLE {s}.{n}_0 (id int PRIMARY KEY)",
            "ALTER TABLE {s}.{n}_0 REPLICA IDENTITY NOTHING",
        ],
        questions: &[],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int, b int)",
            "INSERT INTO {s}.{n} VALUES (1, 1, 1), (2, 2, 2)",
            "ALTER TABLE {s}.{n} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            "CREATE POLICY {n}_p ON {s}.{n} TO reader USING (a > 0)",
            "CREATE POLICY {n}_r ON {s}.{n} AS RESTRICTIVE FOR SELECT TO reader, app USING (a < 2)",
            "CREATE POLICY {n}_w ON {s}.{n} FOR INSERT TO reader WITH CHECK (b > 0)",
            "GRANT SELECT (id, a), INSERT (id, a, b) ON {s}.{n} TO reader WITH GRANT OPTION",
            "GRANT UPDATE (a) ON {s}.{n} TO PUBLIC",
            "COMMENT ON POLICY {n}_p ON {s}.{n} IS 'policy'",
        ],
        questions: &[
            "?SELECT id, a FROM {s}.{n}",
            "?SELECT b FROM {s}.{n}",
            "?BEGIN; INSERT INTO {s}.{n} VALUES (3, 1, -1); ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE FUNCTION {s}.{n}_f() RETURNS int LANGUAGE sql RETURN 1",
            "REVOKE ALL ON FUNCTION {s}.{n}_f() FROM PUBLIC",
            "CREATE TYPE {s}.{n}_e AS ENUM ('a')",
            "REVOKE USAGE ON TYPE {s}.{n}_e FROM PUBLIC",
            "CREATE SEQUENCE {s}.{n}_q",
            "GRANT USAGE ON SEQUENCE {s}.{n}_q TO reader",
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY)",
            "REVOKE TRUNCATE, REFERENCES ON {s}.{n} FROM app",
            "GRANT ALL ON {s}.{n} TO reader",
        ],
        questions: &[
            "?SELECT {s}.{n}_f()",
            "?SELECT pg_catalog.has_sequence_privilege('{s}.{n}_q', 'USAGE')",
            "BEGIN; TRUNCATE {s}.{n}; ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "ALTER DEFAULT PRIVILEGES IN SCHEMA {s} GRANT SELECT ON TABLES TO reader",
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY)",
        ],
        questions: &[
            // MAINTAIN came with 17.
            "BEGIN; CREATE TABLE {s}.{n}_later (id int); SELECT a.grantee::regrole, \
             a.privilege_type FROM pg_catalog.pg_class, pg_catalog.aclexplode(relacl) a WHERE \
             relname = '{n}_later' AND a.privilege_type <> 'MAINTAIN' ORDER BY 1, 2; ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME {s}.{n}_seq \
             START 100 INCREMENT -3 MINVALUE -50 MAXVALUE 1000 CACHE 5 CYCLE) PRIMARY KEY, b \
             smallint GENERATED BY DEFAULT AS IDENTITY, c serial)",
            "CREATE SEQUENCE {s}.{n}_q AS smallint INCREMENT 2 MINVALUE 5 MAXVALUE 9 CYCLE OWNED \
                BY \
             {s}.{n}.c",
            "CREATE TABLE {s}.{n}_u (id bigint PRIMARY KEY DEFAULT nextval('{s}.{n}_q'))",
            "INSERT INTO {s}.{n} DEFAULT VALUES",
            "INSERT INTO {s}.{n}_u DEFAULT VALUES",
        ],
        questions: &[
            "SELECT t FROM {s}.{n} t",
            "SELECT {n}_u FROM {s}.{n}_u",
            "SELECT start_value, increment_by, min_value, max_value, cycle, cache_size FROM \
             pg_catalog.pg_sequences WHERE sequencename = '{n}_q'",
        ],
    },
    Recipe {
        sql: &[
            "CREATE UNLOGGED TABLE {s}.{n} (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, w \
                text)",
            "INSERT INTO {s}.{n} (w) VALUES ('x')",
            "CREATE UNLOGGED SEQUENCE {s}.{n}_q",
        ],
        questions: &["SELECT w FROM {s}.{n}"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int DEFAULT 1, b int)",
            "INSERT INTO {s}.{n} VALUES (1, 1, 1)",
            "CREATE VIEW {s}.{n}_l WITH (check_option = local, security_barrier) AS SELECT * FROM \
             {s}.{n} WHERE a > 0",
            "CREATE VIEW {s}.{n}_c AS SELECT * FROM {s}.{n}_l WHERE b > 0 WITH CASCADED CHECK \
                OPTION",
            "CREATE VIEW {s}.{n}_i WITH (security_invoker) AS SELECT id FROM {s}.{n}",
            "ALTER VIEW {s}.{n}_c ALTER COLUMN b SET DEFAULT 5",
            "CREATE RECURSIVE VIEW {s}.{n}_r (k) AS SELECT 1 UNION ALL SELECT k + 1 FROM {n}_r \
                WHERE \
             k < 3",
            "CREATE FUNCTION {s}.{n}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO \
             {s}.{n} VALUES (NEW.id, 8, 8); RETURN NEW; END $$",
            "CREATE TRIGGER {n}_t INSTEAD OF INSERT ON {s}.{n}_i FOR EACH ROW EXECUTE FUNCTION \
             {s}.{n}_f()",
            "ALTER TABLE {s}.{n} RENAME COLUMN a TO \"A b\"",
            "GRANT SELECT ON {s}.{n}_i, {s}.{n}_l TO reader",
        ],
        questions: &[
            "SELECT * FROM {s}.{n}_r",
            "?SELECT * FROM {s}.{n}_i",
            "?SELECT * FROM {s}.{n}_l",
            "BEGIN; INSERT INTO {s}.{n}_c (id) VALUES (2) RETURNING *; ROLLBACK",
            "BEGIN; INSERT INTO {s}.{n}_c VALUES (2, -1, 1); ROLLBACK",
            "BEGIN; INSERT INTO {s}.{n}_i VALUES (7); SELECT t FROM {s}.{n} t ORDER BY id; \
                ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int)",
            "CREATE MATERIALIZED VIEW {s}.{n}_m WITH (fillfactor = 50) AS SELECT a, count(*) AS c \
             FROM {s}.{n} GROUP BY a WITH NO DATA",
            "CREATE UNIQUE INDEX {n}_i ON {s}.{n}_m (a)",
            "CREATE MATERIALIZED VIEW {s}.{n}_w AS SELECT a FROM {s}.{n}",
            "CREATE INDEX ON {s}.{n}_w (a)",
            "COMMENT ON MATERIALIZED VIEW {s}.{n}_m IS 'no data'",
            "ALTER MATERIALIZED VIEW {s}.{n}_w ALTER a SET STATISTICS 5",
        ],
        questions: &["SELECT * FROM {s}.{n}_m", "SELECT * FROM {s}.{n}_w"],
    },
    Recipe {
        sql: &[
            "CREATE FUNCTION {s}.{n}_a(a int, b text DEFAULT 'x''y', VARIADIC c int[] DEFAULT \
                '{}') \
             RETURNS TABLE (d int, e text) LANGUAGE sql STABLE STRICT PARALLEL SAFE COST 7 ROWS \
             3 SET \
             work_mem = '1MB' AS $$ SELECT a, b || cardinality(c) $$",
            "CREATE FUNCTION {s}.{n}_b(INOUT a int) LANGUAGE plpgsql SECURITY DEFINER SET \
                search_path \
             = pg_catalog, pg_temp AS 'BEGIN a := a + 1; END'",
            "CREATE FUNCTION {s}.{n}_o(int) RETURNS int LANGUAGE sql RETURN 1",
            "CREATE FUNCTION {s}.{n}_o(text) RETURNS int LANGUAGE sql RETURN 2",
            "CREATE FUNCTION {s}.{n}_p(anyelement) RETURNS anyarray LANGUAGE sql AS 'SELECT \
             ARRAY[$1]'",
            "CREATE PROCEDURE {s}.{n}_r(IN a int, INOUT b int DEFAULT 3) LANGUAGE plpgsql AS \
                'BEGIN b \
             := a * b; END'",
            "CREATE FUNCTION {s}.{n}_s(x int) RETURNS SETOF int BEGIN ATOMIC SELECT x; SELECT \
             generate_series(1, x); END",
        ],
        questions: &[
            "SELECT * FROM {s}.{n}_a(1, 'q', 1, 2)",
            "SELECT * FROM {s}.{n}_a(1)",
            "SELECT {s}.{n}_b(1), {s}.{n}_o('a'), {s}.{n}_p(5)",
            "CALL {s}.{n}_r(2)",
            "SELECT {s}.{n}_s(3)",
        ],
    },
    Recipe {
        sql: &[
            "CREATE FUNCTION {s}.{n}_add(int, int) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL \
                SAFE \
             RETURN coalesce($1, 0) + coalesce($2, 0)",
            "CREATE FUNCTION {s}.{n}_sub(int, int) RETURNS int LANGUAGE sql IMMUTABLE RETURN $1 \
                - $2",
            "CREATE FUNCTION {s}.{n}_fin(int) RETURNS text LANGUAGE sql IMMUTABLE RETURN 'sum ' \
                || $1",
            "CREATE AGGREGATE {s}.{n}_a(int) (SFUNC = {s}.{n}_add, STYPE = int, FINALFUNC = \
             {s}.{n}_fin, INITCOND = '10', COMBINEFUNC = {s}.{n}_add, MSFUNC = {s}.{n}_add, \
             MINVFUNC = \
             {s}.{n}_sub, MSTYPE = int, MFINALFUNC = {s}.{n}_fin, MINITCOND = '10', PARALLEL = \
             SAFE, \
             SSPACE = 8, FINALFUNC_MODIFY = READ_ONLY)",
            "CREATE FUNCTION {s}.{n}_app(text[], anyelement) RETURNS text[] LANGUAGE sql \
                IMMUTABLE AS \
             'SELECT array_append($1, $2::text)'",
            "CREATE AGGREGATE {s}.{n}_b(anyelement) (SFUNC = {s}.{n}_app, STYPE = text[], \
                INITCOND = \
             '{}')",
            "COMMENT ON AGGREGATE {s}.{n}_a(int) IS 'aggregate'",
        ],
        questions: &[
            "SELECT {s}.{n}_a(x) FROM generate_series(1, 4) x",
            "SELECT {s}.{n}_a(x) OVER (ORDER BY x ROWS 1 PRECEDING) FROM generate_series(1, 4) x",
            "SELECT {s}.{n}_b(x ORDER BY x DESC) FROM generate_series(1, 4) x",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TYPE {s}.{n}_e AS ENUM ('m')",
            "ALTER TYPE {s}.{n}_e ADD VALUE 'z' BEFORE 'm'",
            "ALTER TYPE {s}.{n}_e ADD VALUE 'a' AFTER 'm'",
            "ALTER TYPE {s}.{n}_e ADD VALUE 'it''s' AFTER 'z'",
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, e {s}.{n}_e DEFAULT 'm', CHECK (e > 'z'))",
            "INSERT INTO {s}.{n} VALUES (1, 'm'), (2, 'a'), (3, 'it''s')",
        ],
        questions: &[
            "SELECT t FROM {s}.{n} t ORDER BY e",
            "BEGIN; INSERT INTO {s}.{n} VALUES (4, 'z'); ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TEXT SEARCH DICTIONARY {s}.{n}_d (TEMPLATE = simple, ACCEPT = false)",
            "CREATE TEXT SEARCH CONFIGURATION {s}.{n}_c (COPY = pg_catalog.english)",
            "ALTER TEXT SEARCH CONFIGURATION {s}.{n}_c ALTER MAPPING FOR asciiword WITH {s}.{n}_d, \
             english_stem",
            "ALTER TEXT SEARCH CONFIGURATION {s}.{n}_c DROP MAPPING FOR email",
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, w text, v tsvector GENERATED ALWAYS AS \
             (to_tsvector('{s}.{n}_c'::regconfig, w)) STORED)",
            "CREATE INDEX {n}_i ON {s}.{n} USING gin (v) WITH (fastupdate = off)",
            "INSERT INTO {s}.{n} VALUES (1, 'The running foxes a@b.cd')",
        ],
        questions: &[
            "SELECT v FROM {s}.{n}",
            "SELECT to_tsvector('{s}.{n}_c', 'Jumping dogs')",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TYPE {s}.{n}_y AS (id int, a text)",
            "CREATE TABLE {s}.{n} OF {s}.{n}_y (id WITH OPTIONS PRIMARY KEY, a DEFAULT 'z')",
            "INSERT INTO {s}.{n} (id) VALUES (1)",
            "CREATE TABLE {s}.{n}_r (id int PRIMARY KEY, r {s}.{n}, rs {s}.{n}[])",
            "INSERT INTO {s}.{n}_r VALUES (1, ROW(1, 'q'), NULL)",
        ],
        questions: &["SELECT t FROM {s}.{n} t", "SELECT t FROM {s}.{n}_r t"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int, a int, b text, c int4range, d jsonb, p point, PRIMARY \
                KEY \
             (id) INCLUDE (a))",
            "CREATE UNIQUE INDEX {n}_n ON {s}.{n} (a, b) NULLS NOT DISTINCT WHERE id > 0",
            "CREATE INDEX {n}_b ON {s}.{n} USING brin (id int4_minmax_multi_ops \
                (values_per_range = \
             16)) WITH (pages_per_range = 8, autosummarize)",
            "CREATE INDEX {n}_g ON {s}.{n} USING gin (d jsonb_path_ops) WITH \
                (gin_pending_list_limit \
             = 64)",
            "CREATE INDEX {n}_s ON {s}.{n} USING spgist (p kd_point_ops)",
            "CREATE INDEX {n}_h ON {s}.{n} USING hash (b) WITH (fillfactor = 40)",
            "CREATE INDEX {n}_d ON {s}.{n} (a DESC NULLS LAST, b) INCLUDE (id) WITH \
             (deduplicate_items = off)",
            "CREATE INDEX {n}_r ON {s}.{n} USING gist (c range_ops, p) WITH (buffering = on)",
            "INSERT INTO {s}.{n} VALUES (1, NULL, NULL, '[1,2)', '{\"a\":1}', '(1,2)')",
        ],
        questions: &["BEGIN; INSERT INTO {s}.{n} VALUES (2, NULL, NULL); ROLLBACK"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (a int, b int, PRIMARY KEY (a, b))",
            "CREATE TABLE {s}.{n}_c (id int PRIMARY KEY, a int, b int DEFAULT 5, FOREIGN KEY (a, \
                b) \
             REFERENCES {s}.{n} MATCH FULL ON DELETE SET NULL (a) ON UPDATE CASCADE)",
            "CREATE TABLE {s}.{n}_d (id int PRIMARY KEY, a int, b int DEFAULT 5, FOREIGN KEY (a, \
                b) \
             REFERENCES {s}.{n} ON DELETE SET DEFAULT (b) ON UPDATE RESTRICT)",
            "INSERT INTO {s}.{n} VALUES (1, 1), (1, 5)",
            "INSERT INTO {s}.{n}_d VALUES (1, 1, 1)",
        ],
        questions: &[
            "BEGIN; DELETE FROM {s}.{n} WHERE b = 1; SELECT t FROM {s}.{n}_d t; ROLLBACK",
            "BEGIN; INSERT INTO {s}.{n}_c VALUES (1, 1, NULL); ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, at int4range NOT NULL)",
            "CREATE TABLE {s}.{n}_p (k int4range, at int4range, PRIMARY KEY (k, at WITHOUT \
                OVERLAPS))",
            "CREATE TABLE {s}.{n}_f (k int4range, at int4range, FOREIGN KEY (k, PERIOD at) \
                REFERENCES \
             {s}.{n}_p (k, PERIOD at), UNIQUE (k, at WITHOUT OVERLAPS))",
            "INSERT INTO {s}.{n}_p VALUES ('[1,2)', '[1,9)')",
        ],
        questions: &[
            "BEGIN; INSERT INTO {s}.{n}_f VALUES ('[1,2)', '[2,3)') RETURNING 1; ROLLBACK",
            "BEGIN; INSERT INTO {s}.{n}_f VALUES ('[1,2)', '[8,30)'); ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, gone text, a int)",
            "INSERT INTO {s}.{n} VALUES (1, 'x', 1)",
            "ALTER TABLE {s}.{n} DROP COLUMN gone, ADD COLUMN b text DEFAULT 'missing' NOT NULL",
            "ALTER TABLE {s}.{n} ADD COLUMN gone int",
            "CREATE FUNCTION {s}.{n}_f({s}.{n}) RETURNS text LANGUAGE sql STABLE AS 'SELECT \
                ($1).b'",
            "CREATE VIEW {s}.{n}_v AS SELECT t.{n}_f, t AS whole, t.* FROM {s}.{n} t",
        ],
        questions: &["SELECT v FROM {s}.{n}_v v"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int, a int) PARTITION BY LIST (a)",
            "CREATE TABLE {s}.{n}_1 PARTITION OF {s}.{n} FOR VALUES IN (1, NULL)",
            "CREATE TABLE {s}.{n}_2 PARTITION OF {s}.{n} FOR VALUES IN (2)",
            "CREATE FUNCTION {s}.{n}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := \
                -NEW.id; \
             RETURN NEW; END'",
            "CREATE TRIGGER {n}_t BEFORE INSERT ON {s}.{n} FOR EACH ROW EXECUTE FUNCTION \
                {s}.{n}_f()",
            "ALTER TABLE {s}.{n}_2 DISABLE TRIGGER {n}_t",
            "ALTER TABLE {s}.{n}_2 ADD PRIMARY KEY (id)",
            "ALTER TABLE {s}.{n}_1 ALTER id SET STATISTICS 4",
            "GRANT SELECT ON {s}.{n}_2 TO reader",
            "INSERT INTO {s}.{n} VALUES (1, 1), (2, 2), (3, NULL)",
        ],
        questions: &[
            "SELECT tableoid::pg_catalog.regclass, * FROM {s}.{n} ORDER BY id",
            "BEGIN; INSERT INTO {s}.{n} VALUES (7, 1), (8, 2) RETURNING id; ROLLBACK",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a xml, b bit(3), c bit varying(5), d \
                interval \
             day to second(2), e numeric(7, -2), f timestamptz(3), g \"char\", h char(4), i \
             name, j \
             pg_lsn, k tsquery, l macaddr8, m money, n int[][], o time(1) with time zone)",
            "INSERT INTO {s}.{n} (id, b, c, d, e, f, g, h, j, l, n) VALUES (1, '101', '1', '1 day \
             2.345 s', 12345, '2026-01-01 00:00:00.1239Z', 'x', 'ab', '0/1', \
             '08:00:2b:01:02:03:04:05', '[0:1]={1,2}')",
        ],
        questions: &["SELECT t FROM {s}.{n} t"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, j jsonb CHECK (j IS JSON OBJECT), n int \
             GENERATED ALWAYS AS (JSON_VALUE(j, '$.a' RETURNING int)) STORED)",
            "INSERT INTO {s}.{n} (id, j) VALUES (1, '{\"a\": 5}')",
            "CREATE VIEW {s}.{n}_v AS SELECT x.* FROM {s}.{n}, JSON_TABLE(j, '$' COLUMNS (a int \
                PATH \
             '$.a' DEFAULT 1 ON EMPTY)) x",
        ],
        questions: &["SELECT n FROM {s}.{n}", "SELECT * FROM {s}.{n}_v"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int, b text)",
            "INSERT INTO {s}.{n} VALUES (1, 1, 'x'), (2, 1, 'y')",
            "CREATE VIEW {s}.{n}_w AS SELECT id, rank() OVER w, count(*) FILTER (WHERE a > 0) \
                OVER w AS \
             c, sum(a) OVER (ORDER BY id GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE \
             TIES) AS \
             s FROM {s}.{n} WINDOW w AS (PARTITION BY a ORDER BY b DESC)",
            "CREATE VIEW {s}.{n}_g AS SELECT a, b, grouping(a, b) AS g FROM {s}.{n} GROUP BY \
                GROUPING \
             SETS ((a), ROLLUP (a, b), ())",
            "CREATE VIEW {s}.{n}_l AS SELECT x.id, y.k FROM {s}.{n} x CROSS JOIN LATERAL (SELECT \
                x.a + \
             1 AS k LIMIT 1) y",
            "CREATE VIEW {s}.{n}_u AS WITH RECURSIVE t(k, p) AS MATERIALIZED (VALUES (1, ARRAY[1]) \
             UNION SELECT k + 1, p || k FROM t WHERE k < 3) SELECT * FROM t ORDER BY k DESC FETCH \
             FIRST 2 ROWS WITH TIES",
        ],
        questions: &[
            "SELECT * FROM {s}.{n}_w ORDER BY id",
            "SELECT * FROM {s}.{n}_g ORDER BY 1, 2, 3",
            "SELECT * FROM {s}.{n}_u",
        ],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.\"{n} \"\"q\"\" $ é\" (\"select\" int PRIMARY KEY, \"a.b\" text \
                DEFAULT \
             E'\\\\x', \"'\" int CHECK (\"'\" > 0))",
            "INSERT INTO {s}.\"{n} \"\"q\"\" $ é\" VALUES (1, DEFAULT, 1)",
            "CREATE INDEX \"{n} i.x\" ON {s}.\"{n} \"\"q\"\" $ é\" ((\"a.b\" || ';--'))",
        ],
        questions: &["SELECT t FROM {s}.\"{n} \"\"q\"\" $ é\" t"],
    },
    Recipe {
        sql: &[
            "CREATE TABLE {s}.{n} (id int PRIMARY KEY, a int)",
            "INSERT INTO {s}.{n} VALUES (1, 1)",
            "CREATE RULE {n}_i AS ON INSERT TO {s}.{n} WHERE NEW.a < 0 DO INSTEAD NOTHING",
            "CREATE RULE {n}_u AS ON UPDATE TO {s}.{n} DO ALSO INSERT INTO {s}.{n} VALUES \
                (NEW.id + \
             100, OLD.a)",
            "ALTER TABLE {s}.{n} DISABLE RULE {n}_u",
            "CREATE VIEW {s}.{n}_v AS SELECT id FROM {s}.{n}",
            "CREATE RULE {n}_d AS ON DELETE TO {s}.{n}_v DO INSTEAD (UPDATE {s}.{n} SET a = -1 \
                WHERE id \
             = OLD.id; SELECT 1)",
            "ALTER TABLE {s}.{n} ENABLE ALWAYS RULE {n}_i",
        ],
        questions: &[
            "BEGIN; INSERT INTO {s}.{n} VALUES (2, -1), (3, 1); UPDATE {s}.{n} SET a = 4; DELETE \
                FROM \
             {s}.{n}_v WHERE id = 1; SELECT t FROM {s}.{n} t ORDER BY id; ROLLBACK",
        ],
    },
];

/// How many there are.
pub(crate) const COUNT: usize = RECIPES.len();

/// The object of a recipe, under this name.
pub(crate) fn object(recipe: usize, name: &str) -> Object {
    let recipe = &RECIPES[recipe % COUNT];
    let with_name = |text: &&str| text.replace("{n}", name);
    Object {
        name: name.to_owned(),
        sql: recipe.sql.iter().map(with_name).collect(),
        questions: recipe.questions.iter().map(with_name).collect(),
    }
}
