//! The commands of docs/runbooks.md run as written: a test of each section makes the trouble, runs
//! the commands of the page, and counts the rows of the writers afterwards.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgshard::Router;
use pgshard::config::Config;
use pgshard::dev::{Binaries, StopMode};
use serde_json::Value;

use crate::manual::{BEFORE, Block, blocks};
use crate::router::pooler::Pooler;
use crate::support::{Ran, World, Writers, lines, other, until};

/// The sections that have a test here.
const PLAYED: [&str; 12] = [
    "One host is restored",
    "One shard is restored",
    "The config is lost",
    "The map is lost",
    "The control database is lost",
    "A host fails over",
    "A source fails over in the middle of a move",
    "A disk is filling",
    "A move that you did not start",
    "PostgreSQL is upgraded",
    "pgshard is upgraded",
    "Backups",
];

/// Prints which commands fail, as `## 1 check`, and continues.
const SAYS_WHAT_FAILS: &str = r###"
set +e
eval "typed_$(declare -f pgshard)"
pgshard() {
    typed_pgshard "$@"; local code=$?
    [ $code = 0 ] || echo "## $code $*" >&2
    return $code
}
trap 'code=$?
case "$BASH_COMMAND" in
*pgshard\ *|"return "*) ;;
*) echo "## $code $BASH_COMMAND" >&2 ;;
esac' ERR
"###;

fn page() -> String {
    std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks.md"))
        .unwrap()
}

/// The text of a section.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let begin = format!("\n## {heading}\n");
    page.split(&begin)
        .nth(1)
        .unwrap_or_else(|| panic!("no {heading}"))
        .split("\n## ")
        .next()
        .unwrap()
}

/// A section that is typed, block by block.
struct Book<'a> {
    world: &'a World,
    blocks: VecDeque<Block>,
    environment: Vec<(String, String)>,
}

/// What a block has printed.
struct Typed {
    all: String,
    failed: Vec<String>,
}

