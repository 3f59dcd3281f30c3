//! A TOML table read key by key: what is missing, unknown or of the wrong type becomes a finding
//! with its place.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::diagnostic::Findings;

/// A table of the text, with its name for messages: `[map.placement]`.
pub(crate) struct Section<'t> {
    /// `map.placement`; empty for the whole text.
    name: String,
    table: &'t DeTable<'t>,
    /// Its header or key in the text.
    at: Range<usize>,
}

/// A key of a section and its value.
#[derive(Clone)]
pub(crate) struct Entry<'t> {
    /// The name in messages: `map.version`.
    path: String,
    key: &'t Spanned<DeString<'t>>,
    value: &'t Spanned<DeValue<'t>>,
}

impl<'t> Section<'t> {
    /// The text as a whole.
    pub(crate) fn root(table: &'t DeTable<'t>) -> Section<'t> {
        Section {
            name: String::new(),
            table,
            at: 0..0,
        }
    }

    /// The place of the section.
    pub(crate) fn at(&self) -> &Range<usize> {
        &self.at
    }

    /// The names of its keys, in the order of the text.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'t str> {
        self.table.keys().map(|key| key.get_ref().as_ref())
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'t>> {
        self.table.iter().map(|(key, value)| self.entry(key, value))
    }

    pub(crate) fn get(&self, name: &str) -> Option<Entry<'t>> {
        let (key, value) = self.table.get_key_value(name)?;
        Some(self.entry(key, value))
    }

    fn entry(&self, key: &'t Spanned<DeString<'t>>, value: &'t Spanned<DeValue<'t>>) -> Entry<'t> {
        let name = key.get_ref();
        let path = if self.name.is_empty() {
            name.to_string()
        } else {
            format!("{}.{name}", self.name)
        };
        Entry { path, key, value }
    }

    /// The entry; a finding where it is missing.
    pub(crate) fn need(
        &self,
        name: &str,
        remedy: &str,
        findings: &mut Findings<'_>,
    ) -> Option<Entry<'t>> {
        let entry = self.get(name);
        if entry.is_none() {
            let message = match self.name.as_str() {
                "" => format!("the section [{name}] is missing"),
                section => format!("[{section}] has no {name}"),
            };
            findings.add(&self.at, message, Some(remedy.to_owned()));
        }
        entry
    }

    /// A finding for each key that is not one of these.
    pub(crate) fn only(&self, known: &[&str], findings: &mut Findings<'_>) {
        for entry in self
            .entries()
            .filter(|entry| !known.contains(&entry.name()))
        {
            let what = if entry.is_section(findings.text()) {
                "section"
            } else {
                "key"
            };
            let place = if self.name.is_empty() {
                String::new()
            } else {
                format!(" in [{}]", self.name)
            };
            let hint = similar(entry.name(), known)
                .unwrap_or_else(|| format!("known are {}", known.join(", ")));
            findings.add(
                &entry.key_at(),
                format!("unknown {what} {:?}{place}", entry.name()),
                Some(hint),
            );
        }
    }
}

