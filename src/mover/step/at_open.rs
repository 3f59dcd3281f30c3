//! The statements that the open of a target runs, as a list and as one text.

use crate::mover::definition::ddl::{Creation, Online, Stage, Statement};
use crate::mover::step::keys::is_key;
use crate::schema::catalog::CLOSE_PATH;

pub(super) fn statements_at(creation: &Creation, when: Online) -> impl Iterator<Item = &Statement> {
    creation
        .after_data
        .iter()
        .filter(move |statement| statement.online() == when)
}

/// The statements that the open runs, one after the other. Foreign keys are added NOT VALID: to
/// validate them takes a scan.
pub(crate) fn at_open(creation: &Creation) -> impl Iterator<Item = Statement> {
    statements_at(creation, Online::Open).map(|statement| match statement.stage {
        Stage::ForeignKey if is_key(&statement.sql) => Statement {
            sql: format!("{} NOT VALID", statement.sql),
            ..statement.clone()
        },
        _ => statement.clone(),
    })
}

/// The same as a single text.
pub(crate) fn text_at_open(creation: &Creation) -> String {
    text(&at_open(creation).collect::<Vec<_>>())
}

/// Statements as the single text that pgshard.open_incoming runs. What the function runs after it
/// must not find the shard's objects by their names, so the text ends with another `search_path`.
pub(super) fn text(statements: &[Statement]) -> String {
    let one = |statement: &Statement| match &statement.path {
        Some((before, after)) => format!("{before};\n{};\n{after};\n", statement.sql),
        None => format!("{};\n", statement.sql),
    };
    let mut all: String = statements.iter().map(one).collect();
    if !all.is_empty() {
        all.push_str(CLOSE_PATH);
        all.push_str(";\n");
    }
    all
}
