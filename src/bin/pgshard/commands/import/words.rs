//! Words that the text and the page share.

use pgshard::import::{
    Assessment, Figure, Level, StatementClass, TableDecision, TableReport, Verdict,
};

use crate::output::{counted, size};

/// The verdict in a sentence.
pub(super) fn sentence(assessment: &Assessment) -> String {
    let after = match objects(assessment, Level::Check) {
        (0, _) => String::new(),
        (count, kinds) => format!(", and {} to check", of_kinds(count, "thing", kinds)),
    };
    match assessment.verdict {
        Verdict::Possible => format!("an import is possible{after}"),
        Verdict::PossibleAfterChanges => format!("an import is possible after {}{after}", {
            let (count, kinds) = objects(assessment, Level::Change);
            of_kinds(count, "change", kinds)
        }),
        Verdict::Impossible => {
            let why: Vec<&str> = assessment
                .of(Level::Impossible)
                .map(|obstacle| obstacle.title)
                .collect();
            format!("an import is impossible: {}", why.join("; "))
        }
    }
}

/// How many objects obstacles of a level have, and how many kinds of obstacle these are.
fn objects(assessment: &Assessment, level: Level) -> (usize, usize) {
    let objects = assessment.of(level).map(|obstacle| obstacle.objects.len());
    (objects.sum(), assessment.of(level).count())
}

/// `3 changes of 2 kinds`; without the kinds if each has one object.
fn of_kinds(count: usize, thing: &str, kinds: usize) -> String {
    if kinds == count {
        counted(count, thing)
    } else {
        format!("{} of {}", counted(count, thing), counted(kinds, "kind"))
    }
}

/// How much of the database goes to shards, in a sentence.
pub(super) fn extent(assessment: &Assessment) -> String {
    let imported = assessment.tables.iter().filter(|table| {
        matches!(
            table.decision,
            TableDecision::Key | TableDecision::KeyColumn | TableDecision::PathToKey
        )
    });
    let bytes = |tables: &mut dyn Iterator<Item = &TableReport>| -> f64 {
        tables.map(|table| table.bytes.max(0) as f64).sum()
    };
    let all = bytes(&mut assessment.tables.iter());
    let share = bytes(&mut imported.clone()) / all.max(1.0);
    let lost = assessment.decided(TableDecision::Impossible).count();
    let rest = match lost {
        0 => "the rest stays, or is a reference",
        _ => "the rest stays, is a reference, or is impossible as it is",
    };
    format!(
        "{} of {} with {:.0} % of the bytes go to shards; {rest}",
        imported.count(),
        counted(assessment.tables.len(), "table"),
        share * 100.0
    )
}

/// A figure for people.
pub(super) fn value(figure: &Figure) -> String {
    let Some(value) = figure.value else {
        return "unknown".to_owned();
    };
    match figure.unit {
        "seconds" => duration(value),
        "bytes" => size(value.max(0.0) as u64),
        unit => format!("{} {unit}", rows(Some(value))),
    }
}

/// A rough duration: `0.3 s`, `4 min`, `7 h`.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

/// Rows for people: `1.2 M`.
pub(super) fn rows(rows: Option<f64>) -> String {
    match rows {
        None => "?".to_owned(),
        Some(rows) if rows >= 1e9 => format!("{:.1} G", rows / 1e9),
        Some(rows) if rows >= 1e6 => format!("{:.1} M", rows / 1e6),
        Some(rows) if rows >= 1e4 => format!("{:.0} k", rows / 1e3),
        Some(rows) => format!("{rows:.0}"),
    }
}

/// What classes of statements are called.
pub(super) fn class(class: StatementClass) -> &'static str {
    match class {
        StatementClass::Across => "across the border",
        StatementClass::WithoutKey => "without the key",
        StatementClass::ById => "by an ID",
        StatementClass::ByKey => "by the key",
        StatementClass::Other => "no imported table",
        StatementClass::Unreadable => "unreadable",
    }
}
