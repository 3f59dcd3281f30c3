//! NOT NULL over inheritance: its name, its owner, and whether it is inherited. PostgreSQL 18 keeps
//! all of that in pg_constraint; before, a column only has it or not.

use tokio_postgres::Client;

use super::{facts, make, run, version};
use crate::mover::Refusal;
use crate::mover::definition::ddl::{Creation, Target, create};
use crate::schema::catalog::Facts;
use crate::schema::catalog::fingerprint::{differences, fingerprint};
use crate::server_tests::servers::Servers;

const KEPT: &str = r#"
    CREATE TABLE par (a int CONSTRAINT x NOT NULL NO INHERIT, b int NOT NULL,
        c int CONSTRAINT "odd ""nn" NOT NULL,
        d int);
    CREATE TABLE kid (CONSTRAINT own NOT NULL b) INHERITS (par);
    CREATE TABLE more (b int NOT NULL, e int) INHERITS (par);
    CREATE TABLE grandkid (CONSTRAINT g NOT NULL c) INHERITS (kid);
    CREATE TABLE alone (CONSTRAINT n NOT NULL a NO INHERIT) INHERITS (par);
    CREATE TABLE late (a int, b int NOT NULL, c int CONSTRAINT l NOT NULL, d int, e int);
    ALTER TABLE late INHERIT par;
    ALTER TABLE par ALTER d SET NOT NULL;
    CREATE TABLE joined (d int NOT NULL, c int NOT NULL, b int NOT NULL, a int);
    ALTER TABLE joined INHERIT par;
    CREATE DOMAIN named AS int CONSTRAINT my_nn NOT NULL CHECK (VALUE > 1);
    CREATE DOMAIN unnamed AS int NOT NULL;
    CREATE TABLE "ä_table_whose_name_is_so_long_that_postgresql_cuts_names" ("cölumn" int NOT NULL,
        "cölumn_whose_name_is_so_long_that_postgresql_cuts_names_too" int NOT NULL,
        was_of_another int CONSTRAINT another_table_was_of_another_not_null NOT NULL);
    CREATE DOMAIN "ä_domain_whose_name_is_so_long_that_postgresql_cuts_names" AS int NOT NULL;
    CREATE TABLE parted (id int NOT NULL, b int CONSTRAINT "of all" NOT NULL)
        PARTITION BY LIST (id);
    CREATE TABLE part PARTITION OF parted (CONSTRAINT p1nn NOT NULL id) FOR VALUES IN (1);
    CREATE TABLE other PARTITION OF parted FOR VALUES IN (2);
"#;

/// What PostgreSQL keeps of them. It never counts the NOT NULL of a partition that was attached as
/// the partition's own.
const ALL: &str = "
    SELECT format('%s %s %s %s local %s inherited %s', c.relname, t.typname, k.conname, \
    pg_get_constraintdef(k.oid),
        k.conislocal AND NOT coalesce(c.relispartition, false), k.coninhcount)
    FROM pg_constraint k LEFT JOIN pg_class c ON c.oid = k.conrelid LEFT JOIN pg_type t ON t.oid = \
    k.contypid
    WHERE k.contype = 'n' AND k.connamespace = $1::text::regnamespace
    UNION ALL
    SELECT format('%s.%s %s local %s', c.relname, a.attname, a.attnotnull, a.attislocal AND NOT \
    c.relispartition)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0
    ORDER BY 1";

