//! Words that the text and the page share.

use pgshard::import::{Assessment, Figure, Level, StatementClass, Verdict};

use crate::output::{counted, size};

/// The verdict in a sentence.
pub(super) fn sentence(assessment: &Assessment) -> String {
    let changes = assessment.of(Level::Change).count();
    let checks = assessment.of(Level::Check).count();
    let after = match checks {
        0 => String::new(),
        count => format!(", and {} to check", counted(count, "thing")),
    };
    match assessment.verdict {
        Verdict::Possible => format!("an import is possible{after}"),
        Verdict::PossibleAfterChanges => format!(
            "an import is possible after {}{after}",
            counted(changes, "change")
        ),
        Verdict::Impossible => {
            let why: Vec<&str> = assessment
                .of(Level::Impossible)
                .map(|obstacle| obstacle.title)
                .collect();
            format!("an import is impossible: {}", why.join("; "))
        }
    }
}

/// A figure for people.
pub(super) fn value(figure: &Figure) -> String {
    let Some(value) = figure.value else {
        return "unknown".to_owned();
    };
    match figure.unit {
        "seconds" => duration(value),
        "bytes" => size(value.max(0.0) as u64),
        unit => format!("{value:.0} {unit}"),
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
