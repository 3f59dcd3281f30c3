//! What a rebalance would do: every host before and after, every move with its reason.

use maud::{Markup, html};
use pgshard::map::print_shards;
use pgshard::rebalance::Plan;

use super::super::super::measure::format_weight;
use super::super::super::rebalance::of_share;
use super::super::route::Spread;
use super::super::snapshot::Snapshot;
use super::draw;
use super::page::{Page, Part};
use super::plan::Planning;
use super::words::{command, shard_link, short, text};
use crate::output::{counted, size};

/// More are not read: the command prints them all.
const MOVES_MAX: usize = 200;

pub(super) fn page(seen: &Snapshot, spread: Spread) -> Page {
    let fixed = html! {
        h1 { "Balance" }
        nav.choices aria-label="What to spread" {
            span { "even out by" }
            @for (one, name, words) in Spread::ALL {
                a href=(format!("/balance?by={name}"))
                    aria-current=[(one == spread).then_some("true")] { (words) }
            }
        }
    };
    let parts = match Planning::new(seen, spread) {
        Ok(planning) => vec![
            Part::new("summary", summary(&planning, spread)),
            Part::new("hosts", hosts(&planning)),
            Part::new("planned", moves(&planning)),
        ],
        Err(why) => vec![Part::new(
            "summary",
            html! { div.card.bad { h2 { "There is no plan" } p { (text(&why)) } }
            },
        )],
    };
    Page::new("Balance", "/balance", fixed, parts)
}

fn summary(planning: &Planning, spread: Spread) -> Markup {
    let plan = &planning.plan;
    let bytes: u64 = plan.moves.iter().map(|one| one.bytes).sum();
    html! {
        div.card {
            @if plan.moves.is_empty() {
                p { "Nothing to do: the fullest host is " (percent(plan.spread_before))
                    " above the lowest that is possible." }
            } @else {
                p {
                    b { (counted(plan.moves.len(), "move")) }
                    ", " (size(bytes)) ", in " (counted(planning.waves, "wave"))
                    ". The fullest host is " (percent(plan.spread_before))
                    " above the lowest that is possible; afterwards "
                    b { (percent(plan.spread_after)) } "."
                }
            }
            @if !planning.stays.is_empty() {
                p {
                    "Shards of open moves stay: "
                    (short(&print_shards(planning.stays.iter().copied())))
                }
            }
            @for unmet in plan.unmet.iter().take(MOVES_MAX) {
                p.badly { (text(&unmet.to_string())) }
            }
            p { "See it in the terminal, then do it: \
                " (command(format!("pgshard rebalance --by {} --plan",
                spread.name())))
                " " (command(format!("pgshard rebalance --by {}", spread.name()))) }
            p.faint { "Sizes are those that VACUUM saw last; the command measures them. "
                "Rows are those of ten seconds." }
        }
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn hosts(planning: &Planning) -> Markup {
    let Planning { plan, by, .. } = planning;
    let most = |plan: &Plan| {
        let parts = plan
            .hosts
            .iter()
            .flat_map(|host| [host.before.part, host.after.part]);
        parts.fold(f64::MIN_POSITIVE, f64::max)
    };
    let most = most(plan);
    html! {
        h2 { "Hosts, before and after" }
        div.scroll { table {
            thead { tr {
                th { "host" } th.right { "share" } th.right { "shards" } th.right { "after" }
                th.right { "weight" } th.right { "after" } th.right { "of its share" }
                th.right { "after" } th.wide { "before, after" }
            } }
            tbody { @for host in &plan.hosts { tr {
                th scope="row" { (host.host.as_str()) }
                td.right { (percent(host.share)) }
                td.right { (host.before.shards) } td.right { (host.after.shards) }
                td.right { (format_weight(by, host.before.weight)) }
                td.right { (format_weight(by, host.after.weight)) }
                td.right { (of_share(host, &host.before)) }
                td.right { (of_share(host, &host.after)) }
                td {
                    (draw::bar(host.before.part / most, "before"))
                    (draw::bar(host.after.part / most, "after"))
                }
            } } }
        } }
    }
}

fn moves(planning: &Planning) -> Markup {
    let moves = &planning.plan.moves;
    if moves.is_empty() {
        return html! {};
    }
    html! {
        h2 { (counted(moves.len(), "move")) }
        div.scroll { table {
            thead { tr {
                th.right { "shard" } th { "from" } th { "to" } th.right { "size" } th { "why" }
            } }
            tbody { @for one in moves.iter().take(MOVES_MAX) { tr {
                td.right { (shard_link(one.shard)) }
                td { (one.source.as_str()) } td { (one.target.as_str()) }
                td.right { (size(one.bytes)) } td { (text(&one.reason.to_string())) }
            } } }
        } }
        @if moves.len() > MOVES_MAX { p.faint { "and " (moves.len() - MOVES_MAX) " more, which the \
            command prints" } }
    }
}
