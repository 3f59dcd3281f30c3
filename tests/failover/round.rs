//! A round: two hosts with a standby each, writers, a move, a fail-over in the middle of it, and
//! the commands that repair it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pgshard::dev::StopMode;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use tokio::process::Child;
use tokio_postgres::Client;

use super::case::{Case, Former, Gap, Mover, Names, Phase, Slots, Way};
use super::pooler::Pooler;
use super::support::{Frozen, Ran, World, lines, stopped};
use super::writers::{Writers, disorder};

const SHARDS: u16 = 4;

/// The standby of a host.
const fn standby(host: usize) -> usize {
    host + 2
}

pub(crate) struct Round {
    case: Case,
    world: World,
    /// The IDs that the promoted servers had at their promotion, by the port of their former
    /// primaries.
    had: BTreeMap<u16, BTreeSet<i64>>,
    /// The port of the server that replaced a former primary, by the port of the latter.
    later: BTreeMap<u16, u16>,
    /// The shards that an alarm was about.
    alarmed: BTreeSet<u16>,
    /// One for each host, if routers go through them.
    poolers: Vec<Pooler>,
    begun: Instant,
}

impl Round {
    /// Plays a round, and panics with what is wrong. It reports its steps on stderr.
    pub(crate) async fn play(case: Case) {
        let begun = Instant::now();
        let world = World::with_standbys(case.version, SHARDS).await;
        let (had, later, alarmed) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let mut round = Round {
            case,
            world,
            had,
            later,
            alarmed,
            poolers: Vec::new(),
            begun,
        };
        round.tell(&round.case.to_string());
        round.run().await;
    }

    fn tell(&self, what: &str) {
        eprintln!("{:>5.1} {what}", self.begun.elapsed().as_secs_f64());
    }

    async fn run(&mut self) {
        self.world.run(&["bootstrap"]).await.ended(0);
        self.set_up().await;
        let writers = Writers::start(&self.world, SHARDS).await;
        writers.more(40).await;
        if matches!(self.case.phase, Phase::Fed | Phase::Rollback(_)) {
            self.world
                .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
                .await
                .ended(0);
            writers.more(20).await;
        }
        self.cut_off(Gap::SinceBefore).await;
        let child = self.reach_the_phase().await;
        self.tell("the move is where it should be");
        self.cut_off(Gap::SincePhase).await;
        writers.more(20).await;
        let mut frozen = Vec::new();
        for host in self.case.hosts.clone() {
            frozen.extend(self.fail_over(host).await);
        }
        writers.more(10).await;
        drop(frozen);
        self.tell("failed over");
        if let Some(child) = child {
            self.go_on(child).await;
        }
        self.settle().await;
        self.tell("settled");
        writers.more(40).await;
        let rows = writers.end().await;
        let wrong = disorder(&rows, &self.later);
        assert!(wrong.is_empty(), "{}\n{wrong:#?}", self.case);
        self.judge(
            &rows
                .concat()
                .iter()
                .map(|row| (row.id, row.port, row.shard))
                .collect::<Vec<_>>(),
        )
        .await;
        // If a source has lost its journal, what it had brought to the target stays there.
        self.world.run(&["moves", "gc"]).await.ended(0);
        self.world.run(&["bootstrap"]).await.ended(0);
        // The shards can be moved as usual.
        let (shard, to) = if self.world.host_of(0) == 0 {
            ("0", "db2")
        } else {
            ("0", "db1")
        };
        self.world
            .run(&["move", shard, "--to", to, "--mode", "online", "--yes"])
            .await
            .ended(0);
        self.judge(
            &rows
                .concat()
                .iter()
                .map(|row| (row.id, row.port, row.shard))
                .collect::<Vec<_>>(),
        )
        .await;
    }

