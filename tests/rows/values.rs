//! Kinds of columns, and random values for them as PostgreSQL reads them.

use fastrand::Rng;

/// What a column contains. Values are texts, as in COPY; in SQL they are quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Boolean,
    Smallint,
    Integer,
    Bigint,
    Numeric,
    Scaled,
    Real,
    Double,
    Text,
    TextC,
    TextPosix,
    Varchar,
    Char,
    Bytea,
    Uuid,
    Json,
    Jsonb,
    Date,
    Time,
    Timetz,
    Timestamp,
    Timestamptz,
    Interval,
    Integers,
    Texts,
    Range,
    Times,
    Ranges,
    Bits,
    Varbit,
    Inet,
    Point,
    Document,
    Money,
    Mood,
    Moods,
    Address,
    Addresses,
    Email,
    Positive,
    Span,
    /// Some kilobytes that do not compress.
    Large,
    /// Many kilobytes that do.
    Long,
    /// The same, stored without compression.
    External,
}

/// The types that every shard has.
pub(crate) const TYPES: &str = r#"
    CREATE TYPE {shard}.mood AS ENUM ('sad', 'ok', 'it''s "fine"');
    CREATE TYPE {shard}.address AS (street text, zip integer, "Größe" numeric(6,2));
    CREATE DOMAIN {shard}.email AS text COLLATE "C" CHECK (VALUE LIKE '%@%');
    CREATE DOMAIN {shard}.positive AS integer CHECK (VALUE > 0);
    CREATE TYPE {shard}.span AS RANGE (SUBTYPE = float8);
"#;

const WORDS: [&str; 14] = [
    "",
    "a",
    "A",
    "b",
    "ä",
    "Ä",
    "ß",
    "ab ",
    "a'b",
    "a\"b,c",
    "back\\slash",
    "tab\tnew\nline",
    "{curly}",
    "🦀 crab",
];

impl Kind {
    pub(crate) const ALL: [Kind; 44] = [
        Kind::Boolean,
        Kind::Smallint,
        Kind::Integer,
        Kind::Bigint,
        Kind::Numeric,
        Kind::Scaled,
        Kind::Real,
        Kind::Double,
        Kind::Text,
        Kind::TextC,
        Kind::TextPosix,
        Kind::Varchar,
        Kind::Char,
        Kind::Bytea,
        Kind::Uuid,
        Kind::Json,
        Kind::Jsonb,
        Kind::Date,
        Kind::Time,
        Kind::Timetz,
        Kind::Timestamp,
        Kind::Timestamptz,
        Kind::Interval,
        Kind::Integers,
        Kind::Texts,
        Kind::Range,
        Kind::Times,
        Kind::Ranges,
        Kind::Bits,
        Kind::Varbit,
        Kind::Inet,
        Kind::Point,
        Kind::Document,
        Kind::Money,
        Kind::Mood,
        Kind::Moods,
        Kind::Address,
        Kind::Addresses,
        Kind::Email,
        Kind::Positive,
        Kind::Span,
        Kind::Large,
        Kind::Long,
        Kind::External,
    ];

    /// Kinds with values that can be a key.
    pub(crate) const KEYS: [Kind; 20] = [
        Kind::Smallint,
        Kind::Integer,
        Kind::Bigint,
        Kind::Numeric,
        Kind::Scaled,
        Kind::Real,
        Kind::Double,
        Kind::Text,
        Kind::TextC,
        Kind::TextPosix,
        Kind::Varchar,
        Kind::Char,
        Kind::Bytea,
        Kind::Uuid,
        Kind::Timestamptz,
        Kind::Interval,
        Kind::Mood,
        Kind::Email,
        Kind::Positive,
        Kind::Inet,
    ];

