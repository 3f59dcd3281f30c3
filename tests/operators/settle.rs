//! What a careful operator does when the others have gone home: follows `check` and `moves`.

use serde_json::Value;

use super::fates::{Ended, Fate, perform};
use super::operator::{Shared, command, hosts};
use super::support::World;

/// How often remedies are tried.
const TURNS: usize = 12;

pub(crate) struct Settling<'a> {
    pub(crate) world: &'a World,
    pub(crate) shared: &'a Shared,
}

impl Settling<'_> {
    async fn run(&self, args: &[&str]) -> Ended {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let command = command(self.world, &self.world.config.path, &args, &Fate::None);
        let ended = perform(command, Fate::None, std::sync::Arc::default()).await;
        let code = ended
            .code
            .map_or_else(|| "no end".to_owned(), |code| code.to_string());
        let took = ended.took.as_secs_f64();
        let (args, words) = (args.join(" "), ended.words());
        self.shared.tell(format!(
            "settling: {args} ended with {code} after {took:.1} s: {words}"
        ));
        if ended.code.is_none() || ended.code == Some(101) || ended.stderr.contains("panicked") {
            self.shared
                .fault(format!("settling: {args}: {code}\n{}", ended.stderr));
        }
        ended
    }

    /// The same for a command that has to succeed.
    async fn done(&self, args: &[&str]) -> Ended {
        let ended = self.run(args).await;
        if ended.code != Some(0) {
            let args = args.join(" ");
            self.shared.fault(format!(
                "settling: {args} ends with {:?}\n{}",
                ended.code, ended.stderr
            ));
        }
        ended
    }

    /// Brings everything to its end. What cannot be is a fault.
    pub(crate) async fn all(&self) {
        self.hosts().await;
        self.moves().await;
        self.run(&["moves", "gc"]).await;
        self.migrations().await;
        self.done(&["bootstrap"]).await;
        self.done(&["map", "rebuild", "--yes"]).await;
        self.findings().await;
        self.old_copies().await;
        // A mover that died a moment ago, or was feeding, has a lease for so long, and gc forgets
        // none before it ends.
        tokio::time::sleep(std::time::Duration::from_millis(4000)).await;
        self.done(&["moves", "gc"]).await;
        for args in [&["check"][..], &["check", "--ddl"], &["check", "--rows"]] {
            let ended = self.run(args).await;
            if ended.code != Some(0) {
                self.shared.fault(format!(
                    "settled, and {args:?} ends with {:?}\n{}",
                    ended.code,
                    findings(&ended)
                ));
            }
        }
    }

    /// A host that was taken out of the config, or is not in it yet, comes back: the judge checks
    /// all of them.
    async fn hosts(&self) {
        let named = hosts(&self.world.config.path);
        for (at, server) in self.world.servers.servers().iter().enumerate() {
            let name = format!("db{}", at + 1);
            if !named.contains(&name) {
                self.done(&["host", "add", &name, &server.url()]).await;
            }
        }
        self.run(&["bootstrap"]).await;
    }

    async fn open(&self) -> Vec<Value> {
        let listed = self.run(&["moves", "list"]).await;
        let listed = listed.json().pop().unwrap_or_default();
        let moves = listed["moves"].as_array().cloned().unwrap_or_default();
        moves
            .into_iter()
            .filter(|one| {
                !matches!(
                    one["phase"].as_str(),
                    Some("kept" | "completed" | "aborted")
                )
            })
            .collect()
    }

    async fn moves(&self) {
        for turn in 0..TURNS {
            let open = self.open().await;
            if open.is_empty() {
                return;
            }
            for one in open {
                let id = one["move"].as_str().expect("a move has an ID");
                if one["desired"] != "go" {
                    self.run(&["moves", "continue", id]).await;
                }
                let verb = if turn < TURNS / 2 { "resume" } else { "abort" };
                self.run(&["moves", verb, id]).await;
            }
        }
        self.shared.fault(format!(
            "no remedy ends these moves: {:#?}",
            self.open().await
        ));
    }

    async fn migrations(&self) {
        for _ in 0..4 {
            if self.run(&["migrate", "up"]).await.code == Some(0) {
                break;
            }
        }
        self.done(&["migrate", "status"]).await;
        for number in 1..=self.backfills() {
            let sql = format!(
                "UPDATE {{shard}}.users SET marks = marks || '{number};' WHERE id BETWEEN {{low}} \
                    AND {{high}}"
            );
            let name = format!("marks{number}");
            let name = ["migrate", "backfill", "--name", &name, "--table", "users"];
            self.done(&[&name[..], &["--range-ms", "20", "--sql", &sql]].concat())
                .await;
        }
    }

    fn backfills(&self) -> usize {
        super::operator::locked(&self.shared.backfills).len()
    }

    /// Does what findings demand.
    async fn findings(&self) {
        for _ in 0..TURNS {
            let checked = self.run(&["check"]).await;
            let checked = checked.json().pop().unwrap_or_default();
            let found = checked["findings"].as_array().cloned().unwrap_or_default();
            let codes: Vec<&str> = found
                .iter()
                .filter(|one| one["severity"] != "notice")
                .filter_map(|one| one["code"].as_str())
                .collect();
            let Some(code) = codes.first() else { return };
            for one in &found {
                self.shared.tell(format!(
                    "  {} {} {} {}",
                    one["code"], one["host"], one["shards"], one["message"]
                ));
            }
            let alarm = found.iter().find(|one| one["severity"] == "alarm");
            if let Some(alarm) = alarm {
                self.shared.fault(format!("settling: an alarm: {alarm}"));
            }
            match *code {
                "shard_elsewhere" | "shard_epoch_differs" => {
                    drop(self.run(&["map", "rebuild", "--yes"]).await)
                }
                "leftover" | "stray_slot" | "stray_publication" => {
                    drop(self.run(&["moves", "gc"]).await)
                }
                "migrations_pending" | "host_migrations_pending" => {
                    drop(self.run(&["migrate", "up"]).await)
                }
                "migration_failed" => drop(self.run(&["migrate", "retry"]).await),
                "not_audited" => self.old_copies().await,
                "fence_overdue" | "not_opened" => drop(self.run(&["moves", "gc"]).await),
                _ => drop(self.run(&["bootstrap"]).await),
            }
        }
        let checked = self.run(&["check"]).await;
        self.shared.fault(format!(
            "no remedy ends these findings:\n{}",
            findings(&checked)
        ));
    }

    /// Drops old copies: those that were audited, and then, knowingly, the others.
    async fn old_copies(&self) {
        self.run(&["moves", "complete", "--all", "--yes"]).await;
        self.done(&["moves", "complete", "--all", "--unaudited", "--yes"])
            .await;
    }
}

/// What `check` found.
fn findings(checked: &Ended) -> String {
    let last = checked.json().pop().unwrap_or_default();
    let found = last["findings"].as_array().cloned().unwrap_or_default();
    let found = found.iter().filter(|one| one["severity"] != "notice");
    found.map(|one| format!("{one}\n")).collect::<String>() + &checked.stderr
}
