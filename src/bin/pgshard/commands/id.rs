//! `pgshard id`: IDs without a database.

use std::path::Path;

use jiff::Timestamp;
use pgshard::ShardId;
use pgshard::id::{Epoch, Id, IdRange, MS_MAX, RangeError};
use pgshard::idgen::scheme::{self, Field, Scheme};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{IdDecode, IdEncode};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};
use crate::values;

/// IDs of the first minute after the epoch, when no cluster was there yet: up to 503 thousand
/// million.
pub(super) const TICKETS_END: i64 = 60_000 << 23;

/// Warns of a number that decodes as any ID does, but most likely is none.
pub(super) fn warn_of_ticket(id: i64, output: &Output) {
    if (0..TICKETS_END).contains(&id) {
        output.warning(format_args!(
            "there is no time in {id}: is it an ID? A ticket or a serial number may be a key \
                (`pgshard locate --key {id}`)"
        ));
    }
}

/// An ID and what it carries, as JSON has it.
#[derive(JsonSchema, Serialize)]
pub(crate) struct DecodedId {
    id: String,
    ms: u64,
    /// `null` where the epoch is not known.
    time: Option<String>,
    shard: u16,
    seq: u16,
}

impl DecodedId {
    /// Takes the ID apart.
    pub(super) fn new(id: i64, epoch: Option<Epoch>) -> DecodedId {
        let fields = Id::decode(id);
        DecodedId {
            id: id.to_string(),
            ms: fields.ms(),
            time: epoch.map(|epoch| epoch.time(fields.ms()).to_string()),
            shard: fields.shard().get(),
            seq: fields.seq(),
        }
    }

    /// The shard that it carries.
    pub(super) fn shard(&self) -> u16 {
        self.shard
    }

    /// The same as names and values.
    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
        vec![
            ("id", self.id.clone()),
            ("time", self.time_or_dash()),
            ("ms", self.ms.to_string()),
            ("shard", self.shard.to_string()),
            ("seq", self.seq.to_string()),
        ]
    }

    fn time_or_dash(&self) -> String {
        self.time.clone().unwrap_or_else(|| "-".to_owned())
    }

    fn row(&self) -> [String; 5] {
        [
            self.id.clone(),
            self.time_or_dash(),
            self.ms.to_string(),
            self.shard.to_string(),
            self.seq.to_string(),
        ]
    }
}

/// An ID of another kind, as JSON has it: every field under its name.
#[derive(JsonSchema, Serialize)]
pub(crate) struct OtherDecoded {
    scheme: &'static str,
    id: String,
    #[serde(flatten)]
    fields: serde_json::Map<String, serde_json::Value>,
}

impl OtherDecoded {
    pub(super) fn new(scheme: Scheme, decoded: &scheme::Decoded) -> OtherDecoded {
        let value = |field: &Field| match field {
            Field::Number(number) => (*number).into(),
            Field::Time(None) => serde_json::Value::Null,
            text => text.to_string().into(),
        };
        let fields = decoded
            .fields
            .iter()
            .map(|(name, field)| ((*name).to_owned(), value(field)));
        OtherDecoded {
            scheme: scheme.as_str(),
            id: decoded.id.clone(),
            fields: fields.collect(),
        }
    }
}

/// Takes IDs apart.
pub(crate) fn decode(
    args: &IdDecode,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    match args.scheme() {
        Scheme::Shard => {
            let id = |text: &String| {
                values::id(text)
                    .map_err(|error| Failure::usage(format!("{text:?} is no ID: {error}")))
            };
            let ids: Vec<i64> = args.ids.iter().map(id).collect::<Result<_, _>>()?;
            decode_shard(&ids, args.epoch.epoch, config, output)
        }
        // The epoch of snowflakes is that of --epoch, else the config's, else Twitter's.
        Scheme::Snowflake => decode_other(
            Scheme::Snowflake,
            args,
            context::epoch_if_known(args.epoch.epoch, config)?,
            output,
        ),
        scheme => decode_other(scheme, args, args.epoch.epoch, output),
    }
}

