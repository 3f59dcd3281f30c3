//! A round: hosts, writers, operators at work, and what comes of it.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use pgshard::ShardCount;
use pgshard::config::Config;
use pgshard::dev::config_text;
use pgshard::store::MapStore;

use super::case::{Case, Store};
use super::fates::{Fate, perform};
use super::judge;
use super::operator::{Operator, Running, Shared, command, locked, replace};
use super::settle::Settling;
use super::state;
use super::support::{TestCluster, World};
use super::writers::Writers;

/// Tables with a key and without one, and one that records which migrations ran.
const TABLES: &str = "
    CREATE TABLE {shard}.users (
        id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
        name text NOT NULL,
        version integer NOT NULL DEFAULT 0,
        marks text NOT NULL DEFAULT '');
    CREATE TABLE {shard}.visits (user_id bigint NOT NULL, page text);
    CREATE TABLE {shard}.ran (migration text NOT NULL);
";

/// How long a command may take when all others have ended and nothing is held any more.
const LONG: Duration = Duration::from_secs(120);

pub(crate) struct Round {
    case: Case,
    world: World,
    shared: Shared,
    /// The config of each operator.
    configs: Vec<PathBuf>,
    /// The application's.
    application: PathBuf,
}

impl Round {
    /// Plays a round, and panics with what is wrong.
    pub(crate) async fn play(case: Case) {
        let shared = Shared::new();
        shared.tell(case.to_string());
        let (world, configs, application) = set_up(&case).await;
        let mut round = Round {
            case,
            world,
            shared,
            configs,
            application,
        };
        let limit = Duration::from_secs(1200);
        let played =
            tokio::time::timeout(limit, AssertUnwindSafe(round.run()).catch_unwind()).await;
        let faults = locked(&round.shared.faults).join("\n\n");
        if !matches!(played, Ok(Ok(()))) || !faults.is_empty() {
            eprintln!("{}\n", round.shared.story());
        }
        match played {
            Ok(Ok(())) => assert!(faults.is_empty(), "{}\n{faults}", round.case),
            Ok(Err(panic)) => {
                eprintln!("{}\n{faults}", round.case);
                std::panic::resume_unwind(panic);
            }
            Err(_) => panic!("{}\nthe round does not end\n{faults}", round.case),
        }
    }

    async fn run(&mut self) {
        let mut routers = Vec::new();
        for _ in 0..2 {
            routers.push(
                pgshard::connect(&self.application)
                    .await
                    .expect("a router starts"),
            );
        }
        let writers = Writers::start(routers, self.case.shards, self.shared.begun);
        writers.more(100).await;
        let operator = |number| Operator {
            number,
            case: &self.case,
            world: &self.world,
            shared: &self.shared,
            config: self.configs[number].clone(),
            configs: &self.configs,
        };
        let operators: Vec<Operator<'_>> = (0..self.case.operators).map(operator).collect();
        let running = join_all(operators.iter().map(Operator::work)).await;
        if self.case.store == Store::Copies {
            // The configs are brought together.
            let all = std::fs::read_to_string(&self.application).expect("the config is there");
            replace(&self.world.config.path, &all);
        }
        self.wind_up(running.into_iter().flatten().collect()).await;
        self.shared.tell("the operators have gone home");
        Settling {
            world: &self.world,
            shared: &self.shared,
        }
        .all()
        .await;
        self.world.config = Config::load(&self.world.config.path).expect("the config is right");
        writers.more(40).await;
        let notes = writers.end().await;
        let told = (notes.rows.len(), notes.longest.as_secs_f64());
        self.shared.tell(format!(
            "{} rows were acknowledged, the longest call took {:.1} s",
            told.0, told.1
        ));
        let map = self
            .world
            .config
            .map_store()
            .load()
            .await
            .expect("there is a map");
        for wrong in judge::rows(&self.world, &self.shared, &map, &notes).await {
            self.shared.fault(wrong);
        }
        if locked(&self.shared.faults).is_empty() {
            self.world.audit_places_by(&map).await;
        }
    }

    /// Ends what operators have left running: holds and pauses end, and what runs for ever is
    /// interrupted.
    async fn wind_up(&self, mut running: Vec<Running>) {
        let (begun, mut told) = (Instant::now(), false);
        while !running.is_empty() {
            if begun.elapsed() > LONG && !told {
                told = true;
                let lines: Vec<String> = running.iter().map(|one| one.begun.line()).collect();
                let (lines, activity) = (lines.join("\n"), state::activity(&self.world).await);
                self.shared.fault(format!(
                    "nobody holds these up, and they do not end:\n{lines}\n{activity}"
                ));
            }
            for one in &running {
                let endless = one.begun.has("feed") || one.begun.has("watch");
                if endless || begun.elapsed() > LONG {
                    one.enough.notify_one();
                }
            }
            let held = state::moves(&self.world).await;
            let held = held
                .into_iter()
                .filter(|moved| moved.is_open() && moved.desired != "go");
            let ids: std::collections::BTreeSet<String> = held.map(|moved| moved.id).collect();
            for id in ids {
                let args = ["moves", "continue", &id].map(str::to_owned);
                let command = command(&self.world, &self.world.config.path, &args, &Fate::None);
                perform(command, Fate::None, std::sync::Arc::default()).await;
            }
            let mut left = Vec::new();
            for mut one in running {
                match tokio::time::timeout(Duration::from_secs(2), &mut one.ended).await {
                    Ok(ended) => {
                        let ended = ended.expect("waiting for a command does not panic");
                        judge::command(&self.world, &self.shared, &one.begun, &ended).await;
                    }
                    Err(_) => left.push(one),
                }
            }
            running = left;
        }
    }
}

/// Starts the servers and bootstraps the cluster. Returns the config of each operator, and the
/// application's.
async fn set_up(case: &Case) -> (World, Vec<PathBuf>, PathBuf) {
    let servers = TestCluster::start_mixed(&case.versions);
    let shards = ShardCount::new(case.shards.into()).expect("so many may be");
    servers.write("migrations/0001_tables.sql", TABLES);
    let urls: Vec<_> = (0..case.versions.len())
        .map(|host| (servers.name(host), servers.server(host).url()))
        .collect();
    let text = config_text(shards, &urls[..case.named], Some("migrations"));
    let first = servers.write("first.toml", &text);
    let in_database = |text: &str| {
        let end = text.find("\n# Which shards").expect("a config has a map");
        format!(
            "{}\n[map]\nstore = \"postgres\"\nurl = \"{}\"\n",
            &text[..end],
            urls[0].1
        )
    };
    let kept = if case.store == Store::File {
        text.clone()
    } else {
        in_database(&text)
    };
    let path = servers.write("pgshard.toml", &kept);
    let config = Config::load(&path).expect("the config is right");
    let world = World { servers, config };
    if case.store != Store::File {
        let first = first.to_str().expect("a path of ours");
        world.run(&["map", "import", first, "--yes"]).await.ended(0);
    }
    world.run(&["bootstrap"]).await.ended(0);
    if case.store != Store::Copies {
        return (world, vec![path.clone(); case.operators], path);
    }
    let configs = (0..case.operators)
        .map(|at| world.write(&format!("op{at}.toml"), &kept))
        .collect();
    // The application knows all hosts from the beginning: a new one is brought to it before a shard
    // is.
    let all = in_database(&config_text(shards, &urls, Some("migrations")));
    let application = world.write("application.toml", &all);
    (world, configs, application)
}
