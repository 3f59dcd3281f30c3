//! What the processes write down of their calls: a line of JSON before and after each. A process
//! that is killed leaves the lines before.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// The notes of one process.
#[derive(Debug)]
pub(crate) struct Notes(Mutex<File>);

impl Notes {
    pub(crate) fn open(path: &Path) -> Notes {
        let file = File::options().create(true).append(true).open(path);
        Notes(Mutex::new(file.expect("the folder is the round's")))
    }

    pub(crate) fn note(&self, what: &Value) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // In one write, so that a line is whole or missing.
        file.write_all(format!("{what}\n").as_bytes())
            .expect("the disk has room");
    }

    pub(crate) fn begins(&self, op: &str, what: &str) {
        self.note(&json!({ "op": op, "begins": what }));
    }
}

/// How a call ended, as far as its process knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Undone,
    Doubt,
}

impl End {
    pub(crate) fn word(self) -> &'static str {
        match self {
            End::Done => "done",
            End::Undone => "undone",
            End::Doubt => "doubt",
        }
    }
}

/// What all processes have noted.
#[derive(Debug, Default)]
pub(crate) struct All {
    /// The calls that began, and how they ended.
    pub(crate) calls: BTreeMap<String, End>,
    /// How many ended with each word: `taken`, `busy`, …
    pub(crate) words: BTreeMap<String, u64>,
    /// What should not have happened.
    pub(crate) wrong: Vec<String>,
    /// The longest time that a claim took, in milliseconds.
    pub(crate) claim_ms: u64,
    /// The longest time until the closure ran: the claim, and a transaction on the key's shard,
    /// which may have waited for a move.
    pub(crate) began_ms: u64,
}

impl All {
    /// Reads the notes of a process.
    pub(crate) fn add(&mut self, path: &Path) {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for line in text.lines() {
            let Ok(note) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            if let Some(wrong) = note["wrong"].as_str() {
                self.wrong.push(wrong.to_owned());
            }
            let Some(op) = note["op"].as_str() else {
                continue;
            };
            let end = match note["end"].as_str() {
                Some("done") => End::Done,
                Some("undone") => End::Undone,
                // It began, and its process has not noted how it ended.
                _ => End::Doubt,
            };
            self.calls.insert(op.to_owned(), end);
            if let Some(word) = note["word"].as_str() {
                *self.words.entry(word.to_owned()).or_default() += 1;
            }
            let ms = |name: &str| note[name].as_u64().unwrap_or_default();
            self.claim_ms = self.claim_ms.max(ms("claim_ms"));
            self.began_ms = self.began_ms.max(ms("began_ms"));
        }
    }
}
