//! The director: moves shards back and forth, and lets things happen to movers and servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use futures_util::FutureExt;
use pgshard::dev::StopMode;
use pgshard::mover::{FAILPOINTS, ROLLBACK_FAILPOINTS};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio_postgres::Client;

use super::compare::{Side, rows_differ};
use super::overseer::{last_look, old_copy};
use super::state::{Shared, add};
use super::support::Ran;

/// What may happen to a move, with its frequency; `--without` takes these names.
pub(crate) const FATES: [(&str, u32); 13] = [
    ("plain", 6),
    ("kill", 5),
    ("failpoint", 5),
    ("fail", 2),
    ("sleep", 2),
    ("restart", 3),
    ("reset", 2),
    ("rival", 2),
    ("hold", 2),
    ("pause", 1),
    ("abort", 2),
    ("lock", 3),
    ("ddl", 3),
];

const LEASE: (&str, &str) = ("PGSHARD_LEASE_MS", "3000");

pub(crate) struct Director {
    shared: Arc<Shared>,
    rng: Rng,
    feed: Option<Child>,
    feeds: bool,
    /// Whether transactions may be in a mover's way.
    crowded: bool,
    /// Until when a table may be locked.
    locked_until: Instant,
}

impl Director {
    pub(crate) fn new(shared: Arc<Shared>, crowded: bool) -> Director {
        let mut rng = Rng::with_seed(shared.case.seed.wrapping_mul(77));
        let feeds = rng.bool() && shared.case.has("feed");
        Director {
            shared,
            rng,
            feed: None,
            feeds,
            crowded,
            locked_until: Instant::now(),
        }
    }

    pub(crate) async fn run(mut self) {
        for _ in 0..self.shared.case.moves {
            if self.shared.failed().is_some() {
                break;
            }
            if self.feeds {
                self.look_after_feed().await;
            }
            self.one().await;
            if self.shared.failed().is_some() {
                break;
            }
            let rest = self.rng.u64(100..1200);
            tokio::time::sleep(Duration::from_millis(rest)).await;
            self.after().await;
        }
        self.finish().await;
    }