async fn all(client: &Client, schema: &str) -> Vec<String> {
    client
        .query(ALL, &[&schema])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

fn created(facts: &Facts, version: u32) -> Result<Creation, Vec<Refusal>> {
    create(
        facts,
        &Target {
            schema: "shard_0007__incoming",
            final_schema: "shard_0007",
            version,
            closed: &[],
        },
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_nulls_are_carried() {
    let cluster = Servers::start(18, 1);
    let mut client = cluster.app(0).await;
    run(
        &client,
        &format!("CREATE SCHEMA shard_0007; SET search_path = shard_0007; {KEPT}"),
    )
    .await;
    let before = facts(&mut client, "shard_0007").await;
    let creation =
        created(&before, version(&client).await).unwrap_or_else(|refused| panic!("{refused:#?}"));
    assert_eq!(creation.notes, Vec::<String>::new());
    make(&mut client, &creation, "shard_0007__incoming").await;
    let (ours, theirs) = (
        all(&client, "shard_0007").await,
        all(&client, "shard_0007__incoming").await,
    );
    assert_eq!(ours, theirs);
    let made = facts(&mut client, "shard_0007__incoming").await;
    let told: Vec<String> = differences(&before, &made)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(told, Vec::<String>::new());
}

/// PostgreSQL's own choice has no meaning, also where it has to cut names; a name that looks like
/// one has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postgresql_chose_is_told_from_what_somebody_chose() {
    let cluster = Servers::start(18, 1);
    let mut client = cluster.app(0).await;
    run(
        &client,
        &format!("CREATE SCHEMA shard_0007; SET search_path = shard_0007; {KEPT}"),
    )
    .await;
    let facts = facts(&mut client, "shard_0007").await;
    let long = facts
        .relations
        .iter()
        .find(|one| one.name.starts_with("ä_table"))
        .expect("it was created");
    let chosen: Vec<_> = long
        .columns
        .iter()
        .map(|column| column.chosen_not_null_name(&facts, long))
        .collect();
    assert_eq!(
        chosen,
        [None, None, Some("another_table_was_of_another_not_null")]
    );
    let domain = facts
        .types
        .iter()
        .find(|one| one.name.starts_with("ä_domain"))
        .expect("it was created");
    assert_eq!(domain.chosen_not_null_name(), None);
}

/// The fingerprint sees what a statement can change of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_not_null_are_seen() {
    let cluster = Servers::start(18, 1);
    let mut client = cluster.app(0).await;
    run(
        &client,
        &format!("CREATE SCHEMA shard_0007; SET search_path = shard_0007; {KEPT}"),
    )
    .await;
    for (change, expected) in [
        (
            "ALTER DOMAIN named RENAME CONSTRAINT my_nn TO other_nn",
            "type named: name of NOT NULL: my_nn vs other_nn",
        ),
        (
            "ALTER DOMAIN unnamed RENAME CONSTRAINT unnamed_not_null TO u",
            "type unnamed: name of NOT NULL: nothing vs u",
        ),
        (
            "ALTER TABLE alone DROP CONSTRAINT n",
            "table alone: column a: integer NOT NULL NO INHERIT vs integer",
        ),
        (
            "ALTER TABLE par ALTER CONSTRAINT x INHERIT",
            "table par: column a: integer NOT NULL NO INHERIT vs integer NOT",
        ),
    ] {
        let before = facts(&mut client, "shard_0007").await;
        run(&client, change).await;
        let after = facts(&mut client, "shard_0007").await;
        let seen: String = differences(&before, &after)
            .iter()
            .map(|one| format!("{one}\n"))
            .collect();
        assert!(seen.contains(expected), "{change}: {seen}");
        assert_ne!(
            fingerprint(&before),
            fingerprint(&after),
            "{change}: {seen}"
        );
    }
}

/// What a target before 18 cannot keep, and what no target can make, is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_not_null_that_cannot_be_made_again() {
    let cluster = Servers::start(18, 1);
    let mut client = cluster.app(0).await;
    run(
        &client,
        &format!("CREATE SCHEMA shard_0007; SET search_path = shard_0007; {KEPT}"),
    )
    .await;
    let kept = facts(&mut client, "shard_0007").await;
    let refused = created(&kept, 150_000).unwrap_err();
    for object in ["column par.a", "column alone.a"] {
        assert!(
            refused
                .iter()
                .any(|one| one.object == object && one.reason.contains("NO INHERIT")),
            "{refused:#?}"
        );
    }
    assert_eq!(refused.len(), 2, "{refused:#?}");
    run(
        &client,
        "ALTER TABLE alone DROP CONSTRAINT n; ALTER TABLE par DROP CONSTRAINT x",
    )
    .await;
    let notes = created(&facts(&mut client, "shard_0007").await, 150_000)
        .unwrap()
        .notes;
    for said in [
        "table kid has a NOT NULL of its own besides",
        "column kid.b: its NOT NULL loses the name own",
        "type named: its NOT NULL loses the name my_nn",
        "column part.id: its NOT NULL loses the name p1nn",
    ] {
        assert!(
            notes.iter().any(|note| note.starts_with(said)),
            "{said}: {notes:#?}"
        );
    }
    // Columns in another order cannot be made with INHERITS.
    run(
        &client,
        "DROP SCHEMA shard_0007 CASCADE; CREATE SCHEMA shard_0007; CREATE TABLE par (a int, b int);
         CREATE TABLE turned (b int, a int); ALTER TABLE turned INHERIT par; ALTER TABLE par ALTER \
         a SET NOT NULL",
    )
    .await;
    let notes = created(&facts(&mut client, "shard_0007").await, 180_000)
        .unwrap()
        .notes;
    assert!(
        notes[0].starts_with("table turned has a NOT NULL only from what it inherits"),
        "{notes:#?}"
    );
}

/// Up to 17 a child's column can be null although its parent's cannot. INHERITS would make it NOT
/// NULL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_can_be_null_in_a_child_only() {
    let cluster = Servers::start(15, 1);
    let mut client = cluster.app(0).await;
    run(
        &client,
        "CREATE SCHEMA shard_0007; SET search_path = shard_0007; CREATE TABLE par (a int, b int \
            NOT NULL);
         CREATE TABLE kid () INHERITS (par); ALTER TABLE ONLY par ALTER a SET NOT NULL",
    )
    .await;
    for version in [150_000, 180_000] {
        let refused = created(&facts(&mut client, "shard_0007").await, version).unwrap_err();
        let said = refused
            .iter()
            .map(|one| format!("{one}: {}\n", one.remedy))
            .collect::<String>();
        let expected = "column kid.a can be null, although that of par, which it inherits, cannot: \
                        ALTER TABLE kid ALTER COLUMN a SET NOT NULL, or DROP it from par\n";
        assert_eq!(said, expected);
    }
    run(&client, "ALTER TABLE kid ALTER COLUMN a SET NOT NULL").await;
    created(&facts(&mut client, "shard_0007").await, 180_000).unwrap();
}
