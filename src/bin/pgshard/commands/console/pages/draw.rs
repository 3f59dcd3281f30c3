//! Bars, timelines and histograms as SVG. Sizes are attributes, since a style within a page is not
//! allowed.

use maud::{Markup, html};

/// How much of a whole, as a bar. The number is next to it: the bar alone means nothing to a screen
/// reader.
pub(super) fn bar(part: f64, kind: &str) -> Markup {
    let width = if part.is_finite() {
        (part * 100.0).clamp(0.0, 100.0)
    } else {
        0.0
    };
    html! {
        svg.bar viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
            rect.track width="100" height="8" rx="2" {}
            rect class=(kind) width=(format!("{width:.1}")) height="8" rx="2" {}
        }
    }
}

/// A bar of steps, one after another.
pub(super) fn steps(steps: &[(String, f64)]) -> Markup {
    let whole: f64 = steps.iter().map(|(_, ms)| ms).sum();
    let mut left = 0.0;
    html! {
        svg.steps viewBox="0 0 1000 20" preserveAspectRatio="none" role="img"
            aria-label=(describe_steps(steps)) {
            rect.track width="1000" height="20" {}
            @for (at, (name, ms)) in steps.iter().enumerate() {
                @let width = if whole > 0.0 { ms / whole * 1000.0 } else { 0.0 };
                rect class=(format!("s{}", at % 8)) x=(format!("{left:.1}"))
                    width=(format!("{width:.1}")) height="20" {
                    title { (name) ": " (milliseconds(*ms)) }
                }
                @let () = left += width;
            }
        }
        ul.legend {
            @for (at, (name, ms)) in steps.iter().enumerate() {
                li {
                    svg.swatch viewBox="0 0 10 10" aria-hidden="true" {
                        rect class=(format!("s{}", at % 8)) width="10" height="10" {}
                    }
                    (name) " " b { (milliseconds(*ms)) }
                }
            }
        }
    }
}

fn describe_steps(steps: &[(String, f64)]) -> String {
    let step = |(name, ms): &(String, f64)| format!("{name} {}", milliseconds(*ms));
    steps.iter().map(step).collect::<Vec<_>>().join(", ")
}

/// `0.4 ms`, `12 ms`, `3.2 s`.
pub(super) fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

/// How many of each, as columns with their numbers above and their names below.
pub(super) fn histogram(columns: &[(String, usize)], title: &str) -> Markup {
    const WIDE: usize = 64;
    const HIGH: f64 = 120.0;
    let most = columns
        .iter()
        .map(|(_, count)| *count)
        .max()
        .unwrap_or(0)
        .max(1) as f64;
    let width = columns.len() * WIDE;
    let told: Vec<String> = columns
        .iter()
        .map(|(name, count)| format!("{name}: {count}"))
        .collect();
    html! {
        svg.histogram viewBox=(format!("0 0 {width} 170")) role="img"
            aria-label=(format!("{title}: {}", told.join("; "))) {
            @for (at, (name, count)) in columns.iter().enumerate() {
                @let high = *count as f64 / most * HIGH;
                @let (x, middle) = (at * WIDE + 4, at * WIDE + WIDE / 2);
                rect.column x=(x) y=(format!("{:.1}", 20.0 + HIGH - high)) width=(WIDE - 8)
                    height=(format!("{high:.1}")) rx="3" {}
                @if *count > 0 {
                    text x=(middle) y=(format!("{:.1}", 14.0 + HIGH - high)) text-anchor="middle" {
                        (count)
                    }
                }
                text.faint x=(middle) y="160" text-anchor="middle" { (name) }
            }
            line.axis x1="0" x2=(width) y1="141" y2="141" {}
        }
    }
}