impl<'a> Book<'a> {
    fn open(world: &'a World, version: u32, heading: &str) -> Book<'a> {
        assert!(PLAYED.contains(&heading), "{heading} is in the list");
        let blocks = blocks(section(&page(), heading)).into_iter();
        let blocks = blocks.filter(|block| block.language == "sh" && block.not_run.is_none());
        let programs = Binaries::of_major(version).unwrap().program("psql");
        let ours = PathBuf::from(env!("CARGO_BIN_EXE_pgshard"));
        let [ours, programs] =
            [&ours, &programs].map(|program| program.parent().unwrap().display().to_string());
        let mut book = Book {
            world,
            blocks: blocks.collect(),
            environment: Vec::new(),
        };
        book.set(
            "PATH",
            &format!("{ours}:{programs}:{}", std::env::var("PATH").unwrap()),
        );
        book.set("PGSHARD_CONFIG", world.config.path.to_str().unwrap());
        book.set("PGSHARD_SNAPSHOT_MS", "5000");
        for (at, server) in world.servers.servers().iter().enumerate() {
            book.set(&format!("DB{}_URL", at + 1), &server.url());
        }
        book
    }

    fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Types the next block; no command may fail.
    async fn next(&mut self) -> Typed {
        self.next_but(&[]).await
    }

    /// Types the next block, in which these commands, and no others, do not end with 0: `1 check`.
    async fn next_but(&mut self, failing: &[&str]) -> Typed {
        let block = self
            .blocks
            .pop_front()
            .expect("the section has another block");
        let typed = self.run(&block.text).await;
        assert_eq!(typed.failed, failing, "{}\n{}", block.text, typed.all);
        typed
    }

    /// Leaves a block out that is for another case.
    fn skip(&mut self) {
        self.blocks
            .pop_front()
            .expect("the section has another block");
    }

    async fn run(&self, text: &str) -> Typed {
        let mut bash = tokio::process::Command::new("timeout");
        bash.args([
            "200",
            "bash",
            "-c",
            &format!("{BEFORE}{SAYS_WHAT_FAILS}{text}"),
        ]);
        bash.env_remove("PGSHARD_FAILPOINT")
            .env_remove("RUST_LOG")
            .env_remove("COLUMNS");
        bash.envs(self.environment.iter().map(|(name, value)| (name, value)));
        bash.current_dir(self.world.servers.directory())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = bash.output().await.unwrap();
        let [out, err] = [&output.stdout, &output.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let failed = err
            .lines()
            .filter_map(|line| line.strip_prefix("## "))
            .map(str::to_owned)
            .collect();
        Typed {
            all: format!("{out}\n{err}"),
            failed,
        }
    }

    /// Nothing is left to be typed, and `check` finds nothing that needs an operator.
    async fn end(self) {
        assert!(self.blocks.is_empty(), "{:?}", self.blocks);
        let checked = self.world.run(&["check"]).await.last();
        let bad =
            |found: &&Value| !["notice", "warning"].contains(&found["severity"].as_str().unwrap());
        let bad: Vec<_> = checked["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(bad)
            .cloned()
            .collect();
        assert_eq!(bad, [Value::Null; 0]);
    }
}

/// Rows that a writer noted, each with its ID.
#[derive(Debug, Default)]
struct Rows(Vec<(i64, String)>);

impl Rows {
    /// Writes to these shards, so many rows each.
    async fn write(
        &mut self,
        router: &Router,
        shards: impl IntoIterator<Item = u16>,
        name: &str,
        rows: usize,
    ) {
        for shard in shards {
            for _ in 0..rows {
                let sql = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
                let row = router.by_key(shard).query_one(sql, &[&name]).await.unwrap();
                self.0.push((row.get(0), name.to_owned()));
            }
        }
    }

    /// Every row is in the shard of its ID, and no ID was given twice.
    async fn are_there(&self, router: &Router) {
        let ids: BTreeSet<i64> = self.0.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), self.0.len(), "no ID comes twice");
        for (id, name) in &self.0 {
            let sql = "SELECT name FROM {shard}.users WHERE id = $1
                UNION ALL SELECT title FROM {shard}.photos WHERE id = $1";
            let found = router.by_id(*id).unwrap().query(sql, &[id]).await.unwrap();
            let found: Vec<String> = found.iter().map(|row| row.get(0)).collect();
            assert_eq!(found, [name.as_str()], "{id}");
        }
    }
}

/// An application that writes to some shards all the while, and sees no error.
struct Steady {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Rows>,
}

impl Steady {
    async fn start(world: &World, shards: Vec<u16>) -> Steady {
        let (router, stop) = (world.router().await, Arc::new(AtomicBool::new(false)));
        let ends = stop.clone();
        let task = tokio::spawn(async move {
            let mut rows = Rows::default();
            while !ends.load(Ordering::Relaxed) {
                rows.write(&router, shards.iter().copied(), "steady", 1)
                    .await;
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            rows
        });
        Steady { stop, task }
    }

    async fn end(self) -> Rows {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no call fails")
    }
}

/// The url of another database on the same server.
fn another_database(url: &str, name: &str) -> String {
    format!("{}/{name}", url.rsplit_once('/').unwrap().0)
}

#[test]
fn each_runbook_is_played() {
    let page = page();
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    assert_eq!(headings.collect::<Vec<_>>(), PLAYED);
}

/// db1's standby takes its place while a move from it waits for a resume.
async fn a_source_fails_over(version: u32, knows_the_move: bool) {
    let world = World::with_standby(version, 4, 0).await;
    let mut writers = Some(Writers::start(&world, 2).await);
    let mut rows = Rows::default();
    let router = world.router().await;
    rows.write(&router, 0..4, "before", 5).await;
    let mut notes = None;
    if !knows_the_move {
        notes = Some(writers.take().unwrap().stop().await);
        world.servers.cut_off(2, 0).await;
    }
    let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
    assert_eq!(world.run_until(&args, "after loaded=kill").await.code(), -9);
    if let Some(writers) = writers {
        notes = Some(writers.stop().await);
        world.servers.cut_off(2, 0).await;
    }
    let notes = notes.unwrap();
    tokio::task::block_in_place(|| world.servers.server(0).stop(StopMode::Immediate)).unwrap();
    world.servers.promote(2).await;
    let mut book = Book::open(
        &world,
        version,
        "A source fails over in the middle of a move",
    );
    book.set("DB1_URL", &world.servers.server(2).url());

    let looked = book.run(&book.blocks[0].text).await;
    book.skip();
    // The move is left to decide. An ID clock may have had to be raised before: if there was no
    // write since the mover died, the copy has the shard's last ID.
    let left = ["4 recover db1 --plan", "4 recover db1", "8 recover db1"];
    assert!(
        looked
            .failed
            .iter()
            .all(|failed| left.contains(&failed.as_str())),
        "{}",
        looked.all
    );
    let listed = !world.run(&["moves", "list"]).await.ended(0).last()["moves"]
        .as_array()
        .unwrap()
        .is_empty();
    assert_eq!(listed, knows_the_move, "{}", looked.all);
    if listed {
        book.next().await;
    } else {
        book.skip();
    }
    book.next().await;
    book.end().await;
    rows.write(&world.router().await, 0..4, "after", 5).await;
    rows.0.extend(
        notes
            .flawless()
            .acknowledged
            .iter()
            .map(|row| (row.id, row.payload.clone())),
    );
    rows.are_there(&world.router().await).await;
    assert_eq!(
        world.state(2, 0).await,
        if knows_the_move { "moved" } else { "serving" }
    );
    let slots =
        "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name NOT LIKE '%\\_back\\_%'";
    for server in [1, 2] {
        assert_eq!(lines(&world.servers.app(server).await, slots).await, "");
    }
    let incoming = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE '%\\_\\_incoming'";
    assert_eq!(lines(&world.servers.app(1).await, incoming).await, "");
}

on_each_version! {
    async fn one_host_is_restored(version) {
        let world = World::new(&[version, version], 8).await;
        world.run(&["bootstrap"]).await.ended(0);
        let writers = Writers::start(&world, 2).await;
        let mut rows = Rows::default();
        rows.write(&world.router().await, 0..8, "before", 5).await;
        let notes = writers.stop().await;
        tokio::task::block_in_place(|| world.servers.base_backup(version, 0));
        // Shard 0 leaves, and is written to; shard 4 comes, and what is written then is lost with
        // db1.
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        world
            .run(&["move", "4", "--to", "db1", "--mode", "online", "--yes"])
            .await
            .ended(0);
        rows.write(&world.router().await, [0, 5, 6, 7], "since", 3)
            .await;
        Rows::default()
            .write(&world.router().await, [1, 2, 3, 4], "lost", 3)
            .await;
        tokio::task::block_in_place(|| world.servers.restore_to_a_new_timeline(0));

        let mut book = Book::open(&world, version, "One host is restored");
        let planned = book.next_but(&["4 recover db1 --plan"]).await;
        assert!(
            planned.all.contains(
                "it does not know that shard 0 went from db1 to \
            db2"
            ),
            "{}",
            planned.all
        );
        // db2 keeps its log for a move that db1 has forgotten.
        let looked = book.run("pgshard check").await;
        let after = looked.all.split("stray_slot").nth(1);
        assert!(
            after.is_some_and(|after| after.contains("`pgshard moves gc`")),
            "{}",
            looked.all
        );
        // Shard 4 is nowhere: the command that is printed takes back what db2 has kept of it.
        let first = book.blocks[0].text.clone();
        let tried = book.run(&first).await;
        let command = tried.all.lines().find_map(|line| {
            line.trim().strip_prefix(
                "pgshard moves \
            repair 4 ",
            )
        });
        let command = command
            .unwrap_or_else(|| panic!("{}", tried.all))
            .trim_matches('`');
        let decided = book.run(&format!("pgshard moves repair 4 {command}")).await;
        assert_eq!(decided.failed, [""; 0], "{}", decided.all);
        // The old copies that this has made are not audited, and `check` warns about them.
        book.next_but(&["1 check"]).await;
        book.end().await;
        rows.write(&world.router().await, 0..8, "after", 5).await;
        rows.0.extend(
            notes
                .flawless()
                .acknowledged
                .iter()
                .map(|row| (row.id, row.payload.clone())),
        );
        rows.are_there(&world.router().await).await;
        world.audit_places().await;
    }

    async fn one_shard_is_restored(version) {
        let world = World::with_spare(&[version, version, version], 8).await;
        let writers = Writers::start(&world, 2).await;
        let mut rows = Rows::default();
        let router = world.router().await;
        rows.write(&router, [3], "before", 20).await;
        let notes = writers.stop().await;
        // A copy of db1 as it is now.
        tokio::task::block_in_place(|| world.servers.make_standby(version, 2, 0));
        world.servers.cut_off(2, 0).await;
        world.write(
            "migrations/0002_captions.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN caption \
            text",
        );
        world.run(&["migrate", "up"]).await.ended(0);
        rows.write(&router, [3], "since", 10).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute("DROP TABLE shard_0003.photos")
            .await
            .unwrap();

        let steady = Steady::start(&world, vec![0, 1, 2, 4, 5, 6, 7]).await;
        let mut book = Book::open(&world, version, "One shard is restored");
        book.set("COPY_URL", &world.servers.server(2).url());
        let looked = book.next_but(&["1 check"]).await;
        assert!(looked.all.contains("objects_missing"), "{}", looked.all);
        book.next().await;
        let insert = "INSERT INTO {shard}.users (name) VALUES ('never')";
        assert!(
            router.by_key(3_u16).execute(insert, &[]).await.is_err(),
            "its callers get errors"
        );
        book.next().await;
        let differs = book.next_but(&["1 check --ddl"]).await;
        assert!(differs.all.contains("ddl_differs"), "{}", differs.all);
        for _ in 0..3 {
            book.next().await;
        }
        book.end().await;
        let seen = steady.end().await;
        seen.are_there(&router).await;
        let expected = "SELECT (count(caption) = 0)::text FROM shard_0003.photos";
        assert_eq!(lines(&db1, expected).await, "true\n");
        rows.write(&router, [3], "after", 5).await;
        rows.0.extend(
            notes
                .flawless()
                .acknowledged
                .iter()
                .map(|row| (row.id, row.payload.clone())),
        );
        rows.are_there(&router).await;
        world.run(&["check", "--ddl", "--rows"]).await.ended(0);
    }

    async fn the_config_is_lost(version) {
        let world = World::new(&[version, version], 8).await;
        world.run(&["bootstrap"]).await.ended(0);
        world
            .run(&["move", "1", "--to", "db2", "--yes"])
            .await
            .ended(0);
        let writers = Writers::start(&world, 2).await;
        let (path, folder) = (&world.config.path, world.servers.directory());
        let lost = Config::load(path).unwrap();
        std::fs::remove_file(path).unwrap();
        // One url is not enough: the host behind it remembers the other.
        let mut book = Book::open(&world, version, "The config is lost");
        let half = book
            .run("pgshard --config half.toml init --from \"$DB1_URL\"")
            .await;
        assert!(
            half.all
                .contains("the hosts know of db2, and no url leads to it"),
            "{}",
            half.all
        );
        let twice = book
            .run(
                "pgshard --config half.toml init --from \"$DB1_URL\" \
            --from \"$DB1_URL\"",
            )
            .await;
        assert_eq!(twice.failed.len(), 1, "{}", twice.all);
        let open = book
            .run(
                "pgshard --config half.toml init --from \
            postgres://app:secret@127.0.0.1/app",
            )
            .await;
        let said = open.all.split("## ").next().unwrap();
        assert!(
            said.contains("the url holds a password") && !said.contains("secret"),
            "{said}"
        );
        assert!(!folder.join("half.toml").exists());
        book.next().await;

        let found = Config::load(folder.join("found.toml")).unwrap();
        let of = |config: &Config| {
            let map = config.map.as_ref().unwrap();
            map.iter()
                .map(|(shard, host, epoch)| (shard, host.clone(), epoch))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&found), of(&lost));
        let cluster = |config: &Config| {
            format!(
                "{:?}",
                (
                    &config.cluster.shards,
                    &config.cluster.epoch,
                    &config.cluster.prefix,
                    &config.cluster.key,
                    &config.cluster.migrations
                )
            )
        };
        assert_eq!(cluster(&found), cluster(&lost));
        std::fs::rename(folder.join("found.toml"), path).unwrap();
        book.end().await;
        world
            .run(&["move", "2", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    async fn the_map_is_lost(version) {
        let world = World::new(&[version, version], 8).await;
        let old = std::fs::read_to_string(&world.config.path).unwrap();
        let writers = Writers::start(&world, 2).await;
        world
            .run(&["move", "0,1", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        world
            .run(&["move", "5", "--to", "db1", "--mode", "online", "--yes"])
            .await
            .ended(0);
        world.write("pgshard.toml", &old);
        // Applications that start now follow the signposts.
        let mut rows = Rows::default();
        rows.write(&world.router().await, 0..8, "led", 2).await;
        let mut book = Book::open(&world, version, "The map is lost");
        let typed = book.next().await;
        assert!(typed.all.contains("db2"), "{}", typed.all);
        book.end().await;
        let notes = writers.stop().await;
        rows.are_there(&world.router().await).await;
        world.audit(notes.flawless()).await;
    }

    async fn the_control_database_is_lost(version) {
        let world = World::with_spare(&[version, version, version], 8).await;
        let spare = world.servers.server(2);
        let admin = another_database(&spare.superuser_url(), "postgres");
        let root = crate::support::connect(&admin).await;
        root.batch_execute("CREATE DATABASE control OWNER app")
            .await
            .unwrap();
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        world.write("old.toml", &text);
        let kept = text.split("[map]").next().unwrap();
        let url = another_database(&spare.url(), "control");
        world.write(
            "pgshard.toml",
            &format!(
                "{kept}[map]\nstore = \"postgres\"\nurl \
            = \"{url}\"\n"
            ),
        );
        let old = world.servers.directory().join("old.toml");
        world
            .run(&["map", "import", old.to_str().unwrap()])
            .await
            .ended(0);
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        let writers = Writers::start(&world, 2).await;
        root.batch_execute("DROP DATABASE control WITH (FORCE)")
            .await
            .unwrap();
        let mut book = Book::open(&world, version, "The control database is lost");
        book.set("ADMIN_URL", &admin);
        book.next().await;
        book.end().await;
        world
            .run(&["move", "1", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        let notes = writers.stop().await;
        // The audit reads the map in the file.
        let map = world.text(&["map", "export"]).await.ended(0).stdout.clone();
        world.write("pgshard.toml", &format!("{kept}{map}"));
        root.batch_execute("DROP DATABASE control WITH (FORCE)")
            .await
            .unwrap();
        let rows = notes
            .flawless()
            .acknowledged
            .iter()
            .map(|row| (row.id, row.payload.clone()));
        Rows(rows.collect()).are_there(&world.router().await).await;
        world.run(&["check"]).await.ended(0);
    }

    async fn a_host_fails_over(version) {
        let world = World::with_standby(version, 4, 0).await;
        let pooler = Pooler::on_the_way(&world, 0).await;
        let mut rows = Rows::default();
        let router = world.router().await;
        rows.write(&router, 0..4, "before", 5).await;
        world.servers.caught_up(2, 0).await;
        tokio::task::block_in_place(|| world.servers.server(0).stop(StopMode::Immediate)).unwrap();
        world.servers.promote(2).await;
        let shard = (0..4).find(|shard| world.host_of(*shard) == 0).unwrap();
        let sql = "SELECT FROM {shard}.users LIMIT 1";
        router.by_key(shard).query(sql, &[]).await.expect_err(
            "PgBouncer leads to the former \
            primary",
        );

        let mut book = Book::open(&world, version, "A host fails over");
        pooler.name(world.servers.server(2).port());
        book.set(
            "PGBOUNCER_URL",
            &format!("postgres://app@127.0.0.1:{}/pgbouncer", pooler.port()),
        );
        book.next().await;
        // The router that met the former primary continues, once it has forgotten that the host was
        // down.
        let goes_on = async {
            while router.by_key(shard).query(sql, &[]).await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), goes_on)
            .await
            .expect(
                "calls reach the \
            promoted server",
            );
        book.next().await;
        book.next().await;
        book.end().await;
        rows.write(&router, 0..4, "after", 5).await;
        rows.are_there(&router).await;
        let recorded = "SELECT timeline::text FROM pgshard.identity WHERE host_name = 'db1'";
        for server in [1, 2] {
            assert_eq!(
                lines(&world.servers.app(server).await, recorded).await,
                "2\n"
            );
        }
    }

    async fn a_source_fails_over_with_its_journal(version) {
        a_source_fails_over(version, true).await;
    }

    async fn a_source_fails_over_and_forgets_the_move(version) {
        a_source_fails_over(version, false).await;
    }

    async fn a_disk_is_filling(version) {
        let world = World::new(&[version, version], 8).await;
        let writers = Writers::start(&world, 2).await;
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        let superuser = world.servers.superuser(1).await;
        let stray = "SELECT pg_create_logical_replication_slot('pgshard_stray', 'pgoutput')";
        superuser.batch_execute(stray).await.unwrap();
        for _ in 0..3 {
            let filled = "SELECT pg_logical_emit_message(true, '', 'x'); SELECT pg_switch_wal()";
            superuser.batch_execute(filled).await.unwrap();
        }
        let kept = "SELECT slot_name::text FROM pg_replication_slots ORDER BY 1";
        assert_eq!(lines(&superuser, kept).await.lines().count(), 2);

        let mut book = Book::open(&world, version, "A disk is filling");
        let looked = book.next_but(&["1 check"]).await;
        assert!(looked.all.contains("stray_slot"), "{}", looked.all);
        book.next().await;
        assert_eq!(
            lines(&superuser, kept).await,
            "",
            "nothing keeps the log any more"
        );
        book.next().await;
        book.next().await;
        book.end().await;
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    async fn somebody_elses_move(version) {
        let world = World::new(&[version, version], 4).await;
        let writers = Writers::start(&world, 2).await;
        let db1 = world.servers.app(0).await;
        let args = [
            "move", "0,1", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let mover = world.command(&args, &[]).spawn().unwrap();
        until(
            &db1,
            "SELECT count(*) = 2 FROM pgshard.move WHERE phase = 'ready'",
        )
        .await;
        let mut book = Book::open(&world, version, "A move that you did not start");
        let shown = book.next().await;
        assert!(shown.all.contains("ready"), "{}", shown.all);
        book.next().await;
        book.next().await;
        book.end().await;
        let ended = Ran::of(mover).await;
        ended.ended(130);
        for shard in [0, 1] {
            assert_eq!(world.state(0, shard).await, "serving");
        }
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    async fn pgshard_is_upgraded(version) {
        let world = World::new(&[version, version], 8).await;
        for host in [0, 1] {
            // As the control schema of an earlier release.
            let sql = "DROP TABLE pgshard.known_host, pgshard.identity;
                DELETE FROM pgshard.control_migration WHERE version >= 7";
            world
                .servers
                .app(host)
                .await
                .batch_execute(sql)
                .await
                .unwrap();
        }
        let writers = Writers::start(&world, 2).await;
        let mut book = Book::open(&world, version, "pgshard is upgraded");
        let old = book.next_but(&["1 check"]).await;
        assert!(old.all.contains("control_old"), "{}", old.all);
        book.next().await;
        book.end().await;
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    /// The dumps are good: they are restored into an empty database, with all rows that were there
    /// before.
    async fn dumps_restore_every_row(version) {
        let world = World::new(&[version, version], 4).await;
        let mut rows = Rows::default();
        rows.write(&world.router().await, 0..2, "before", 50).await;
        let writers = Writers::start(&world, 2).await;
        let mut book = Book::open(&world, version, "Backups");
        book.next().await;
        let notes = writers.stop().await;
        let restored = book
            .run(
                "psql \"$DB2_URL\" -c 'CREATE DATABASE restored'
                for dump in *.dump; do pg_restore --exit-on-error -d \"${DB2_URL%/app}/restored\" \
                $dump; done",
            )
            .await;
        assert_eq!(restored.failed, [""; 0], "{}", restored.all);
        book.end().await;
        let client = crate::support::connect(&another_database(
            &world.servers.server(1).url(),
            "restored",
        ))
        .await;
        let sql = "SELECT id::text FROM shard_0000.users WHERE name = 'before'
            UNION ALL SELECT id::text FROM shard_0001.users WHERE name = 'before'";
        let found: BTreeSet<i64> = lines(&client, sql)
            .await
            .lines()
            .map(|id| id.parse().unwrap())
            .collect();
        assert_eq!(found, rows.0.iter().map(|(id, _)| *id).collect());
        world.audit(notes.flawless()).await;
    }
}

on_mixed_versions! {
    15: async fn postgresql_is_upgraded(version) {
        let mut world = World::with_spare(&[version, version, other(version)], 6).await;
        let writers = Writers::start(&world, 2).await;
        let mut book = Book::open(&world, 18, "PostgreSQL is upgraded");
        book.next().await;
        let upgraded = Config::load(&world.config.path).unwrap();
        book.next().await;
        book.next().await;
        book.end().await;
        assert!(
            !Config::load(&world.config.path)
                .unwrap()
                .hosts
                .contains_key("db1")
        );
        assert_eq!(world.state(2, 0).await, "serving");
        let notes = writers.stop().await;
        world.config = upgraded;
        world.audit(notes.flawless()).await;
    }
}
