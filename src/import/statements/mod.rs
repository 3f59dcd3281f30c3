//! What the application sends: from `pg_stat_statements`, or from a file.
//!
//! Statements are reduced to their forms first ([`form`]), so that a million of them are a few
//! thousand to parse, and are then parsed ([`parse`]) and judged ([`judge`]): does each name the
//! key? What cannot be parsed is counted and listed.

mod class;
mod collect;
mod csv;
mod file;
mod form;
mod judge;
mod parse;
mod view;

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Client;

pub use self::class::StatementClass;
use self::collect::StatementForms;
use super::decide::Decisions;
use super::error::Error;
use super::facts::Database;
use super::obstacle::{BlockingObject, Kind};

/// Where statements come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatementSource {
    /// The extension `pg_stat_statements`.
    PgStatStatements,
    /// A file.
    File,
}

/// What was found out about the statements.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StatementReport {
    /// Where they come from.
    pub source: StatementSource,
    /// Whether shares are of the time that they took; otherwise of their number.
    pub by_time: bool,
    /// How many were sent.
    pub calls: u64,
    /// How many differ in more than their values.
    pub forms: u64,
    /// How many were not judged, because too many forms came before them.
    pub left_out: u64,
    /// The share of each class.
    pub shares: Vec<ClassShare>,
    /// Those that do not name the key, and those that cannot be read, the largest share first.
    pub without_key: Vec<WithoutKey>,
}

/// The share of a class.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ClassShare {
    /// The class.
    pub class: StatementClass,
    /// How many forms.
    pub forms: u64,
    /// How many were sent.
    pub calls: u64,
    /// Their share.
    pub share: f64,
}

/// A statement that does not name the key.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WithoutKey {
    /// Its class.
    pub class: StatementClass,
    /// Its share.
    pub share: f64,
    /// How often it was sent.
    pub calls: u64,
    /// Its text, with `$1` for each value.
    pub statement: String,
    /// The tables that make it so, or why it cannot be read.
    pub about: String,
}

/// How many statements are listed.
const LISTED_MAX: usize = 200;

/// As much of a statement is shown.
const SHOWN_MAX: usize = 1000;

/// Reads the statements and judges them. `Ok(Err(…))` is why they are not known.
pub(super) async fn read_and_judge(
    client: &Client,
    database: &Database,
    decisions: &Decisions,
    file: Option<&Path>,
) -> Result<Result<(StatementReport, Vec<BlockingObject>), String>, Error> {
    let (source, collected) = match file {
        Some(path) => {
            let collected = file::read(path).map_err(|source| Error::Statements {
                path: path.to_owned(),
                source,
            })?;
            (StatementSource::File, collected)
        }
        None => match view::read(client).await? {
            Ok(collected) => (StatementSource::PgStatStatements, collected),
            Err(why) => return Ok(Err(why)),
        },
    };
    Ok(Ok(report(source, &collected, database, decisions)))
}

/// The report, and the obstacles in it.
fn report(
    source: StatementSource,
    collected: &StatementForms,
    database: &Database,
    decisions: &Decisions,
) -> (StatementReport, Vec<BlockingObject>) {
    let judge = judge::Judge::new(database, decisions);
    let by_time = collected.time_ms > 0.0;
    let whole = if by_time {
        collected.time_ms
    } else {
        collected.calls as f64
    };
    let mut shares: Vec<ClassShare> = Vec::new();
    let mut listed = Vec::new();
    let mut with_schema = (0_u64, 0.0, String::new());
    for (text, tally) in &collected.forms {
        let verdict = judge.judge(text);
        let weight = if by_time {
            tally.time_ms
        } else {
            tally.calls as f64
        };
        let share = if whole > 0.0 { weight / whole } else { 0.0 };
        match shares.iter_mut().find(|known| known.class == verdict.class) {
            Some(known) => {
                known.forms += 1;
                known.calls += tally.calls;
                known.share += share;
            }
            None => shares.push(ClassShare {
                class: verdict.class,
                forms: 1,
                calls: tally.calls,
                share,
            }),
        }
        if verdict.names_schema {
            if with_schema.0 == 0 || share > with_schema.1 {
                with_schema.2 = shown(text);
            }
            with_schema = (with_schema.0 + 1, with_schema.1 + share, with_schema.2);
        }
        let is_fine = matches!(verdict.class, StatementClass::ByKey | StatementClass::Other);
        if !is_fine {
            listed.push(WithoutKey {
                class: verdict.class,
                share,
                calls: tally.calls,
                statement: shown(text),
                about: verdict.about,
            });
        }
    }
    shares.sort_by_key(|one| one.class);
    listed.sort_by(|a, b| {
        b.share
            .total_cmp(&a.share)
            .then_with(|| a.statement.cmp(&b.statement))
    });
    listed.truncate(LISTED_MAX);
    let mut found: Vec<BlockingObject> = shares
        .iter()
        .filter_map(|one| obstacle(one, by_time))
        .collect();
    if with_schema.0 > 0 {
        found.push(BlockingObject::new(
            Kind::StatementsWithSchema,
            forms(with_schema.0),
            format!("such as {}", with_schema.2),
        ));
    }
    let report = StatementReport {
        source,
        by_time,
        calls: collected.calls,
        forms: collected.forms.len() as u64,
        left_out: collected.left_out,
        shares,
        without_key: listed,
    };
    (report, found)
}

fn obstacle(share: &ClassShare, by_time: bool) -> Option<BlockingObject> {
    let kind = match share.class {
        StatementClass::Across => Kind::StatementsAcross,
        StatementClass::WithoutKey => Kind::StatementsWithoutKey,
        StatementClass::ById => Kind::StatementsById,
        StatementClass::Unreadable => Kind::StatementsUnreadable,
        StatementClass::ByKey | StatementClass::Other => return None,
    };
    let measure = if by_time { "time" } else { "calls" };
    let detail = format!("{:.1} % of the {measure}", share.share * 100.0);
    Some(BlockingObject::new(kind, forms(share.forms), detail))
}

fn forms(count: u64) -> String {
    match count {
        1 => "1 statement".to_owned(),
        count => format!("{count} statements"),
    }
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