    /// One of these, chosen by weight.
    fn fate(&mut self) -> &'static str {
        let shared = &self.shared;
        let possible = |name: &str| shared.case.has(name) && (name != "restart" || shared.crashes);
        let fates: Vec<_> = FATES
            .into_iter()
            .filter(|(name, _)| possible(name))
            .collect();
        let mut at = self
            .rng
            .u32(0..fates.iter().map(|fate| fate.1).sum::<u32>().max(1));
        for (name, weight) in fates {
            if at < weight {
                return name;
            }
            at -= weight;
        }
        "plain"
    }

    async fn one(&mut self) {
        let fate = self.fate();
        let kept = self.kept().await;
        let rolls_back =
            !kept.is_empty() && self.rng.u8(0..3) == 0 && self.shared.case.has("rollback");
        let mut args: Vec<String>;
        let shards: Vec<u16>;
        if rolls_back {
            let (id, its_shards) = kept[self.rng.usize(0..kept.len())].clone();
            args = ["moves", "rollback", &id, "--yes"]
                .map(str::to_owned)
                .into();
            shards = its_shards;
        } else {
            let mut hosts = Vec::new();
            for gate in &self.shared.gates {
                hosts.push(*gate.host.read().await);
            }
            let from = if hosts.contains(&0) && (!hosts.contains(&1) || self.rng.bool()) {
                0
            } else {
                1
            };
            let mut there: Vec<u16> = (0..hosts.len() as u16)
                .filter(|shard| hosts[usize::from(*shard)] == from)
                .collect();
            self.rng.shuffle(&mut there);
            there.truncate(if self.shared.case.has("group") {
                self.rng.usize(1..4)
            } else {
                1
            });
            there.sort_unstable();
            shards = there;
            let list = shards
                .iter()
                .map(u16::to_string)
                .collect::<Vec<_>>()
                .join(",");
            let blocking = self.rng.u8(0..5) == 0 && self.shared.case.has("blocking");
            let mode = if blocking { "blocking" } else { "online" };
            args = [
                "move",
                &list,
                "--to",
                &format!("db{}", 2 - from),
                "--yes",
                "--mode",
                mode,
            ]
            .map(str::to_owned)
            .into();
            if self.rng.u8(0..6) == 0 {
                args.push("--no-reverse-replication".to_owned());
            }
            // Then much of what is altered comes between the comparison and the fence.
            if fate == "hold" || fate == "ddl" && self.rng.bool() {
                args.push("--hold".to_owned());
            }
        }
        args.push(format!(
            "--jobs={}",
            if fate == "lock" { 1 } else { self.rng.u8(1..4) }
        ));
        let mut environment = vec![LEASE];
        let all: Vec<&str> = FAILPOINTS.into_iter().chain(ROLLBACK_FAILPOINTS).collect();
        let place = all[self.rng.usize(0..all.len())];
        let failpoint = match fate {
            "failpoint" => format!("{place}=kill"),
            "fail" => format!("{place}=fail"),
            "sleep" if self.rng.bool() => format!("{place}=stop"),
            _ => String::new(),
        };
        if !failpoint.is_empty() {
            environment.push(("PGSHARD_FAILPOINT", &failpoint));
        }
        // Small tables get many chunks.
        if self.rng.bool() {
            environment.push(("PGSHARD_CHUNK_BYTES", "12000"));
        }
        self.shared
            .tell(format!("{} [{fate} {failpoint}]", args.join(" ")));
        add(&self.shared.counts.moves);
        if fate == "lock" {
            // Some tables are locked from the moment their shard is claimed.
            let late = shards.len() > 1 && self.rng.u8(0..4) > 0;
            self.lock(*shards.last().expect("a move is of shards"), late)
                .await;
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let child = self
            .shared
            .world
            .command(&args, &environment)
            .spawn()
            .expect("the command was built");
        let pid = child
            .id()
            .and_then(|pid| Pid::from_raw(pid as i32))
            .expect("it was not waited for");
        let running = tokio::spawn(ended(child));
        self.meet(fate, pid, &shards, &running).await;
        if failpoint.ends_with("=stop") || fate == "sleep" {
            // It may stop again and again.
            while !running.is_finished() {
                let _ = kill_process(pid, Signal::CONT);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let ran = running
            .await
            .expect("it is waited for")
            .unwrap_or_else(|| stuck(&self.shared, &args));
        let quiet = ["plain", "hold", "pause"].contains(&fate);
        let altered = shards.iter().any(|shard| self.is_altered(*shard));
        let disturbed = !quiet || altered;
        self.judge(&args, &ran, disturbed);
        // No mover looks.
        if !quiet && self.rng.u8(0..4) == 0 && self.shared.case.has("ddl") {
            self.alter(&shards).await;
        }
        self.settle(fate, &shards).await;
    }

    /// Whether a shard was altered: a move may refuse it.
    fn is_altered(&self, shard: u16) -> bool {
        self.shared.gates[usize::from(shard)]
            .altered
            .load(Ordering::SeqCst)
    }

    /// Lets it happen while the mover runs.
    async fn meet(
        &mut self,
        fate: &str,
        pid: Pid,
        shards: &[u16],
        running: &tokio::task::JoinHandle<Option<Ran>>,
    ) {
        let soon = |rng: &mut Rng| {
            Duration::from_millis(if rng.bool() {
                rng.u64(20..500)
            } else {
                rng.u64(300..3000)
            })
        };
        let wait = soon(&mut self.rng);
        if !matches!(fate, "plain" | "failpoint" | "fail" | "lock") {
            let until = Instant::now() + wait;
            while Instant::now() < until && !running.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        if running.is_finished() {
            return;
        }
        match fate {
            "kill" => {
                add(&self.shared.counts.kills);
                let _ = kill_process(pid, Signal::KILL);
            }
            "failpoint" => add(&self.shared.counts.kills),
            "sleep" => {
                let _ = kill_process(pid, Signal::STOP);
                let nap = Duration::from_millis(self.rng.u64(200..6000));
                tokio::time::sleep(nap).await;
                if self.rng.bool() {
                    self.end_open(1, true).await;
                }
                let _ = kill_process(pid, Signal::CONT);
            }
            "restart" => {
                let which = self.rng.u8(0..5);
                for host in 0..2 {
                    if which == 4 || usize::from(which % 2) == host {
                        self.shared.tell(format!("db{} restarts", host + 1));
                        add(&self.shared.counts.restarts);
                        let server = self.shared.world.servers.server(host);
                        tokio::task::block_in_place(|| server.restart(StopMode::Immediate))
                            .expect("it starts again");
                    }
                }
            }
            "reset" => {
                let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE application_name ~ '^pgshard (mover|[0-9a-f-]{36}/)'";
                for host in 0..2 {
                    let _ = self
                        .shared
                        .world
                        .servers
                        .superuser(host)
                        .await
                        .query_one(sql, &[])
                        .await;
                }
            }
            "rival" => {
                let host = *self.shared.gates[usize::from(shards[0])].host.read().await;
                let list = shards
                    .iter()
                    .map(u16::to_string)
                    .collect::<Vec<_>>()
                    .join(",");
                let to = format!("db{}", 2 - host);
                let rival = match self.rng.u8(0..4) {
                    0 => vec!["moves", "gc"],
                    1 => vec!["moves", "resume"],
                    _ => vec!["move", &list, "--to", &to, "--yes", "--mode", "online"],
                };
                self.command(&rival, &[LEASE]).await;
            }
            "hold" | "ddl" => {
                if fate == "ddl" {
                    self.alter(shards).await;
                }
                while !running.is_finished() {
                    // The request may come before it is held.
                    tokio::time::sleep(Duration::from_millis(700)).await;
                    if !running.is_finished() {
                        self.all_open("continue").await;
                    }
                }
            }
            "pause" => {
                self.all_open("pause").await;
                let nap = Duration::from_millis(self.rng.u64(100..3000));
                tokio::time::sleep(nap).await;
                while !running.is_finished() {
                    self.all_open("continue").await;
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
            }
            "abort" => self.end_open(1, true).await,
            _ => {}
        }
    }

    /// Locks a table of a shard for some seconds.
    async fn lock(&mut self, shard: u16, late: bool) {
        let tables = &self.shared.schema.tables;
        let table = if tables.is_empty() {
            "txlog"
        } else {
            &tables[self.rng.usize(0..tables.len())].name
        };
        let table = format!("{}.{table}", Shared::schema_name(shard));
        let (shared, seconds) = (self.shared.clone(), self.rng.u64(2..13));
        let host = *shared.gates[usize::from(shard)].host.read().await;
        let client = shared.reach(host).await;
        self.locked_until = Instant::now() + Duration::from_secs(seconds + 3);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(seconds * 37 % 400)).await;
            let claimed =
                format!("SELECT FROM pgshard.move WHERE shard_id = {shard} AND phase = 'claimed'");
            for _ in 0..if late { 1500 } else { 0 } {
                if !client
                    .query(&claimed, &[])
                    .await
                    .is_ok_and(|rows| rows.is_empty())
                {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(4)).await;
            }
            let lock = format!(
                "BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds}); \
                    COMMIT"
            );
            let _ = client.batch_execute(&lock).await;
        });
    }

    /// Runs scripts of DDL on some of the shards.
    async fn alter(&mut self, shards: &[u16]) {
        for _ in 0..self.rng.usize(1..4) {
            let shard = shards[self.rng.usize(0..shards.len())];
            super::alter::alter(&self.shared, &mut self.rng, shard).await;
            let nap = Duration::from_millis(self.rng.u64(0..1000));
            tokio::time::sleep(nap).await;
        }
    }

    /// Runs `moves pause` or `moves continue` for what is open.
    async fn all_open(&mut self, word: &str) {
        for (id, _) in self.open().await {
            self.command(&["moves", word, &id], &[]).await;
        }
    }

    /// Runs a command; its output is checked only for what must never appear.
    async fn command(&mut self, args: &[&str], environment: &[(&str, &str)]) -> Ran {
        let child = self
            .shared
            .world
            .command(args, environment)
            .spawn()
            .expect("the command was built");
        let ran = ended(child)
            .await
            .unwrap_or_else(|| stuck(&self.shared, args));
        self.judge(args, &ran, true);
        ran
    }

    /// Whether a command may end like this.
    fn judge(&mut self, args: &[&str], ran: &Ran, disturbed: bool) {
        let (code, said) = (ran.code(), last_lines(&ran.stderr));
        self.shared.tell(format!(
            "  {} -> {code} {said}",
            args.iter().take(3).copied().collect::<Vec<_>>().join(" ")
        ));
        let told = format!(
            "{}: exit code {code}\n{}\n{}",
            args.join(" "),
            last_lines(&ran.stdout),
            ran.stderr
        );
        let differs = ["differs from the source", " differ ("]
            .iter()
            .any(|words| ran.stderr.contains(words));
        if code == 6 || differs {
            self.shared.fail("differs", told);
        } else if code == 101 || ran.stderr.contains("panicked") {
            self.shared.fail("panic", told);
        } else if !disturbed && code != 0 && !self.crowded && !self.excuses(code, &ran.stderr) {
            self.shared.fail("move", told);
        }
    }

    /// Whether another process caused what a move without a fate of its own reports.
    fn excuses(&self, code: i32, said: &str) -> bool {
        let prepared =
            said.contains("old prepared transactions") && self.shared.case.has("prepared");
        let locked = said.contains("lock timeout") && self.locked_until > Instant::now();
        // Some of a move's shards have moved on, and the others are rolled back.
        let gone = said.contains("a rollback is no longer possible");
        (code == 4 && prepared)
            || (code == 8 && gone)
            || ([5, 7, 8].contains(&code) && (locked || prepared))
    }

    /// Moves that are neither kept nor ended, and the phase of their least advanced shard.
    async fn open(&self) -> Vec<(String, String)> {
        let mut open = BTreeSet::new();
        for host in 0..2 {
            let sql = "SELECT move_id::text, min(phase) FROM pgshard.move
                WHERE phase NOT IN ('kept', 'completed', 'aborted') GROUP BY 1";
            let rows = self.query(host, sql).await;
            open.extend(rows.iter().map(|row| (row.get(0), row.get(1))));
        }
        open.into_iter().collect()
    }

    async fn query(&self, host: usize, sql: &str) -> Vec<tokio_postgres::Row> {
        loop {
            if let Ok(rows) = self.shared.reach(host).await.query(sql, &[]).await {
                return rows;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Moves that can be rolled back, with their shards.
    async fn kept(&self) -> Vec<(String, Vec<u16>)> {
        let mut kept = Vec::new();
        for host in 0..2 {
            let sql = "SELECT m.move_id::text, array_agg(m.shard_id ORDER BY m.shard_id) FROM \
                pgshard.move m
                JOIN pgshard.back b USING (move_id, shard_id)
                WHERE m.phase = 'kept' AND b.lost IS NULL AND b.taken_by IS NULL GROUP BY 1";
            for row in self.query(host, sql).await {
                let shards: Vec<i32> = row.get(1);
                kept.push((
                    row.get(0),
                    shards.into_iter().map(|shard| shard as u16).collect(),
                ));
            }
        }
        kept
    }

    /// Ends what is open, with this many tries for each.
    async fn end_open(&mut self, tries: usize, abort: bool) {
        for (id, _) in self.open().await {
            for _ in 0..tries {
                self.command(
                    &["moves", if abort { "abort" } else { "resume" }, &id],
                    &[LEASE],
                )
                .await;
            }
        }
    }

    /// Brings every move to an end: by resume, by abort, through more kills.
    async fn settle(&mut self, fate: &str, shards: &[u16]) {
        let altered = shards.iter().any(|shard| self.is_altered(*shard));
        let aborts = self.rng.u8(0..3) == 0 && fate != "plain" && fate != "lock";
        let mut last = String::new();
        let mut slots_lost = 0;
        for attempt in 0..16 {
            let open = self.open().await;
            if open.is_empty() || self.shared.failed().is_some() {
                self.shared.wake();
                self.shared.calm.store(false, Ordering::Relaxed);
                return self.served().await;
            }
            if attempt == 4 {
                self.shared.calm.store(true, Ordering::Relaxed);
            }
            if attempt == 8 {
                self.shared.hush().await;
            }
            if attempt > 0 {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            // A mover that ended before the request to continue leaves that to the next one that
            // resumes the move.
            if matches!(fate, "hold" | "pause" | "ddl") {
                self.all_open("continue").await;
            }
            for (id, phase) in open {
                let abort = match attempt {
                    0 => aborts,
                    // What was altered may be refused.
                    2.. if altered => attempt % 2 == 0,
                    // A move copies again if its slot is lost; a rollback cannot.
                    _ => slots_lost > 1,
                };
                let word = if abort { "abort" } else { "resume" };
                let args = ["moves", word, &id];
                let ran = if attempt < 3 && fate != "plain" && self.rng.u8(0..4) == 0 {
                    add(&self.shared.counts.kills);
                    let child = self
                        .shared
                        .world
                        .command(&args, &[LEASE])
                        .spawn()
                        .expect("the command was built");
                    let wait = Duration::from_millis(self.rng.u64(20..1500));
                    killed_after(child, wait).await;
                    continue;
                } else {
                    self.command(&args, &[LEASE]).await
                };
                if ran
                    .stderr
                    .contains("what was copied cannot be brought up to date")
                {
                    slots_lost += 1;
                }
                last = format!(
                    "{} of a move in phase {phase}: exit code {}\n{}",
                    args.join(" "),
                    ran.code(),
                    ran.stderr
                );
            }
        }
        self.shared.fail(
            "stuck",
            format!("after {fate} the move does not end, with nobody in its way: {last}"),
        );
    }

    /// Waits until every shard is served, and its copies were compared.
    async fn served(&self) {
        let begun = Instant::now();
        'shards: for (shard, gate) in self.shared.gates.iter().enumerate() {
            while begun.elapsed() < Duration::from_secs(60) && self.shared.failed().is_none() {
                let host = *gate.host.read().await;
                let sql = format!(
                    "SELECT FROM pgshard.shard WHERE shard_id = {shard} AND state = 'serving'"
                );
                if !self.query(host, &sql).await.is_empty() {
                    continue 'shards;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if self.shared.failed().is_none() {
                self.shared.fail(
                    "unserved",
                    format!("nobody serves shard {shard}, and no move is open"),
                );
            }
            return;
        }
    }

    /// What an operator does with kept moves.
    async fn after(&mut self) {
        match self.rng.u8(0..6) {
            0 | 1 => {
                for (id, _) in self.kept().await.into_iter().take(1) {
                    let ran = self.complete(&id).await;
                    if ran.code() != 0 {
                        self.shared.fail(
                            "move",
                            format!("complete {id}: exit code {}\n{}", ran.code(), ran.stderr),
                        );
                    }
                }
            }
            2 => drop(self.command(&["moves", "gc"], &[]).await),
            3..6 if self.feeds => self.audit_feed().await,
            _ => {}
        }
    }

    /// Drops old copies; those that were not compared because their mover died are audited first.
    async fn complete(&mut self, id: &str) -> Ran {
        let ran = self.command(&["moves", "complete", id, "--yes"], &[]).await;
        if ran.code() == 0 || !ran.stderr.contains("audit") {
            return ran;
        }
        self.command(&["moves", "audit", id], &[]).await;
        self.command(&["moves", "complete", id, "--yes", "--unaudited"], &[])
            .await
    }

    /// Starts the feed, or sometimes kills it.
    async fn look_after_feed(&mut self) {
        if let Some(feed) = &mut self.feed {
            if self.rng.u8(0..4) == 0 {
                let _ = feed.kill().await;
                self.feed = None;
            } else if feed.try_wait().is_ok_and(|ended| ended.is_some()) {
                self.shared.fail("feed", "the feed has ended by itself");
            }
        }
        if self.feed.is_none() {
            let mut command = self.shared.world.command(&["moves", "feed"], &[LEASE]);
            command
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null());
            self.feed = Some(command.spawn().expect("the command was built"));
        }
    }

    /// While no work is done, each old copy that is fed must get what its shard has.
    async fn audit_feed(&mut self) {
        self.look_after_feed().await;
        self.shared.hush().await;
        let begun = Instant::now();
        for (id, shards) in self.kept().await {
            // A stream carries no DDL: what was altered since is found by a rollback.
            let shards: Vec<u16> = shards
                .into_iter()
                .filter(|shard| !self.is_altered(*shard))
                .collect();
            for shard in shards {
                let host = *self.shared.gates[usize::from(shard)].host.read().await;
                let (old, new) = (
                    self.shared.reach(1 - host).await,
                    self.shared.reach(host).await,
                );
                let schema = Shared::schema_name(shard);
                while self.shared.failed().is_none() {
                    let differences = self.fed(&old, &new, shard, &schema).await;
                    if differences.is_empty() {
                        self.shared
                            .tell(format!("the old copy of shard {shard} is fed"));
                        break;
                    }
                    let open = self
                        .kept()
                        .await
                        .iter()
                        .any(|(kept, shards)| *kept == id && shards.contains(&shard));
                    if !open {
                        self.shared
                            .tell(format!("the reverse replication of shard {shard} is lost"));
                        break;
                    }
                    if begun.elapsed() > Duration::from_secs(60) {
                        self.shared.fail(
                            "feed",
                            format!("shard {shard} of {id}:\n  {}", differences.join("\n  ")),
                        );
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
        self.shared.wake();
    }

    async fn fed(&self, old: &Client, new: &Client, shard: u16, schema: &str) -> Vec<String> {
        let Ok(Some(left)) = old_copy(old, shard).await else {
            return vec!["there is no old copy".to_owned()];
        };
        let sides = (
            Side {
                client: old,
                schema: &left,
            },
            Side {
                client: new,
                schema,
            },
        );
        let mut differences = rows_differ(sides.0, sides.1)
            .await
            .unwrap_or_else(|error| vec![super::work::words(&error)]);
        // The stream does not bring changes of unlogged tables: a rollback copies their rows.
        let unlogged = "SELECT 'table ' || relname || ',' FROM pg_class
            WHERE relpersistence = 'u' AND relkind = 'r' AND relnamespace = \
            to_regnamespace(quote_ident($1))";
        let unlogged = new.query(unlogged, &[&schema]).await;
        let unlogged: Vec<String> = unlogged
            .unwrap_or_default()
            .iter()
            .map(|row| row.get(0))
            .collect();
        differences
            .retain(|difference| !unlogged.iter().any(|table| difference.starts_with(table)));
        differences
    }

    /// Ends everything, and checks whether anything is left.
    async fn finish(mut self) {
        let shared = self.shared.clone();
        if shared.failed().is_some() {
            return;
        }
        if self.feeds {
            self.audit_feed().await;
        }
        shared.hush().await;
        if let Some(mut feed) = self.feed.take() {
            let _ = feed.kill().await;
        }
        let lost =
            "SELECT 'shard ' || shard_id || ': ' || lost FROM pgshard.back WHERE lost IS NOT NULL";
        for host in 0..2 {
            for row in self.query(host, lost).await {
                let why: String = row.get(0);
                shared.tell(format!(
                    "a reverse replication of db{} is lost: {why}",
                    host + 1
                ));
                // No host fails over here.
                if why.contains("has lost changes") {
                    shared.fail("feed", format!("db{}: {why}", host + 1));
                }
            }
        }
        for host in 0..2 {
            let sql = "SELECT DISTINCT move_id::text FROM pgshard.move WHERE phase = 'kept'";
            for row in self.query(host, sql).await {
                let id: String = row.get(0);
                // The feed's lease lasts a moment longer than the feed.
                for attempt in 0..5 {
                    let ran = self.complete(&id).await;
                    // Another host had a part of it.
                    if ran.code() == 0
                        || self
                            .query(host, &format!("{sql} AND move_id = '{id}'"))
                            .await
                            .is_empty()
                    {
                        break;
                    }
                    if attempt == 4 {
                        shared.fail(
                            "move",
                            format!(
                                "complete {id} at the end: exit code {}\n{}",
                                ran.code(),
                                ran.stderr
                            ),
                        );
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
        self.command(&["moves", "gc"], &[]).await;
        if shared.failed().is_some() {
            return;
        }
        if last_look(&shared).await.is_err() {
            shared.fail("log", "a server is away at the end");
        }
        for host in 0..2 {
            let sql = "SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname ~ \
                '__(left|incoming|signpost)'
                UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots
                UNION ALL SELECT 'publication ' || pubname FROM pg_publication
                UNION ALL SELECT 'what was lent to ' || table_name FROM pgshard.lent_identity
                UNION ALL SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts
                UNION ALL SELECT 'ledger ' || kind || ' ' || name FROM pgshard.ledger";
            let left: Vec<String> = self
                .query(host, sql)
                .await
                .iter()
                .map(|row| row.get(0))
                .collect();
            if !left.is_empty() {
                shared.fail(
                    "left",
                    format!("db{} has left {}", host + 1, left.join(", ")),
                );
            }
        }
        let audit = std::panic::AssertUnwindSafe(shared.world.audit_places())
            .catch_unwind()
            .await;
        if let Err(panic) = audit {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            shared.fail("places", text);
        }
    }
}

/// Waits for a command, two minutes at most.
async fn ended(child: Child) -> Option<Ran> {
    std::panic::AssertUnwindSafe(Ran::of(child))
        .catch_unwind()
        .await
        .ok()
}

fn stuck(shared: &Shared, args: &[&str]) -> Ran {
    shared.fail(
        "stuck",
        format!("{} has not ended after two minutes", args.join(" ")),
    );
    Ran::none()
}

async fn killed_after(mut child: Child, wait: Duration) {
    if tokio::time::timeout(wait, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(6)..]
        .join(" | ")
        .chars()
        .take(900)
        .collect()
}
