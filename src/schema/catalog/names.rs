//! The names of a schema's objects, in SQL and for people.

use std::collections::BTreeMap;

use super::facts::{Address, Facts, Name, SimpleObject};
use crate::pg::quote_ident;

impl Facts {
    /// Names every object as SQL names it in a comment, without the schema: `TABLE "photos"`,
    /// `TRIGGER "t" ON "photos"`.
    pub(crate) fn names(&self) -> BTreeMap<Address, Name> {
        names(self)
    }
}

fn names(facts: &Facts) -> BTreeMap<Address, Name> {
    let mut names = BTreeMap::new();
    let mut put = |class: &str, oid: u32, name: Name| {
        names.insert(Address::new(class, oid), name);
    };
    let mut schema = plain("schema", "SCHEMA", &facts.schema);
    // The schema's name is left out: the same schema has several in the course of a move.
    schema.plain = "schema".to_owned();
    put("pg_namespace", facts.oid, schema);
    for relation in &facts.relations {
        put(
            "pg_class",
            relation.oid,
            plain(
                relation.kind.plain(),
                relation.kind.keyword(),
                &relation.name,
            ),
        );
        for column in &relation.columns {
            if let Some(oid) = column.default_oid {
                let mut name = plain("default of", "", &column.name);
                name.plain = format!("default of {}.{}", relation.name, column.name);
                put("pg_attrdef", oid, name);
            }
        }
    }
    for sequence in &facts.sequences {
        put(
            "pg_class",
            sequence.oid,
            plain("sequence", "SEQUENCE", &sequence.name),
        );
    }
    for index in &facts.indexes {
        put("pg_class", index.oid, plain("index", "INDEX", &index.name));
    }
    for type_ in &facts.types {
        let keyword = if type_.kind == super::TypeKind::Domain {
            "DOMAIN"
        } else {
            "TYPE"
        };
        put("pg_type", type_.oid, plain("type", keyword, &type_.name));
    }
    for function in &facts.functions {
        let (word, keyword) = match function.kind.as_str() {
            "p" => ("procedure", "PROCEDURE"),
            "a" => ("aggregate", "AGGREGATE"),
            _ => ("function", "FUNCTION"),
        };
        // `*` is for an aggregate over rows, not values.
        let is_of_rows = function.kind == "a" && function.arguments.is_empty();
        let arguments = if is_of_rows { "*" } else { &function.arguments };
        put(
            "pg_proc",
            function.oid,
            Name {
                plain: format!("{word} {}({})", function.name, function.arguments),
                keyword,
                quoted: format!("{}({})", quote_ident(&function.name), arguments),
                on: None,
            },
        );
    }
    for constraint in &facts.constraints {
        let of_type = || facts.types.iter().find(|t| t.oid == constraint.type_);
        let domain = (constraint.type_ != 0).then(of_type).flatten();
        let (word, on) = match domain {
            Some(domain) => ("DOMAIN ", domain.name.as_str()),
            None => ("", facts.relation_name(constraint.relation)),
        };
        put(
            "pg_constraint",
            constraint.oid,
            attached("constraint", "CONSTRAINT", &constraint.name, word, on),
        );
    }
    for trigger in &facts.triggers {
        let on = facts.relation_name(trigger.relation);
        put(
            "pg_trigger",
            trigger.oid,
            attached("trigger", "TRIGGER", &trigger.name, "", on),
        );
    }
    for policy in &facts.policies {
        let on = facts.relation_name(policy.relation);
        put(
            "pg_policy",
            policy.oid,
            attached("policy", "POLICY", &policy.name, "", on),
        );
    }
    for rule in &facts.rules {
        put(
            "pg_rewrite",
            rule.oid,
            attached(
                "rule",
                "RULE",
                &rule.name,
                "",
                facts.relation_name(rule.relation),
            ),
        );
    }
    for one in &facts.simple {
        put(one.kind.class(), one.oid, simple(one));
    }
    for statistics in &facts.statistics {
        put(
            "pg_statistic_ext",
            statistics.oid,
            plain("statistics", "STATISTICS", &statistics.name),
        );
    }
    names
}

/// A symbol, and what distinguishes it from others, is not quoted.
fn simple(one: &SimpleObject) -> Name {
    let mut name = plain(one.kind.plain(), one.kind.keyword(), &one.name);
    if !one.signature.is_empty() {
        name.quoted = format!("{}{}", one.name, one.signature);
        name.plain = format!("{} {}", one.kind.plain(), name.quoted);
    }
    name
}

fn plain(word: &str, keyword: &'static str, name: &str) -> Name {
    Name {
        plain: format!("{word} {name}"),
        keyword,
        quoted: quote_ident(name),
        on: None,
    }
}

fn attached(
    word: &str,
    keyword: &'static str,
    name: &str,
    on_keyword: &'static str,
    on: &str,
) -> Name {
    Name {
        plain: format!("{word} {name} on {on}"),
        keyword,
        quoted: quote_ident(name),
        on: Some((on_keyword, quote_ident(on))),
    }
}
