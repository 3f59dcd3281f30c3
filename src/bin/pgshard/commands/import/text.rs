//! The report as text: the verdict, what to change, what to check, then the findings.

use pgshard::import::{Assessment, Level, Obstacle, ObstacleObject, TableDecision};

use super::words::{class, extent, rows, sentence, value};
use crate::output::{Align, Output, counted, cut, size, wrapped};

/// How many objects of an obstacle are named; `--json` has all.
const OBJECTS_MAX: usize = 8;

/// How many tables of each decision are listed; `--json` has all.
const TABLES_MAX: usize = 100;

/// How many statements are shown.
const STATEMENTS_MAX: usize = 10;

pub(super) fn print(assessment: &Assessment, output: &Output) {
    let columns = output.columns().clamp(60, 100);
    let say = |indent: &str, text: &str| {
        let text = wrapped(text, indent.len(), indent, columns);
        output.data(format_args!("{indent}{text}"));
    };
    say(
        "",
        &format!(
            "{} (PostgreSQL {}), by {}: {}",
            assessment.database,
            assessment.server_version,
            assessment.key,
            sentence(assessment)
        ),
    );
    say("", &format!("{}.", extent(assessment)));
    let levels = [
        (Level::Impossible, "in the way"),
        (Level::Change, "to change first"),
        (Level::Check, "to check"),
    ];
    for (level, title) in levels {
        let mut number = 0;
        for obstacle in assessment.of(level) {
            number += 1;
            if number == 1 {
                output.data(format_args!("\n{title}"));
            }
            let first = format!("{number}. ");
            let head = format!("{} ({})", obstacle.title, obstacle.id);
            let text = wrapped(&head, first.len() + 2, "     ", columns);
            output.data(format_args!("  {first}{text}"));
            objects(obstacle, &say);
            if obstacle.objects.iter().any(|one| one.remedy.is_none()) {
                say("     ", &format!("remedy: {}", obstacle.remedy));
            }
        }
    }
    tables(assessment, output);
    statements(assessment, output, &say);
    ids_and_keys(assessment, output, &say);
    output.data("\nto expect, roughly");
    for figure in &assessment.figures {
        say("  ", &format!("{}: {}", figure.title, value(figure)));
        say("    ", &figure.assumes);
    }
    if !assessment.unknown.is_empty() {
        output.data("\nnot known");
        for one in &assessment.unknown {
            say("  ", one);
        }
    }
}

fn objects(obstacle: &Obstacle, say: &impl Fn(&str, &str)) {
    for one in obstacle.objects.iter().take(OBJECTS_MAX) {
        say("     ", &object(one));
        if let Some(remedy) = &one.remedy {
            say("       ", &format!("remedy: {remedy}"));
        }
    }
    if let Some(more) = obstacle.objects.len().checked_sub(OBJECTS_MAX + 1) {
        say("     ", &format!("and {} more (--json)", more + 1));
    }
}

/// An object in a line.
fn object(one: &ObstacleObject) -> String {
    if one.detail.is_empty() {
        one.name.clone()
    } else {
        format!("{}: {}", one.name, one.detail)
    }
}

fn tables(assessment: &Assessment, output: &Output) {
    let decisions = [
        TableDecision::Key,
        TableDecision::KeyColumn,
        TableDecision::PathToKey,
        TableDecision::Reference,
        TableDecision::Stays,
        TableDecision::Impossible,
    ];
    let counts: Vec<String> = decisions
        .iter()
        .map(|decision| (decision, assessment.decided(*decision).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(decision, count)| format!("{count} {}", decision.title()))
        .collect();
    output.data(format_args!("\ntables: {}", counts.join(", ")));
    let shown = decisions.iter().flat_map(|decision| {
        let decided = assessment.decided(*decision);
        decided.take(TABLES_MAX)
    });
    let table = shown.map(|table| {
        [
            cut(&table.table, 40),
            table.decision.title().to_owned(),
            rows(table.rows),
            size(u64::try_from(table.bytes).unwrap_or_default()),
            table.reason.clone(),
        ]
    });
    let columns = [
        ("table", Align::Left),
        ("decision", Align::Left),
        ("rows", Align::Right),
        ("size", Align::Right),
        ("why", Align::Left),
    ];
    output.table(&columns, table);
    for decision in decisions {
        let count = assessment.decided(decision).count();
        if let Some(more) = count.checked_sub(TABLES_MAX).filter(|more| *more > 0) {
            let title = decision.title();
            output.data(format_args!("and {more} more: {title} (--json)"));
        }
    }
}

fn statements(assessment: &Assessment, output: &Output, say: &impl Fn(&str, &str)) {
    let Some(statements) = &assessment.statements else {
        return;
    };
    let measure = if statements.by_time {
        "by share of time"
    } else {
        "by share of calls"
    };
    output.data(format_args!(
        "\nstatements: {} in {}, {measure}",
        plural(statements.calls, "call"),
        plural(statements.forms, "form")
    ));
    for share in &statements.shares {
        let (name, percent) = (class(share.class), share.share * 100.0);
        say(
            "  ",
            &format!("{name}: {percent:.1} %, {}", plural(share.forms, "form")),
        );
    }
    if statements.left_out > 0 {
        let left_out = statements.left_out;
        say(
            "  ",
            &format!("{left_out} calls were not judged: there are too many forms"),
        );
    }
    for one in statements.without_key.iter().take(STATEMENTS_MAX) {
        let (name, percent) = (class(one.class), one.share * 100.0);
        say("  ", &format!("{percent:.1} % {name} ({})", one.about));
        say("    ", &cut(&one.statement, 300));
    }
    if let Some(more) = statements.without_key.len().checked_sub(STATEMENTS_MAX + 1) {
        say("  ", &format!("and {} more (--json)", more + 1));
    }
}

fn plural(count: u64, thing: &str) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), thing)
}

fn ids_and_keys(assessment: &Assessment, output: &Output, say: &impl Fn(&str, &str)) {
    let ids = &assessment.ids;
    output.data("\nIDs");
    if let (Some(largest), Some(column)) = (&ids.largest, &ids.largest_of) {
        say("  ", &format!("largest: {largest} ({column})"));
    }
    say(
        "  ",
        &format!(
            "first of a shard: {} (epoch {})",
            ids.first_of_shards, ids.epoch
        ),
    );
    if let Some(below) = &ids.legacy_below {
        say("  ", &format!("legacy_below = {below} fits between them"));
    }
    if assessment.largest_keys.is_empty() {
        return;
    }
    output.data("\nlargest keys, by the statistics of ANALYZE or a sample");
    let keys = assessment.largest_keys.iter().map(|key| {
        [
            cut(&key.key, 40),
            rows(Some(key.rows)),
            size(key.bytes.max(0.0) as u64),
            format!("{:.2} %", key.share * 100.0),
        ]
    });
    let columns = [
        ("key", Align::Left),
        ("rows", Align::Right),
        ("size", Align::Right),
        ("share", Align::Right),
    ];
    output.table(&columns, keys);
}