    /// Sets up the case's standbys, and the way to the hosts.
    async fn set_up(&mut self) {
        for host in 0..2 {
            let client = self.world.servers.superuser(host).await;
            let mut settings = Vec::new();
            if self.case.gap == Gap::None {
                // A standby of ours gives its cluster_name as its name.
                let name = "SELECT current_setting('cluster_name')";
                let name: String = client.query_one(name, &[]).await.unwrap().get(0);
                let names = if self.case.names == Names::Any {
                    "*".to_owned()
                } else {
                    format!("\"{name}\"")
                };
                settings.push(format!("synchronous_standby_names = '{names}'"));
            }
            if self.case.slots == Slots::Synchronized {
                self.world
                    .servers
                    .synchronize_slots(standby(host), host)
                    .await;
                settings.push("synchronized_standby_slots = 'standby'".to_owned());
            }
            for set in settings {
                client
                    .batch_execute(&format!("ALTER SYSTEM SET {set}"))
                    .await
                    .unwrap();
            }
            client
                .batch_execute("SELECT pg_reload_conf()")
                .await
                .unwrap();
            if self.case.way == Way::PgBouncer {
                self.poolers
                    .push(Pooler::on_the_way(&self.world, host).await);
            }
        }
    }

    async fn cut_off(&self, when: Gap) {
        if self.case.gap == when {
            for host in &self.case.hosts {
                self.world.servers.cut_off(standby(*host), *host).await;
            }
        }
    }

    /// Starts the move, and waits until it has reached the case's phase. Returns the mover, if it
    /// is to live.
    async fn reach_the_phase(&self) -> Option<Child> {
        let (args, failpoint): (Vec<String>, _) = match self.case.phase {
            Phase::Between => return None,
            Phase::Held => return Some(self.hold().await),
            Phase::Fed => return Some(self.feed().await),
            Phase::Online(at) => (words("move 0 --to db2 --yes --mode online"), at),
            Phase::Blocking(at) => (words("move 0 --to db2 --yes --mode blocking"), at),
            Phase::Rollback(at) => {
                let id = lines(
                    &self.world.servers.app(0).await,
                    "SELECT move_id::text FROM pgshard.move",
                )
                .await;
                (words(&format!("moves rollback {} --yes", id.trim())), at)
            }
        };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        match self.case.mover {
            Mover::Dies => {
                self.world
                    .run_until(&args, &format!("{failpoint}=kill"))
                    .await
                    .ended(-9);
                None
            }
            Mover::Lives => {
                let failpoint = format!("{failpoint}=stop");
                let environment = [
                    ("PGSHARD_FAILPOINT", failpoint.as_str()),
                    ("PGSHARD_LEASE_MS", "3000"),
                ];
                let child = self.world.command(&args, &environment).spawn().unwrap();
                stopped(&child).await;
                Some(child)
            }
        }
    }

    async fn hold(&self) -> Child {
        let args = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let mut child = self.world.command(&args, &[]).spawn().unwrap();
        let db1 = self.world.servers.app(0).await;
        until(
            &db1,
            "SELECT bool_or(phase = 'ready')::text FROM pgshard.move",
        )
        .await;
        if self.case.mover == Mover::Dies {
            child.kill().await.unwrap();
        }
        child
    }

    async fn feed(&self) -> Child {
        let mut child = self.world.command(&["moves", "feed"], &[]).spawn().unwrap();
        let db1 = self.world.servers.app(0).await;
        until(
            &db1,
            "SELECT (max(applied_lsn) > '0/0')::text FROM pgshard.progress",
        )
        .await;
        if self.case.mover == Mover::Dies {
            child.kill().await.unwrap();
        }
        child
    }

    /// Promotes the standby of a host to take its place. Returns the former primary, if it is
    /// frozen.
    async fn fail_over(&mut self, host: usize) -> Option<Frozen> {
        let former = self.world.servers.server(host);
        let frozen = match self.case.former {
            Former::Thawed => Some(Frozen::new(former.pid().unwrap())),
            Former::Gone | Former::StartedAgain => {
                tokio::task::block_in_place(|| former.stop(StopMode::Immediate)).unwrap();
                None
            }
            Former::SwitchedOver => None,
        };
        match self.case.former {
            Former::SwitchedOver => self.world.servers.switch_over(standby(host), host).await,
            _ => self.world.servers.promote(standby(host)).await,
        }
        let later = self.world.servers.superuser(standby(host)).await;
        let (served, kept) = ids(&later).await;
        self.had
            .insert(former.port(), served.into_iter().chain(kept).collect());
        let promoted = self.world.servers.server(standby(host)).port();
        self.later.insert(former.port(), promoted);
        if let Some(pooler) = self.poolers.get(host) {
            pooler.lead_to(promoted).await;
        }
        if self.case.former == Former::StartedAgain {
            tokio::task::block_in_place(|| self.world.servers.server(host).start()).unwrap();
        }
        frozen
    }

