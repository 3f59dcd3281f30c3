//! Statements by their form, in bounded memory.

use std::collections::HashMap;

use super::form;

/// The most forms that are kept. A text that differs for each call, such as a generated name, must
/// not fill the memory.
const FORMS_MAX: usize = 50_000;

/// Statements by their form.
#[derive(Debug, Default)]
pub(super) struct StatementForms {
    pub(super) forms: HashMap<String, Tally>,
    pub(super) calls: u64,
    pub(super) time_ms: f64,
    /// Statements of forms that are not kept.
    pub(super) left_out: u64,
}

/// How often a form was sent, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) calls: u64,
    pub(super) time_ms: f64,
}

impl StatementForms {
    pub(super) fn add(&mut self, text: &str, calls: u64, time_ms: f64) {
        let form = form::of(text);
        if form.is_empty() {
            return;
        }
        self.calls += calls;
        self.time_ms += time_ms;
        if let Some(tally) = self.forms.get_mut(&form) {
            tally.calls += calls;
            tally.time_ms += time_ms;
        } else if self.forms.len() < FORMS_MAX {
            self.forms.insert(form, Tally { calls, time_ms });
        } else {
            self.left_out += calls;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_kept_up_to_a_bound() {
        let mut collected = StatementForms::default();
        for number in 0..FORMS_MAX + 10 {
            collected.add(&format!("SELECT a{number} FROM t"), 1, 0.0);
        }
        assert_eq!(collected.forms.len(), FORMS_MAX);
        assert_eq!(collected.left_out, 10);
        assert_eq!(collected.calls, FORMS_MAX as u64 + 10);
    }
}