fn decode_other(
    scheme: Scheme,
    args: &IdDecode,
    epoch: Option<Epoch>,
    output: &Output,
) -> Result<Exit, Failure> {
    let decode = |text: &String| scheme.decode(text, epoch).map_err(Failure::usage);
    let decoded: Vec<_> = args.ids.iter().map(decode).collect::<Result<_, _>>()?;
    match (output.format(), decoded.as_slice()) {
        (Format::Json, all) => all
            .iter()
            .for_each(|id| output.object(OtherDecoded::new(scheme, id))),
        (Format::Text, [one]) => {
            let id = [("id", one.id.clone())].into_iter();
            let pairs = id.chain(
                one.fields
                    .iter()
                    .map(|(name, field)| (*name, field.to_string())),
            );
            output.pairs(&pairs.collect::<Vec<_>>());
        }
        (Format::Text, all) => {
            // All of one kind have the same fields.
            let names = all
                .first()
                .map(|first| first.fields.as_slice())
                .unwrap_or_default();
            let column = |(name, field): &(&'static str, Field)| match field {
                Field::Number(_) => (*name, Align::Right),
                _ => (*name, Align::Left),
            };
            let columns: Vec<_> = std::iter::once(("id", Align::Right))
                .chain(names.iter().map(column))
                .collect();
            let row = |id: &scheme::Decoded| {
                let fields = id.fields.iter().map(|(_, field)| field.to_string());
                std::iter::once(id.id.clone())
                    .chain(fields)
                    .collect::<Vec<_>>()
            };
            output.table(&columns, all.iter().map(row));
        }
    }
    Ok(Exit::Done)
}

/// Takes shards' IDs apart.
fn decode_shard(
    ids: &[i64],
    epoch: Option<Epoch>,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config_if_any(config)?;
    let epoch = epoch.or(config.as_ref().map(|config| config.cluster.epoch));
    let decoded: Vec<DecodedId> = ids.iter().map(|id| DecodedId::new(*id, epoch)).collect();
    let below = config.map_or(0, |config| config.cluster.legacy_below);
    if let [id] = ids
        && !(0..below).contains(id)
    {
        warn_of_ticket(*id, output);
    }
    for id in ids.iter().filter(|id| (0..below).contains(*id)) {
        output.warning(format_args!(
            "the ID {id} names no shard: those below {below} (legacy_below) are from before the \
             shards"
        ));
    }
    match (output.format(), decoded.as_slice()) {
        (Format::Json, _) => decoded.iter().for_each(|id| output.object(id)),
        (Format::Text, [id]) => output.pairs(&id.pairs()),
        (Format::Text, ids) => {
            let columns = [
                ("id", Align::Right),
                ("time", Align::Left),
                ("ms", Align::Right),
                ("shard", Align::Right),
                ("seq", Align::Right),
            ];
            output.table(&columns, ids.iter().map(DecodedId::row));
        }
    }
    if epoch.is_none() && output.format() == Format::Text {
        output.hint("the time is known with --epoch, or with a config");
    }
    Ok(Exit::Done)
}

/// Puts an ID together.
pub(crate) fn encode(
    args: IdEncode,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let (ms, epoch) = match (args.ms, args.time) {
        (Some(ms), _) => (ms, None),
        (None, Some(time)) => {
            let epoch = context::epoch(args.epoch.epoch, config)?;
            (epoch.ms(time).map_err(Failure::usage)?, Some(epoch))
        }
        (None, None) => return Err(Failure::usage("an ID needs --time or --ms")),
    };
    let shard = ShardId::new(args.shard).ok_or_else(|| Failure::usage("the last shard is 8191"))?;
    let id = Id::new(ms, shard, args.seq);
    let id = id.ok_or_else(|| {
        Failure::usage(format!(
            "{ms} ms are past {MS_MAX}, the last that 41 bits can hold"
        ))
    })?;
    match output.format() {
        Format::Json => output.object(DecodedId::new(id.encode(), epoch)),
        Format::Text => output.data(id.encode()),
    }
    Ok(Exit::Done)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Range {
    from: String,
    to: String,
    min: String,
    max: String,
}

/// The IDs of a span of time.
pub(crate) fn range(
    from: Timestamp,
    to: Timestamp,
    epoch: Option<Epoch>,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let epoch = context::epoch(epoch, config)?;
    let range = IdRange::between(epoch, from, to).map_err(|error| match error {
        RangeError::SignFlip { flip } => Failure::usage(error).hint(format!(
            "--from {from} --to {flip}, then --from {flip} --to {to}"
        )),
        error => Failure::usage(error),
    })?;
    match output.format() {
        Format::Json => {
            let (from, to) = (from.to_string(), to.to_string());
            output.object(Range {
                from,
                to,
                min: range.min.to_string(),
                max: range.max.to_string(),
            });
        }
        Format::Text => {
            output.pairs(&[
                ("min", range.min.to_string()),
                ("max", range.max.to_string()),
            ]);
            output.note(format_args!(
                "\nWHERE id BETWEEN {} AND {}",
                range.min, range.max
            ));
        }
    }
    Ok(Exit::Done)
}
