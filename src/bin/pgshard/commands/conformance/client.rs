//! The client under test: a process that reads each request as a line of JSON from its stdin, and
//! writes each answer as one to its stdout.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::failure::Failure;

/// The longest answer, in bytes: enough for every honest one, and a client that writes without end
/// fills no memory.
const ANSWER_MAX: usize = 64 * 1024;

/// Why a scene did not pass.
pub(super) enum Fault {
    /// The client did what it may not do, or did not do what it must.
    Client(String),
    /// The kit itself failed.
    Kit(Failure),
}

impl<E: Into<Failure>> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault::Kit(error.into())
    }
}

/// What came of a scene.
pub(super) type Played<T = ()> = Result<T, Fault>;

/// A complaint about the client.
pub(super) fn complain<T>(what: impl std::fmt::Display) -> Played<T> {
    Err(Fault::Client(what.to_string()))
}

/// What a client answers to `run`.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// The rows of the last statement.
    Rows(Vec<Vec<Option<String>>>),
    /// A SQLSTATE, or a word of the client's own.
    Error(String),
}

/// The client's process. It is killed when this is dropped.
pub(super) struct Client {
    _child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<tokio::io::Take<ChildStdout>>>,
    patience: Duration,
}

impl Client {
    /// Starts the client. Its stderr goes to ours.
    pub(super) fn start(
        line: &[String],
        config: &Path,
        patience: Duration,
    ) -> Result<Client, Failure> {
        let (program, args) = line
            .split_first()
            .ok_or_else(|| Failure::usage("which client? pgshard conformance serve -- COMMAND"))?;
        let mut command = Command::new(program);
        command.args(args).env("PGSHARD_CONFIG", config);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .map_err(|error| Failure::usage(format!("cannot start {program}: {error}")))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::usage(format!("{program} has no stdin and stdout")));
        };
        let lines =
            BufReader::new(tokio::io::AsyncReadExt::take(stdout, ANSWER_MAX as u64)).lines();
        Ok(Client {
            _child: child,
            stdin,
            lines,
            patience,
        })
    }

    /// Sends a request, and waits for the answer.
    pub(super) async fn request(&mut self, ask: &Value) -> Played<Value> {
        self.send(ask).await?;
        self.receive().await
    }

    /// Sends a request; [`Client::receive`] has the answer.
    pub(super) async fn send(&mut self, ask: &Value) -> Played {
        let line = format!("{ask}\n");
        match self.stdin.write_all(line.as_bytes()).await {
            Ok(()) => Ok(()),
            Err(error) => complain(format_args!("it does not listen any more: {error}")),
        }
    }

    /// The answer to the last request.
    pub(super) async fn receive(&mut self) -> Played<Value> {
        let line = match tokio::time::timeout(self.patience, self.lines.next_line()).await {
            Err(_) => {
                return complain(format_args!(
                    "no answer within {} s",
                    self.patience.as_secs()
                ));
            }
            Ok(Err(error)) => return complain(format_args!("its answer cannot be read: {error}")),
            Ok(Ok(None)) => {
                return complain("it ended, or said more than 64 KiB, in place of an answer");
            }
            Ok(Ok(Some(line))) => line,
        };
        match serde_json::from_str(&line) {
            Ok(Value::Object(answer)) => Ok(Value::Object(answer)),
            _ => complain(format_args!(
                "an answer is a JSON object on one line, not {line}"
            )),
        }
    }

    /// Has SQL run for a key.
    pub(super) async fn run(
        &mut self,
        key: u64,
        sql: &[&str],
        transaction: bool,
    ) -> Played<Answer> {
        self.send_run(key, sql, transaction).await?;
        self.ran().await
    }

    /// Has SQL run for a key; [`Client::ran`] has the answer.
    pub(super) async fn send_run(&mut self, key: u64, sql: &[&str], transaction: bool) -> Played {
        self.send(
            &json!({"ask": "run", "key": key.to_string(), "sql": sql, "transaction": transaction}),
        )
        .await
    }

    /// What came of the SQL.
    pub(super) async fn ran(&mut self) -> Played<Answer> {
        let answer = self.receive().await?;
        if let Some(error) = answer["error"].as_str() {
            return Ok(Answer::Error(error.to_owned()));
        }
        let text = |value: &Value| match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let rows = answer["rows"].as_array();
        let row = |row: &Value| {
            row.as_array()
                .map(|values| values.iter().map(text).collect())
        };
        match rows.map(|rows| rows.iter().map(row).collect::<Option<Vec<Vec<_>>>>()) {
            Some(Some(rows)) => Ok(Answer::Rows(rows)),
            _ => complain(format_args!(
                "`run` is answered by rows, a list of lists, or by error, a text; not {answer}"
            )),
        }
    }

    /// Has SQL run for a key, which must succeed.
    pub(super) async fn must_run(
        &mut self,
        key: u64,
        sql: &[&str],
        transaction: bool,
    ) -> Played<Vec<Vec<Option<String>>>> {
        match self.run(key, sql, transaction).await? {
            Answer::Rows(rows) => Ok(rows),
            Answer::Error(error) => complain(format_args!("{}: error {error}", sql.join("; "))),
        }
    }
}