    /// Lets a surviving mover run to its end, whatever that is.
    async fn go_on(&self, mut child: Child) {
        match self.case.phase {
            Phase::Fed => {
                tokio::time::sleep(Duration::from_secs(2)).await;
                let _ = child.kill().await;
                return;
            }
            Phase::Held => {
                tokio::time::sleep(Duration::from_secs(3)).await;
                let id = self.open_move().await;
                if let Some(id) = id {
                    self.world.run(&["moves", "continue", &id]).await;
                }
            }
            _ => {
                let pid = child
                    .id()
                    .and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
                // It may have ended by itself. A mover that begins the step again, because its host
                // has changed, stops there again.
                let continued = tokio::spawn(async move {
                    while let Some(pid) = pid
                        && kill_process(pid, Signal::CONT).is_ok()
                    {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                });
                self.report_end(Ran::of(child).await);
                continued.abort();
                return;
            }
        }
        self.report_end(Ran::of(child).await);
    }

    fn report_end(&self, ran: Ran) {
        self.tell(&format!(
            "the mover ended with {}: {}",
            ran.code(),
            ran.stderr.lines().next().unwrap_or_default()
        ));
    }

    async fn open_move(&self) -> Option<String> {
        let listed = self.world.run(&["moves", "list"]).await;
        let listed = listed.json().pop()?;
        let open = listed["moves"].as_array()?.iter().find(|one| {
            !matches!(
                one["phase"].as_str(),
                Some("kept" | "completed" | "aborted")
            )
        })?;
        Some(open["move"].as_str()?.to_owned())
    }

    /// Does what the alarms demand, until there are none.
    async fn settle(&mut self) {
        let mut last = Vec::new();
        for turn in 0..10 {
            let checked = self.world.run(&["check"]).await.last();
            let bad =
                |found: &&Value| matches!(found["severity"].as_str(), Some("alarm" | "error"));
            let found: Vec<Value> = checked["findings"]
                .as_array()
                .unwrap()
                .iter()
                .filter(bad)
                .cloned()
                .collect();
            for one in &found {
                self.tell(&format!(
                    "{} {} {}",
                    one["code"], one["host"], one["message"]
                ));
                self.alarmed.extend(shards(one["shards"].as_str()));
            }
            let open = self.open_move().await;
            if found.is_empty() && open.is_none() {
                // A mover that ended between two former primaries has published what is lost with
                // them. Otherwise the map is right.
                let thawed = self.case.former == Former::Thawed && self.case.hosts.len() == 2;
                let findings = checked["findings"].as_array().unwrap();
                if thawed && findings.iter().any(|one| one["code"] == "shard_elsewhere") {
                    self.tell("the map is made anew");
                    self.world.run(&["map", "rebuild", "--yes"]).await.ended(0);
                }
                return;
            }
            let codes: Vec<&str> = found
                .iter()
                .filter_map(|one| one["code"].as_str())
                .collect();
            if codes
                .iter()
                .any(|code| matches!(*code, "two_primaries" | "former_primary"))
            {
                self.stop_former();
                // It records the later timeline, and may report more about a move that is decided
                // and not opened.
                self.world.run(&["bootstrap"]).await;
            } else if let Some(id) = open.filter(|_| turn % 2 == 0) {
                let ran = self
                    .world
                    .run(&["moves", if turn < 6 { "resume" } else { "abort" }, &id])
                    .await;
                self.tell(&format!(
                    "resume: {} {}",
                    ran.code(),
                    ran.stderr.lines().next().unwrap_or_default()
                ));
            } else {
                self.recover().await;
            }
            last = found;
        }
        panic!("{}\nno remedy helps: {last:#?}", self.case);
    }

    /// The remedy for two primaries: stop the former one.
    fn stop_former(&self) {
        for host in &self.case.hosts {
            let former = self.world.servers.server(*host);
            tokio::task::block_in_place(|| former.stop(StopMode::Immediate)).unwrap();
            self.tell(&format!("the former primary of db{} is stopped", host + 1));
        }
    }

    async fn recover(&self) {
        for host in &self.case.hosts {
            let ran = self
                .world
                .run(&["recover", &format!("db{}", host + 1), "--yes"])
                .await;
            self.tell(&format!(
                "recover db{}: {}\n{}",
                host + 1,
                ran.code(),
                ran.stderr
            ));
            let Some(left) = ran.json().pop() else {
                continue;
            };
            for decision in left["decisions"].as_array().into_iter().flatten() {
                let command = decision["commands"][0].as_str().unwrap();
                self.tell(command);
                let mut args = words(command.strip_prefix("pgshard ").unwrap());
                if command.contains("repair") {
                    args.push("--yes".to_owned());
                }
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                let ran = self.world.run(&args).await;
                self.tell(&format!("{}: {}", ran.code(), ran.stderr));
            }
        }
    }

    /// Every acknowledged row is where its shard is served, with two exceptions: rows that only a
    /// former primary had, and rows written during an alarm, which may be in an old copy.
    async fn judge(&self, rows: &[(i64, u16, u16)]) {
        let (mut served, mut kept) = (BTreeSet::new(), BTreeSet::new());
        for host in 0..2 {
            let server = if self.case.hosts.contains(&host) {
                standby(host)
            } else {
                host
            };
            let (here, left) = ids(&self.world.servers.superuser(server).await).await;
            served.extend(here);
            kept.extend(left);
        }
        let gone = |id: &i64, port: &u16| self.had.get(port).is_some_and(|had| !had.contains(id));
        let missing: Vec<_> = rows
            .iter()
            .filter(|(id, port, _)| !served.contains(id) && !gone(id, port))
            .filter(|(id, _, shard)| !(kept.contains(id) && self.alarmed.contains(shard)))
            .collect();
        if self.case.gap == Gap::None || self.case.former == Former::SwitchedOver {
            let lost = rows.iter().filter(|(id, port, _)| gone(id, port)).count();
            // A thawed primary has acknowledged nothing that its standby had not confirmed.
            assert_eq!(
                lost, 0,
                "{}: the standby lacks what was acknowledged",
                self.case
            );
        }
        assert!(
            missing.is_empty(),
            "{}: {} of {}\n{missing:?}",
            self.case,
            missing.len(),
            rows.len()
        );
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// The shards in a list such as `0-3, 7`.
fn shards(list: Option<&str>) -> Vec<u16> {
    let mut all = Vec::new();
    for part in list
        .unwrap_or_default()
        .split(',')
        .filter(|part| !part.is_empty())
    {
        let (first, last) = part
            .trim()
            .split_once('-')
            .unwrap_or((part.trim(), part.trim()));
        all.extend(first.parse::<u16>().unwrap()..=last.parse::<u16>().unwrap());
    }
    all
}

async fn until(client: &Client, sql: &str) {
    let begun = Instant::now();
    loop {
        let row = client.query_one(sql, &[]).await.unwrap();
        if row.get::<_, Option<&str>>(0) == Some("true") {
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "never true: {sql}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The IDs on a server: those in the shards that it serves, and those in everything else that it
/// has of shards.
async fn ids(client: &Client) -> (BTreeSet<i64>, BTreeSet<i64>) {
    let (mut served, mut kept) = (BTreeSet::new(), BTreeSet::new());
    let sql = "SELECT n.nspname::text FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
        WHERE nspname ~ '^shard_[0-9]{4}' AND relname = 'users' AND relkind = 'r'";
    for schema in lines(client, sql).await.lines() {
        let ids = lines(client, &format!("SELECT id::text FROM {schema}.users")).await;
        let ids = ids.lines().map(|id| id.parse::<i64>().unwrap());
        if schema.contains("__") {
            kept.extend(ids)
        } else {
            served.extend(ids)
        }
    }
    (served, kept)
}
