//! Records of a log in CSV, as `log_destination = csvlog` writes it: a field in quotes may have
//! line ends, and two quotes for one.

/// The most bytes of a record. Longer ones are cut.
const RECORD_MAX: usize = 1 << 20;

/// Whether the record in this text is complete: it has an even number of quotes.
pub(super) fn is_complete(record: &str) -> bool {
    record.len() > RECORD_MAX || record.bytes().filter(|byte| *byte == b'"').count() % 2 == 0
}

/// The fields of a record.
pub(super) fn fields(record: &str) -> Vec<String> {
    let mut fields = Vec::new();
    let mut field = String::new();
    let mut quoted = false;
    let mut letters = record.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            letter => field.push(letter),
        }
    }
    fields.push(field);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_may_have_commas_quotes_and_line_ends() {
        let record = "a,\"b, \"\"c\"\"\nd\",,e";
        assert!(is_complete(record));
        assert!(!is_complete("a,\"b"));
        assert_eq!(fields(record), ["a", "b, \"c\"\nd", "", "e"]);
    }
}