impl<'t> Entry<'t> {
    pub(crate) fn name(&self) -> &'t str {
        self.key.get_ref()
    }

    pub(crate) fn key_at(&self) -> Range<usize> {
        self.key.span()
    }

    /// The place of the value.
    pub(crate) fn at(&self) -> Range<usize> {
        self.value.span()
    }

    /// The entry as a section of its own; a finding where it is none.
    pub(crate) fn section(&self, findings: &mut Findings<'_>) -> Option<Section<'t>> {
        let table = self.as_table();
        if table.is_none() {
            self.wrong_type("a table", findings);
        }
        Some(Section {
            name: self.path.clone(),
            table: table?,
            at: self.at(),
        })
    }

    /// The value as text; a finding where it is none.
    pub(crate) fn string(&self, findings: &mut Findings<'_>) -> Option<&'t str> {
        let text = self.as_str();
        if text.is_none() {
            self.wrong_type("a string", findings);
        }
        text
    }

    /// The value as a number; a finding where it is none.
    pub(crate) fn integer(&self, findings: &mut Findings<'_>) -> Option<i64> {
        let number = self.as_integer();
        if number.is_none() {
            match self.value.get_ref() {
                DeValue::Integer(digits) => {
                    findings.add(
                        &self.at(),
                        format!("{} is too large a number: {digits}", self.path),
                        None,
                    );
                }
                _ => self.wrong_type("a whole number", findings),
            }
        }
        number
    }

    pub(crate) fn as_str(&self) -> Option<&'t str> {
        self.value.get_ref().as_str()
    }

    pub(crate) fn as_integer(&self) -> Option<i64> {
        let digits = self.value.get_ref().as_integer()?;
        i64::from_str_radix(digits.as_str(), digits.radix()).ok()
    }

    /// A number with or without a point.
    pub(crate) fn as_number(&self) -> Option<f64> {
        match self.value.get_ref() {
            DeValue::Float(digits) => digits.as_str().parse().ok(),
            _ => self.as_integer().map(|number| number as f64),
        }
    }

    /// A time in TOML's own notation, as it is written.
    pub(crate) fn as_time(&self) -> Option<String> {
        self.value.get_ref().as_datetime().map(ToString::to_string)
    }

    pub(crate) fn as_bool(&self) -> Option<bool> {
        self.value.get_ref().as_bool()
    }

    pub(crate) fn as_array(&self) -> Option<&'t DeArray<'t>> {
        self.value.get_ref().as_array()
    }

    pub(crate) fn as_table(&self) -> Option<&'t DeTable<'t>> {
        self.value.get_ref().as_table()
    }

    /// Whether it is a table with a header or of dotted keys, not a value behind an equals sign.
    fn is_section(&self, text: &str) -> bool {
        let raw = text.get(self.at()).unwrap_or_default();
        match self.value.get_ref() {
            DeValue::Table(_) => !raw.starts_with('{'),
            DeValue::Array(_) => raw.starts_with("[["),
            _ => false,
        }
    }

    /// The kind of the value, for messages.
    fn type_name(&self, text: &str) -> &'static str {
        match (self.value.get_ref(), self.is_section(text)) {
            (DeValue::Table(_), false) => "inline table",
            (DeValue::Array(_), true) => "array of tables",
            (value, _) => value.type_str(),
        }
    }

    pub(crate) fn wrong_type(&self, wanted: &str, findings: &mut Findings<'_>) {
        let found = self.type_name(findings.text());
        let article = if found.starts_with(['a', 'i']) {
            "an"
        } else {
            "a"
        };
        findings.add(
            &self.at(),
            format!("{} must be {wanted}, not {article} {found}", self.path),
            None,
        );
    }

    /// The place of the value's text, so that parts of it can be found.
    pub(crate) fn text_place(&self, findings: &Findings<'_>) -> TextPlace {
        let whole = self.at();
        let start = self
            .as_str()
            .zip(findings.text().get(whole.clone()))
            .and_then(|(text, raw)| {
                // Skips the quotes, and the line end that TOML drops after the three quotes of a
                // multi-line string.
                let body = raw.trim_start_matches(['"', '\'']);
                let body = if raw.starts_with(r#"""""#) || raw.starts_with("'''") {
                    body.strip_prefix("\r\n")
                        .or_else(|| body.strip_prefix('\n'))
                        .unwrap_or(body)
                } else {
                    body
                };
                body.starts_with(text)
                    .then(|| whole.start + raw.len() - body.len())
            });
        TextPlace { start, whole }
    }
}

/// The place of the text of a string value.
pub(crate) struct TextPlace {
    /// The first byte behind the quotes; `None` where escapes make the text another than the
    /// file's.
    start: Option<usize>,
    /// With the quotes.
    whole: Range<usize>,
}

impl TextPlace {
    /// The bytes of a part of the text; the whole value where the part cannot be found.
    pub(crate) fn part(&self, part: &Range<usize>) -> Range<usize> {
        match self.start {
            Some(start) => start + part.start..(start + part.end).min(self.whole.end),
            None => self.whole.clone(),
        }
    }
}

/// "did you mean" for a name, or nothing if none of the known ones is near.
pub(crate) fn similar<'k>(
    name: &str,
    known: impl IntoIterator<Item = impl AsRef<str> + 'k>,
) -> Option<String> {
    let near =
        |known: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
    // One slip in short names, two from six letters on: beyond that a guess confuses more than it
    // helps.
    let allowed = if name.chars().count() < 6 { 1 } else { 2 };
    let best = known
        .into_iter()
        .filter(|known| !is_another_number(name, known.as_ref()))
        .map(|known| (near(known.as_ref()), known.as_ref().to_owned()))
        .min();
    let (distance, best) = best?;
    // A name that was only cut short or continued is near, too.
    let cut =
        name.len() >= 3 && (best.starts_with(name) || (best.len() >= 3 && name.starts_with(&best)));
    (distance <= allowed || cut).then(|| format!("did you mean {best:?}?"))
}

/// Whether two names differ only in their numbers: `db3` is no slip for `db1`, it is another host.
fn is_another_number(name: &str, known: &str) -> bool {
    let without_digits = |name: &str| {
        name.replace(|c: char| c.is_ascii_digit(), "")
            .to_lowercase()
    };
    name.to_lowercase() != known.to_lowercase() && without_digits(name) == without_digits(known)
}

#[cfg(test)]
mod tests {
    use super::similar;

    #[test]
    fn slips_are_recognised() {
        let hosts = ["db1", "db2", "archive"];
        let hint = |name| similar(name, hosts);
        assert_eq!(hint("bd1").as_deref(), Some("did you mean \"db1\"?"));
        assert_eq!(
            hint("archvie").as_deref(),
            Some("did you mean \"archive\"?")
        );
        assert_eq!(hint("DB2").as_deref(), Some("did you mean \"db2\"?"));
        assert_eq!(hint("arch").as_deref(), Some("did you mean \"archive\"?"));
        assert_eq!(hint("web"), None);
        assert_eq!(hint("db3"), None);
        assert_eq!(hint("db12"), None);
        assert_eq!(similar("a", [""; 0]), None);
    }
}
