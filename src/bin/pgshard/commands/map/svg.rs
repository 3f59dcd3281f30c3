//! The picture as SVG: a panel a host, a cell a shard, with the shard's number and weight where the
//! mouse rests.

use std::fmt::Write as _;

use super::cells::{Level, Panel, Picture};

/// How wide the cells of a panel are together.
const GRID: f64 = 320.0;
/// Space around the grid of a panel; to its left are the shards' numbers.
const LEFT: f64 = 44.0;
const RIGHT: f64 = 16.0;
const HEAD: f64 = 66.0;
const FOOT: f64 = 16.0;
/// Between panels, and around all.
const GAP: f64 = 20.0;
const TITLE: f64 = 64.0;
const LEGEND: f64 = 40.0;
const ACROSS_MAX: usize = 4;

/// The hosts' colours where no weights are shown: hues that everyone can distinguish side by side,
/// colour-blind or not.
const HOSTS: [&str; 8] = [
    "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#edc948", "#9c755f",
];

fn colour(level: Level) -> &'static str {
    match level {
        Level::Nothing => "#e9edf1",
        Level::Light => "#bcd6ea",
        Level::Average => "#5b9bc9",
        Level::Heavy => "#f0a93b",
        Level::Heaviest => "#c8322b",
    }
}

/// The picture's text.
pub(super) fn draw(picture: &Picture) -> String {
    let mut out = String::new();
    write(&mut out, picture).expect("writing to a String does not fail");
    out
}