    pub(crate) fn sql(self) -> &'static str {
        match self {
            Kind::Boolean => "boolean",
            Kind::Smallint => "smallint",
            Kind::Integer => "integer",
            Kind::Bigint => "bigint",
            Kind::Numeric => "numeric",
            Kind::Scaled => "numeric(12,3)",
            Kind::Real => "real",
            Kind::Double => "double precision",
            Kind::Text | Kind::Large | Kind::Long | Kind::External => "text",
            Kind::TextC => "text COLLATE \"C\"",
            Kind::TextPosix => "text COLLATE \"POSIX\"",
            Kind::Varchar => "varchar(40) COLLATE \"ucs_basic\"",
            Kind::Char => "char(12) COLLATE \"C\"",
            Kind::Bytea => "bytea",
            Kind::Uuid => "uuid",
            Kind::Json => "json",
            Kind::Jsonb => "jsonb",
            Kind::Date => "date",
            Kind::Time => "time",
            Kind::Timetz => "timetz",
            Kind::Timestamp => "timestamp",
            Kind::Timestamptz => "timestamptz",
            Kind::Interval => "interval",
            Kind::Integers => "integer[]",
            Kind::Texts => "text[]",
            Kind::Range => "int4range",
            Kind::Times => "tstzrange",
            Kind::Ranges => "int4multirange",
            Kind::Bits => "bit(5)",
            Kind::Varbit => "varbit",
            Kind::Inet => "inet",
            Kind::Point => "point",
            Kind::Document => "tsvector",
            Kind::Money => "money",
            Kind::Mood => "{shard}.mood",
            Kind::Moods => "{shard}.mood[]",
            Kind::Address => "{shard}.address",
            Kind::Addresses => "{shard}.address[]",
            Kind::Email => "{shard}.email",
            Kind::Positive => "{shard}.positive",
            Kind::Span => "{shard}.span",
        }
    }

    /// Whether numbers can be added to it.
    pub(crate) fn is_number(self) -> bool {
        use Kind::*;
        matches!(
            self,
            Smallint | Integer | Bigint | Numeric | Scaled | Real | Double | Positive
        )
    }

    /// One of few values, so that rows meet.
    pub(crate) fn key(self, rng: &mut Rng, values: u32) -> String {
        let n = rng.u32(0..values);
        match self {
            Kind::Smallint | Kind::Integer | Kind::Bigint => {
                (i64::from(n) - i64::from(values / 3)).to_string()
            }
            Kind::Positive => (n + 1).to_string(),
            Kind::Numeric | Kind::Scaled => match n {
                0 if self == Kind::Numeric => "NaN".to_owned(),
                n => format!("{}.{}", n / 3, ["0", "00", "125"][(n % 3) as usize]),
            },
            Kind::Real | Kind::Double => match n {
                0 => "NaN".to_owned(),
                1 => "-0".to_owned(),
                2 => "Infinity".to_owned(),
                n => format!("{}", f64::from(n) / 7.0),
            },
            Kind::Char => format!(
                "{}{n}{}",
                ["", "ä", "Z"][(n % 3) as usize],
                [" ", ""][(n % 2) as usize]
            ),
            Kind::Bytea => format!("\\x00{n:08x}"),
            Kind::Uuid => format!(
                "{:08x}-0000-4000-8000-{:012x}",
                n.wrapping_mul(2_654_435_761),
                n
            ),
            Kind::Timestamptz => format!("2024-01-01 00:00:{:02}.{:06}+00", n % 60, n),
            Kind::Interval => format!("{} mons {} days", n % 7, n),
            Kind::Mood => ["sad", "ok", "it's \"fine\""][(n % 3) as usize].to_owned(),
            Kind::Email => format!("{}@{n}", WORDS[(n as usize) % WORDS.len()]),
            Kind::Inet => format!("10.{}.{}.1/{}", n / 256, n % 256, 8 + n % 24),
            _ => format!("{}{n}", WORDS[(n as usize) % WORDS.len()]),
        }
    }

    /// Any value, odd ones often. `None` is NULL.
    pub(crate) fn value(self, rng: &mut Rng) -> Option<String> {
        if rng.u8(0..8) == 0 {
            return None;
        }
        fn one<'a>(rng: &mut Rng, words: &[&'a str]) -> &'a str {
            words[rng.usize(0..words.len())]
        }
        let word = |rng: &mut Rng| format!("{}{}", WORDS[rng.usize(0..WORDS.len())], rng.u8(0..30));
        let address = |rng: &mut Rng| match rng.u8(0..5) {
            0 | 1 => "(,,)".to_owned(),
            2 => "(\"\",0,)".to_owned(),
            3 => format!("(\"Street \\\"1\\\", b\",{},1.50)", rng.u16(..)),
            _ => format!("(a,{},)", rng.u8(..)),
        };
        let text = match self {
            Kind::Boolean => one(rng, &["t", "f"]).to_owned(),
            Kind::Smallint => one(rng, &["-32768", "32767", "0", "1", "7"]).to_owned(),
            Kind::Integer => match rng.bool() {
                true => one(rng, &["-2147483648", "2147483647", "0"]).to_owned(),
                false => rng.i32(-1000..1000).to_string(),
            },
            Kind::Positive => rng.i32(1..1000).to_string(),
            Kind::Bigint => match rng.bool() {
                true => one(rng, &["-9223372036854775808", "9223372036854775807", "0"]).to_owned(),
                false => rng.i64(-1_000_000..1_000_000).to_string(),
            },
            Kind::Numeric => one(
                rng,
                &[
                    "NaN",
                    "1.0",
                    "1.00",
                    "-0.0",
                    "0",
                    "1e40",
                    "12345678901234567890.123",
                    "Infinity",
                ],
            )
            .to_owned(),
            Kind::Scaled => format!("{}.{}", rng.i32(-9999..9999), rng.u16(0..999)),
            Kind::Real | Kind::Double => match rng.u8(0..6) {
                0 => "NaN".to_owned(),
                1 => "-0".to_owned(),
                2 => "-Infinity".to_owned(),
                3 => "1e-37".to_owned(),
                _ => (rng.f64() * 1e6).to_string(),
            },
            Kind::Text | Kind::TextC | Kind::TextPosix | Kind::Varchar => word(rng),
            Kind::Char => one(rng, &["", "a", "a  ", "ä", " x "]).to_owned(),
            Kind::Bytea => format!("\\x{}", one(rng, &["", "00", "ff00", "0a5c27"])),
            Kind::Uuid => format!("{:08x}-0000-4000-8000-000000000000", rng.u32(..)),
            Kind::Json | Kind::Jsonb => one(
                rng,
                &[
                    "null",
                    "{}",
                    "[1, 2.50]",
                    r#"{"b": 1,  "a": [], "a": null}"#,
                    r#""ü\\u""#,
                    "1.50",
                ],
            )
            .to_owned(),
            Kind::Date => one(
                rng,
                &["infinity", "-infinity", "0044-03-15 BC", "2024-02-29"],
            )
            .to_owned(),
            Kind::Time => one(rng, &["24:00", "00:00", "12:34:56.000001"]).to_owned(),
            Kind::Timetz => one(rng, &["12:00:00.000001+14", "00:00-12"]).to_owned(),
            Kind::Timestamp => one(
                rng,
                &[
                    "infinity",
                    "294276-12-31 23:59:59.999999",
                    "2024-03-31 02:30",
                ],
            )
            .to_owned(),
            Kind::Timestamptz => one(
                rng,
                &["-infinity", "4713-01-01 00:00+00 BC", "2024-10-27 02:30+02"],
            )
            .to_owned(),
            Kind::Interval => one(
                rng,
                &[
                    "-1 year 2 mons -3 days 04:05:06.789",
                    "1 mon",
                    "30 days",
                    "720:00",
                    "0",
                ],
            )
            .to_owned(),
            Kind::Integers => one(
                rng,
                &["{}", "[2:3][-1:0]={{1,2},{3,NULL}}", "{NULL}", "{1,2,3}"],
            )
            .to_owned(),
            Kind::Texts => one(
                rng,
                &[
                    "{}",
                    "{a,\"b c\",NULL,\"d\\\"e\",\"NULL\"}",
                    "{\"\"}",
                    "{{a},{b}}",
                ],
            )
            .to_owned(),
            Kind::Range => match rng.u8(0..4) {
                0 => "empty".to_owned(),
                1 => "(,5)".to_owned(),
                _ => format!("[{},{}]", rng.u8(0..100), rng.u8(100..)),
            },
            Kind::Times => {
                one(rng, &["empty", "(,)", "[-infinity,2020-01-01 00:00+00]"]).to_owned()
            }
            Kind::Ranges => one(rng, &["{}", "{[1,3),[7,9)}", "{(,0)}"]).to_owned(),
            Kind::Bits => one(rng, &["00000", "10101", "11111"]).to_owned(),
            Kind::Varbit => one(rng, &["", "0", "1", "0101"]).to_owned(),
            Kind::Inet => one(rng, &["::1/64", "10.0.0.0/8", "1.2.3.4"]).to_owned(),
            Kind::Point => one(rng, &["(NaN,-0)", "(0.1,1e300)", "(0,0)"]).to_owned(),
            Kind::Document => one(rng, &["", "a:1A b:2,3"]).to_owned(),
            Kind::Money => one(rng, &["-$0.01", "$1,234.50"]).to_owned(),
            Kind::Mood => one(rng, &["sad", "ok", "it's \"fine\""]).to_owned(),
            Kind::Moods => one(rng, &["{}", "{sad,NULL,\"it's \\\"fine\\\"\"}"]).to_owned(),
            Kind::Address => address(rng),
            Kind::Addresses => one(rng, &["{}", "{NULL,\"(,,)\"}", "{\"(a,1,)\"}"]).to_owned(),
            Kind::Email => format!("{}@", word(rng)),
            Kind::Span => one(rng, &["empty", "[0.5,NaN]", "(,)"]).to_owned(),
            Kind::Large => {
                let bytes = rng.usize(1..12_000);
                std::iter::repeat_with(|| char::from(rng.u8(b'!'..b'~')))
                    .filter(|c| *c != '\\')
                    .take(bytes)
                    .collect()
            }
            Kind::Long => format!("{} ", word(rng)).repeat(rng.usize(1..9_000)),
            Kind::External => word(rng).repeat(rng.usize(0..2_000)),
        };
        Some(text)
    }
}

/// A value in SQL.
pub(crate) fn literal(value: &Option<String>) -> String {
    value
        .as_ref()
        .map_or("NULL".to_owned(), |text| pgshard::pg::quote_literal(text))
}

/// A value in COPY's text.
pub(crate) fn copied(value: &Option<String>) -> String {
    let Some(text) = value else {
        return "\\N".to_owned();
    };
    text.replace('\\', "\\\\")
        .replace('\t', "\\t")
        .replace('\n', "\\n")
}
