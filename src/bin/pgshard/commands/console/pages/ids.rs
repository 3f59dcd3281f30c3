//! An ID taken apart.

use maud::{Markup, html};
use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::id::Id;
use pgshard::idgen::scheme::Scheme;

use super::super::super::id::DecodedId;
use super::page::{Page, Part};
use super::words::{command, shard_link, text};
use crate::values;

/// The kinds with the names of the command line.
const SCHEMES: [(Scheme, &str, &str); 5] = [
    (Scheme::Shard, "shard", "of a shard"),
    (Scheme::Snowflake, "snowflake", "snowflake"),
    (Scheme::Flake, "flake", "flake"),
    (Scheme::Simpleflake, "simpleflake", "simpleflake"),
    (Scheme::Uuid7, "uuid7", "UUIDv7"),
];

pub(super) fn page(config: &Config, scheme: &str, id: &str) -> Page {
    let chosen = SCHEMES
        .iter()
        .find(|(_, name, _)| *name == scheme)
        .unwrap_or(&SCHEMES[0]);
    let fixed = html! {
        h1 { "IDs" }
        form.search action="/ids" {
            label for="id" { "ID" }
            input #id name="q" value=(id) autocomplete="off" spellcheck="false" size="40"
                maxlength="64" placeholder="3217563542970761261";
            label for="scheme" { "kind" }
            select #scheme name="scheme" {
                @for (_, name, words) in SCHEMES {
                    option value=(name) selected[name == chosen.1] { (words) }
                }
            }
            button { "take apart" }
        }
    };
    let part = if id.is_empty() {
        layout()
    } else {
        decoded(config, chosen.0, chosen.1, id)
    };
    Page::new("IDs", "/ids", fixed, vec![Part::new("decoded", part)])
}

fn decoded(config: &Config, scheme: Scheme, name: &str, id: &str) -> Markup {
    if scheme == Scheme::Shard {
        return match values::id(id) {
            Ok(id) => of_shard(config, id),
            Err(error) => {
                html! { div.card.bad { p { (text(&format!("{id:?} is no ID: {error}"))) } } }
            }
        };
    }
    let epoch = (scheme == Scheme::Snowflake).then_some(config.cluster.epoch);
    match scheme.decode(id, epoch) {
        Err(error) => html! { div.card.bad { p { (text(&error.to_string())) } } },
        Ok(decoded) => html! {
            div.card {
                dl {
                    dt { "ID" } dd { code { (text(&decoded.id)) } }
                    @for (name, field) in &decoded.fields {
                        dt { (name) } dd { (text(&field.to_string())) }
                    }
                }
                p { (command(format!("pgshard id decode --scheme {name} {}", decoded.id))) }
            }
        },
    }
}

fn of_shard(config: &Config, id: i64) -> Markup {
    let fields = Id::decode(id);
    let shard: ShardId = fields.shard();
    let is_here = config.cluster.shards.contains(shard);
    html! {
        div.card {
            (bits(id))
            dl {
                @for (name, value) in DecodedId::new(id, Some(config.cluster.epoch)).pairs() {
                    dt { (name) }
                    dd { @if name == "shard" && is_here { (shard_link(shard)) } @else { (value) } }
                }
            }
            @if !is_here {
                p.badly { "The cluster has " (config.cluster.shards.get())
                    " shards: this is not an ID of its own, or it lost "
                    "digits on the way (a double keeps 53 bits)." }
            }
            p { (command(format!("pgshard id decode {id}"))) " " (command(format!("pgshard locate \
                --id {id}"))) }
        }
    }
}

/// The bits, by their purpose.
fn bits(id: i64) -> Markup {
    let bits = format!("{:064b}", id.cast_unsigned());
    html! {
        p.bits aria-hidden="true" {
            span.time { (bits[..41]) } span.shard { (bits[41..54]) } span.seq { (bits[54..]) }
        }
        p.faint.small { "41 bits of time, 13 of the shard, 10 of the sequence" }
    }
}

fn layout() -> Markup {
    html! {
        div.card {
            p { "An ID of a shard has 41 bits of time, 13 of the shard and 10 of a sequence: where \
                its row is can be "
                "read from itself." }
        }
    }
}