fn write(out: &mut String, picture: &Picture) -> std::fmt::Result {
    let fullest = picture
        .panels
        .iter()
        .map(|panel| panel.cells.len())
        .max()
        .unwrap_or(0);
    // Few shards are drawn large, many small: the panels stay as wide.
    let columns = match fullest {
        0..=64 => 8,
        65..=256 => 16,
        257..=2048 => 32,
        _ => 64,
    };
    let across = picture.panels.len().clamp(1, ACROSS_MAX);
    let width = across as f64 * (LEFT + GRID + RIGHT + GAP) + GAP;
    let step = GRID / f64::from(columns);
    let height_of = |panel: &Panel| {
        HEAD + panel.cells.len().div_ceil(columns as usize).max(1) as f64 * step + FOOT
    };
    let rows: Vec<&[Panel]> = picture.panels.chunks(across).collect();
    let heights: Vec<f64> = rows
        .iter()
        .map(|row| row.iter().map(height_of).fold(0.0, f64::max))
        .collect();
    let legend = if picture.by.is_some() { LEGEND } else { 0.0 };
    let height = TITLE + heights.iter().map(|height| height + GAP).sum::<f64>() + legend;

    write!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.1}""##
    )?;
    write!(out, r##" width="{width}" height="{height:.0}""##)?;
    writeln!(
        out,
        r##" font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif">"##
    )?;
    writeln!(
        out,
        r##"<rect width="100%" height="100%" fill="#f4f6f8"/>"##
    )?;
    let what = picture.by.map(|by| format!(" by {by}")).unwrap_or_default();
    write!(
        out,
        r##"<text x="{GAP}" y="34" font-size="20" font-weight="600" fill="#1f2933">"##
    )?;
    writeln!(
        out,
        "{} shards on {} hosts{what}</text>",
        picture.shards,
        picture.panels.len()
    )?;
    writeln!(
        out,
        r##"<text x="{GAP}" y="53" font-size="12" fill="#66727f">map version {}</text>"##,
        picture.version
    )?;
    let mut top = TITLE;
    for (line, (row, height)) in rows.iter().zip(&heights).enumerate() {
        for (at, panel) in row.iter().enumerate() {
            let left = GAP + at as f64 * (LEFT + GRID + RIGHT + GAP);
            let hue = HOSTS[(line * across + at) % HOSTS.len()];
            write_panel(out, panel, (left, top, *height), columns as usize, hue)?;
        }
        top += height + GAP;
    }
    if picture.by.is_some() {
        let mut x = GAP;
        for (level, words) in Level::ALL {
            let fill = colour(level);
            let (box_y, text_y) = (top, top + 11.0);
            writeln!(
                out,
                r##"<rect x="{x}" y="{box_y:.1}" width="13" height="13" rx="2" fill="{fill}"/>"##
            )?;
            let text_x = x + 19.0;
            write!(
                out,
                r##"<text x="{text_x}" y="{text_y:.1}" font-size="12""##
            )?;
            writeln!(out, r##" fill="#3e4c59">{words}</text>"##)?;
            x += 40.0 + words.len() as f64 * 6.6;
        }
    }
    writeln!(out, "</svg>")
}

fn write_panel(
    out: &mut String,
    panel: &Panel,
    (left, top, height): (f64, f64, f64),
    columns: usize,
    hue: &'static str,
) -> std::fmt::Result {
    let width = LEFT + GRID + RIGHT;
    write!(
        out,
        r##"<rect x="{left}" y="{top:.1}" width="{width}" height="{height:.1}""##
    )?;
    writeln!(out, r##" rx="8" fill="#ffffff" stroke="#dde3e8"/>"##)?;
    let (head, end) = (top + 28.0, left + LEFT + GRID);
    let x = left + LEFT;
    // A host's name is of A-Z, a-z, 0-9, _ and -: nothing to escape.
    write!(out, r##"<text x="{x}" y="{head:.1}" font-size="16""##)?;
    writeln!(
        out,
        r##" font-weight="600" fill="#1f2933">{}</text>"##,
        panel.host
    )?;
    let count = crate::output::counted(panel.cells.len(), "shard");
    let total = panel
        .total
        .as_ref()
        .map(|(total, _)| format!(" · {total}"))
        .unwrap_or_default();
    write!(out, r##"<text x="{end}" y="{head:.1}" font-size="12""##)?;
    writeln!(
        out,
        r##" text-anchor="end" fill="#52606d">{count}{total}</text>"##
    )?;
    let bar = top + 40.0;
    if let Some((_, part)) = &panel.total {
        writeln!(
            out,
            r##"<rect x="{x}" y="{bar:.1}" width="{GRID}" height="6" rx="3" fill="#e9edf1"/>"##
        )?;
        let long = GRID * part;
        writeln!(
            out,
            r##"<rect x="{x}" y="{bar:.1}" width="{long:.1}" height="6" rx="3" fill="#52606d"/>"##
        )?;
    } else {
        writeln!(
            out,
            r##"<rect x="{x}" y="{bar:.1}" width="{GRID}" height="3" rx="1.5" fill="{hue}"/>"##
        )?;
    }
    let (step, grid) = (GRID / columns as f64, top + HEAD);
    // A number needs about twelve points of height to be read.
    let every = (12.0 / step).ceil() as usize;
    let side = step - (step * 0.14).max(0.8);
    for (row, cells) in panel.cells.chunks(columns).enumerate() {
        let y = grid + row as f64 * step;
        if let (0, Some(first)) = (row % every, cells.first()) {
            let (number_x, number_y) = (x - 6.0, y + side.min(9.0));
            write!(
                out,
                r##"<text x="{number_x}" y="{number_y:.1}" font-size="9""##
            )?;
            writeln!(
                out,
                r##" text-anchor="end" fill="#8895a2">{}</text>"##,
                first.shard
            )?;
        }
        for (column, cell) in cells.iter().enumerate() {
            let cell_x = x + column as f64 * step;
            let fill = cell.level.map_or(hue, colour);
            let weight = cell
                .weight
                .as_ref()
                .map(|weight| format!(", {weight}"))
                .unwrap_or_default();
            let radius = (side * 0.15).min(4.0);
            write!(
                out,
                r##"<rect x="{cell_x:.1}" y="{y:.1}" width="{side:.1}" height="{side:.1}""##
            )?;
            writeln!(
                out,
                r##" rx="{radius:.1}" fill="{fill}"><title>shard {}{weight}</title></rect>"##,
                cell.shard
            )?;
        }
    }
    if panel.cells.is_empty() {
        let y = grid + 14.0;
        writeln!(
            out,
            r##"<text x="{x}" y="{y:.1}" font-size="12" fill="#8895a2">no shards</text>"##
        )?;
    }
    Ok(())
}
