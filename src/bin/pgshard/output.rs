//! The one place that prints: stdout is data, stderr is talk, colour is decoration.

use std::fmt::{self, Display};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::style::ProgressTracker;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{Color, Global};
use crate::exit::Exit;
use crate::failure::Failure;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// Where a command prints its output.
pub(crate) struct Output {
    format: Format,
    quiet: bool,
    data_colour: Color,
    talk: Talk,
    /// Why stdout accepts no more. The command continues: its work, and its exit code, do not
    /// depend on the reader.
    lost: OnceLock<io::Error>,
}

/// What stdout speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Lines and tables for people and `grep`.
    Text,
    /// One JSON object a line.
    Json,
}

/// How a column of a table is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Names and text.
    Left,
    /// Numbers.
    Right,
}

/// When a column goes from a table that is too wide: never, or before those of smaller ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The table is of no use without it.
    Stays,
    /// Goes before those with a smaller number.
    Goes(u8),
}

/// How wide a table may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// As wide as the terminal.
    Fitted,
    /// As wide as it is: with `--wide`, and where stdout is no terminal.
    Whole,
}

impl Width {
    /// The width for this value of `--wide`.
    pub(crate) fn from_flag(wide: bool) -> Width {
        if wide || !io::stdout().is_terminal() {
            Width::Whole
        } else {
            Width::Fitted
        }
    }
}

/// An object as it is printed.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Versioned<T> {
    #[schemars(range(min = 1, max = 1))]
    schema_version: u32,
    #[serde(flatten)]
    object: T,
}

/// What is printed on stderr with `--json`.
#[derive(JsonSchema, Serialize)]
pub(crate) struct JsonMessage<'a> {
    /// `error`, `warning`, `note` or `hint`.
    level: &'static str,
    message: &'a str,
    /// Of an error: its cause, the cause of that, and so on.
    causes: &'a [String],
    /// What to do.
    remedy: Option<&'a str>,
    /// Of the error that ends the command.
    exit_code: Option<u8>,
}

impl<'a> JsonMessage<'a> {
    pub(crate) fn new(level: &'static str, message: &'a str) -> JsonMessage<'a> {
        JsonMessage {
            level,
            message,
            causes: &[],
            remedy: None,
            exit_code: None,
        }
    }

    /// An error that ends no command, and what to do about it.
    pub(crate) fn refusal(message: &'a str, remedy: Option<&'a str>) -> JsonMessage<'a> {
        JsonMessage {
            remedy,
            ..JsonMessage::new("error", message)
        }
    }
}

/// What comes before the remedy in an error that has one in its words.
const REMEDY: &str = "\n  remedy: ";

impl Output {
    /// Printing by the global flags.
    pub(crate) fn new(global: &Global) -> Output {
        let colour = match global.color {
            // `auto` heeds NO_COLOR, CLICOLOR_FORCE, TERM=dumb and whether there is a terminal.
            Color::Auto => AutoStream::choice(&io::stderr()),
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        };
        let bars = match global.quiet || !io::stderr().is_terminal() {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        };
        Output {
            format: if global.json {
                Format::Json
            } else {
                Format::Text
            },
            quiet: global.quiet,
            data_colour: global.color,
            talk: Talk {
                bars: MultiProgress::with_draw_target(bars),
                colour,
            },
            lost: OnceLock::new(),
        }
    }

    /// What stdout speaks.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Whether stderr takes colour.
    pub(crate) fn is_coloured(&self) -> bool {
        self.talk.colour != ColorChoice::Never
    }

    /// Whether data may be coloured: on a terminal, unless disabled by `--color`, NO_COLOR or TERM.
    pub(crate) fn data_is_coloured(&self) -> bool {
        match self.data_colour {
            Color::Auto => AutoStream::choice(&io::stdout()) != ColorChoice::Never,
            Color::Always => true,
            Color::Never => false,
        }
    }

    /// How many columns stdout has; 80 where it is no terminal.
    pub(crate) fn columns(&self) -> usize {
        terminal_columns().unwrap_or(80)
    }

    /// Stderr as a writer that does not tear a progress bar.
    pub(crate) fn talk(&self) -> Talk {
        self.talk.clone()
    }

    /// Data: one or more lines on stdout, [`printable`].
    pub(crate) fn data(&self, lines: impl Display) {
        self.drawing(printable(&lines.to_string()));
    }

    /// Data that we have drawn, with colours. It is not escaped: no part of it comes from a server
    /// or a file.
    pub(crate) fn drawing(&self, lines: impl Display) {
        self.talk
            .bars
            .suspend(|| self.raw(format!("{lines}\n").as_bytes()));
    }

    /// Data as it is, without a line end.
    pub(crate) fn raw(&self, bytes: &[u8]) {
        if self.is_taken() {
            let mut stdout = io::stdout().lock();
            if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
                // Another thread may have met the same.
                let _ = self.lost.set(error);
            }
        }
    }

    /// Whether stdout still takes what is written. A command that only shows something, and has no
    /// end soon, ends when it does not.
    pub(crate) fn is_taken(&self) -> bool {
        self.lost.get().is_none()
    }

    /// The exit code of a command that has ended with this one. That its reader went away
    /// (`pgshard … | head`) is no failure, and changes nothing; a full disk is one.
    pub(crate) fn end(&self, exit: Exit) -> Exit {
        let Some(error) = self
            .lost
            .get()
            .filter(|error| error.kind() != ErrorKind::BrokenPipe)
        else {
            return exit;
        };
        let done = format!(
            "cannot write to stdout; but for that, the command has ended with {}",
            exit.code()
        );
        self.error(&[done, error.to_string()]);
        if exit == Exit::Done {
            Exit::Failed
        } else {
            exit
        }
    }

    /// Data: a JSON object on one line, with `"schema_version": 1` put first.
    pub(crate) fn object(&self, object: impl Serialize + JsonSchema) {
        self.data(line(object));
    }

    /// What happens while a command works, as [`Output::object`]; nothing in text.
    pub(crate) fn event(&self, event: impl Serialize + JsonSchema) {
        if self.format == Format::Json {
            self.object(event);
        }
    }

    /// Data as a table, without borders so that `awk` can read it. On a terminal that is too narrow
    /// for it, cells have several lines. Nothing at all when it has no rows.
    pub(crate) fn table<Row: IntoIterator<Item = String>>(
        &self,
        columns: &[(&str, Align)],
        rows: impl IntoIterator<Item = Row>,
    ) {
        let table = drawn(columns, rows, terminal_columns());
        if !table.is_empty() {
            self.data(table);
        }
    }

    /// The same, without the columns for which the terminal is too narrow. Returns their names.
    pub(crate) fn fitted_table<'a>(
        &self,
        columns: &[(&'a str, Align, Rank)],
        rows: impl IntoIterator<Item = Vec<String>>,
        width: Width,
    ) -> Vec<&'a str> {
        let rows: Vec<Vec<String>> = rows.into_iter().collect();
        let columns_max = match width {
            Width::Fitted => Some(self.columns()),
            Width::Whole => None,
        };
        let (table, left_out) = fitted(columns, &rows, columns_max);
        if !table.is_empty() {
            self.data(table);
        }
        if !rows.is_empty() && !left_out.is_empty() {
            self.note(format_args!("--wide also shows {}", left_out.join(", ")));
        }
        left_out
    }

    /// Data as names and values, one pair a line.
    pub(crate) fn pairs(&self, pairs: &[(&str, String)]) {
        let mut table = plain_table(terminal_columns());
        for (name, value) in pairs {
            table.add_row([*name, value]);
        }
        self.data(trimmed(&table));
    }

    /// Talk, unless `--quiet`.
    pub(crate) fn note(&self, text: impl Display) {
        match self.format {
            _ if self.quiet => {}
            Format::Text => self.talk.line(printable(&text.to_string())),
            Format::Json => self.say(JsonMessage::new("note", &text.to_string())),
        }
    }

    /// Advice after a blank line, unless `--quiet`.
    pub(crate) fn hint(&self, text: impl Display) {
        match self.format {
            _ if self.quiet => {}
            Format::Text => self.talk.line(format_args!(
                "\n{HINT}hint:{HINT:#} {}",
                self.wrapped(&text.to_string(), "hint: ".len(), "  ")
            )),
            Format::Json => self.say(JsonMessage::new("hint", &text.to_string())),
        }
    }

    /// An object on stderr.
    fn say(&self, said: JsonMessage<'_>) {
        self.talk.line(printable(&line(said)));
    }

    /// Something that is off but does not stop the command.
    pub(crate) fn warning(&self, text: impl Display) {
        if self.format == Format::Json {
            return self.say(JsonMessage::new("warning", &text.to_string()));
        }
        self.talk.line(format_args!(
            "{WARNING}warning:{WARNING:#} {}",
            printable(&text.to_string())
        ));
    }

    /// What went wrong, the causes below it.
    pub(crate) fn error(&self, chain: &[String]) {
        let [error, causes @ ..] = chain else { return };
        if self.format == Format::Json {
            let (message, remedy) = with_remedy(error);
            return self.say(JsonMessage {
                causes,
                remedy,
                ..JsonMessage::new("error", message)
            });
        }
        self.talk
            .line(format_args!("{ERROR}error:{ERROR:#} {}", printable(error)));
        for cause in causes {
            self.talk.line(format_args!(
                "  {ERROR}caused by:{ERROR:#} {}",
                printable(cause)
            ));
        }
    }

    /// Something that went wrong and what to do about it, while the command continues.
    pub(crate) fn error_with_remedy(&self, text: impl Display, remedy: &str) {
        if self.format == Format::Json {
            let remedy = (!remedy.is_empty()).then_some(remedy);
            return self.say(JsonMessage {
                remedy,
                ..JsonMessage::new("error", &text.to_string())
            });
        }
        self.talk.line(format_args!(
            "{ERROR}error:{ERROR:#} {}",
            printable(&text.to_string())
        ));
        self.remedy(remedy);
    }

    /// The hint for the error that was just printed.
    fn remedy(&self, remedy: &str) {
        if !remedy.is_empty() {
            self.talk.line(format_args!(
                "  {HINT}remedy:{HINT:#} {}",
                self.wrapped(remedy, "  remedy: ".len(), "    ")
            ));
        }
    }

    /// Advice as [`printable`], in lines that fit the terminal on stderr, if there is one. What
    /// comes before it on the first line has so many columns.
    fn wrapped(&self, text: &str, before: usize, indent: &str) -> String {
        let text = printable(text);
        let stderr = io::stderr();
        if !stderr.is_terminal() {
            return text;
        }
        let columns = rustix::termios::tcgetwinsize(stderr).map(|size| usize::from(size.ws_col));
        match columns {
            Ok(columns @ 20..) => wrapped(&text, before, indent, columns),
            _ => text,
        }
    }

    /// A question, on stderr; the cursor stays behind it.
    pub(crate) fn ask(&self, question: &str) {
        self.talk
            .write(format_args!("{} [y/N] ", printable(question)));
    }

    /// Prints why a command stopped, with every cause, and returns its exit code.
    pub(crate) fn failure(&self, failure: &Failure) -> Exit {
        self.talk.bars.clear().ok();
        if self.format == Format::Json {
            for chain in failure.chains() {
                let [error, causes @ ..] = chain.as_slice() else {
                    continue;
                };
                let (message, own) = with_remedy(error);
                let (remedy, exit_code) = (own.or(failure.advice()), Some(failure.exit().code()));
                self.say(JsonMessage {
                    causes,
                    remedy,
                    exit_code,
                    ..JsonMessage::new("error", message)
                });
            }
            return failure.exit();
        }
        for (index, chain) in failure.chains().enumerate() {
            if index > 0 {
                self.talk.line("");
            }
            self.error(&chain);
        }
        if let Some(advice) = failure.advice() {
            self.remedy(advice);
        }
        failure.exit()
    }

    /// Prints that Ctrl-C was received, and how to continue.
    pub(crate) fn interrupted(&self, how_to_go_on: Option<&str>) -> Exit {
        self.talk.bars.clear().ok();
        if self.format == Format::Json {
            let exit_code = Some(Exit::Interrupted.code());
            self.say(JsonMessage {
                remedy: how_to_go_on,
                exit_code,
                ..JsonMessage::new("error", "interrupted")
            });
            return Exit::Interrupted;
        }
        self.talk.line(format_args!("{ERROR}interrupted{ERROR:#}"));
        if let Some(advice) = how_to_go_on {
            self.remedy(advice);
        }
        Exit::Interrupted
    }

    /// Whether what is shown on stderr can be redrawn: on a terminal, unless `--quiet`.
    pub(crate) fn redraws(&self) -> bool {
        !self.talk.bars.is_hidden()
    }

    /// Whether a command that only shows something may redraw it instead of adding lines.
    pub(crate) fn is_board(&self) -> bool {
        self.format == Format::Text && self.redraws() && io::stdout().is_terminal()
    }

    /// Lines on stderr that are redrawn, only on a terminal: they are the bar's message.
    pub(crate) fn board(&self) -> ProgressBar {
        let style =
            ProgressStyle::with_template("{msg}").expect("the template names indicatif's own keys");
        self.talk
            .bars
            .add(ProgressBar::new_spinner().with_style(style))
    }

    /// A bar with rate and time left, drawn only on a terminal. `unit` is what is counted, in the
    /// plural.
    pub(crate) fn progress(&self, what: String, unit: &str, total: u64) -> ProgressBar {
        let bar = hidden(what, unit, total, Remaining::default());
        self.draw(&bar);
        bar
    }

    /// Does work that shows its progress with the bar, which is drawn if it takes longer than a
    /// second.
    pub(crate) async fn counting<T>(
        &self,
        what: &str,
        unit: &str,
        total: usize,
        work: impl AsyncFnOnce(&ProgressBar) -> T,
    ) -> T {
        let bar = hidden(what.to_owned(), unit, total as u64, Remaining::default());
        self.drawn_if_slow(&bar, work(&bar)).await
    }

    /// The same for work with the hosts, all at the same time: the rest is waited for no longer
    /// than `limit`, counted from now.
    pub(crate) async fn counting_hosts<T>(
        &self,
        what: &str,
        total: usize,
        limit: Duration,
        work: impl AsyncFnOnce(&ProgressBar) -> T,
    ) -> T {
        let remaining = Remaining {
            limit: Some(limit),
            ..Remaining::default()
        };
        let bar = hidden(what.to_owned(), "hosts", total as u64, remaining);
        self.drawn_if_slow(&bar, work(&bar)).await
    }

    /// Does work that cannot be counted. How long it has taken is drawn if it takes longer than a
    /// second.
    pub(crate) async fn waiting<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let style = ProgressStyle::with_template("{prefix} · {elapsed}")
            .expect("the template names indicatif's own keys");
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
            .with_style(style)
            .with_prefix(what.to_owned());
        self.drawn_if_slow(&bar, work).await
    }

    async fn drawn_if_slow<T>(&self, bar: &ProgressBar, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(SLOW) => self.draw(bar),
        }
        let _cleared = Cleared(bar);
        work.await
    }

    fn draw(&self, bar: &ProgressBar) {
        let bar = self.talk.bars.add(bar.clone());
        bar.enable_steady_tick(Duration::from_millis(200));
    }
}

/// Work that takes longer shows how far it is.
const SLOW: Duration = Duration::from_secs(1);

/// A bar that is not drawn yet.
fn hidden(what: String, unit: &str, total: u64, remaining: Remaining) -> ProgressBar {
    let template = format!("{{prefix}} {{bar:30}} {{pos}}/{{len}} {unit} {{rate}}");
    let style =
        ProgressStyle::with_template(&template).expect("the template names indicatif's own keys");
    let style = style.with_key("rate", remaining);
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden())
        .with_style(style.progress_chars("━╸─"))
        .with_prefix(what)
}

/// Takes a bar away when its work ends, even if it is cut off.
struct Cleared<'a>(&'a ProgressBar);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The rate of a bar, and how long the rest takes. It is estimated when the bar moves, from all
/// that was done since its begin, and runs down until it moves again.
#[derive(Clone, Copy, Debug, Default)]
struct Remaining {
    position: u64,
    /// When the bar moved last, since its begin.
    moved: Duration,
    /// What was left at that moment.
    left: Duration,
    /// What the whole takes at most, where that is known: nothing is estimated then.
    limit: Option<Duration>,
}

impl Remaining {
    /// Takes in how far the bar is.
    fn see(&mut self, position: u64, length: u64, elapsed: Duration) {
        if position == self.position || position == 0 {
            return;
        }
        (self.position, self.moved) = (position, elapsed);
        let each = elapsed.as_secs_f64() / position as f64;
        let left = each * length.saturating_sub(position) as f64;
        self.left = Duration::try_from_secs_f64(left).unwrap_or_default();
    }

    /// The end of the bar's line at this moment.
    fn text(&self, elapsed: Duration) -> String {
        if let Some(limit) = self.limit {
            return match limit.saturating_sub(elapsed).as_secs() {
                0 => String::new(),
                left => format!(" · {left} s left at most"),
            };
        }
        // Before the first one is done, the remaining time is unknown.
        if self.position == 0 || self.moved.is_zero() {
            return String::new();
        }
        let rate = self.position as f64 / self.moved.as_secs_f64();
        let rate = match rate {
            10.0.. => format!("{rate:.0}/s"),
            1.0..10.0 => format!("{rate:.1}/s"),
            _ => format!("one in {}", seconds(Duration::from_secs_f64(1.0 / rate))),
        };
        let left = self.left.saturating_sub(elapsed.saturating_sub(self.moved));
        let left = Duration::from_secs(left.as_secs());
        if left.is_zero() {
            format!(" · {rate}")
        } else {
            format!(" · {rate} · {} left", whole_seconds(left))
        }
    }
}

impl ProgressTracker for Remaining {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(*self)
    }

    fn tick(&mut self, state: &ProgressState, _: Instant) {
        self.see(state.pos(), state.len().unwrap_or(0), state.elapsed());
    }

    fn reset(&mut self, _: &ProgressState, _: Instant) {
        *self = Remaining {
            limit: self.limit,
            ..Remaining::default()
        };
    }

    fn write(&self, state: &ProgressState, out: &mut dyn fmt::Write) {
        let mut now = *self;
        now.see(state.pos(), state.len().unwrap_or(0), state.elapsed());
        out.write_str(&now.text(state.elapsed())).ok();
    }
}

/// Stderr, together with the progress bars on it.
#[derive(Clone)]
pub(crate) struct Talk {
    bars: MultiProgress,
    colour: ColorChoice,
}

impl Talk {
    fn line(&self, text: impl Display) {
        self.write(format_args!("{text}\n"));
    }

    fn write(&self, text: impl Display) {
        let mut stderr = AutoStream::new(io::stderr().lock(), self.colour);
        // If stderr cannot be written, the error cannot be reported.
        self.bars
            .suspend(|| write!(stderr, "{text}").and_then(|()| stderr.flush()))
            .ok();
    }
}

impl Write for Talk {
    /// Writes lines of the log. In each, the log has put texts of servers and files; colours are
    /// the log's own.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = logged(
            &String::from_utf8_lossy(bytes),
            self.colour != ColorChoice::Never,
        );
        self.bars
            .suspend(|| io::stderr().lock().write_all(text.as_bytes()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// A line of the log as [`printable`], and as one line. `coloured`: with the codes for colours,
/// which the log makes, and escapes for those of other origin.
fn logged(line: &str, coloured: bool) -> String {
    let (line, end) = line
        .strip_suffix('\n')
        .map_or((line, ""), |line| (line, "\n"));
    let mut parts = line.split("\x1b[");
    let mut text = cell(parts.next().unwrap_or_default());
    for part in parts {
        let code = part
            .find(|c: char| !c.is_ascii_digit() && c != ';')
            .filter(|at| part[*at..].starts_with('m'));
        match code.filter(|_| coloured) {
            Some(at) => text.push_str(&format!("\x1b[{}m{}", &part[..at], cell(&part[at + 1..]))),
            None => text.push_str(&cell(&format!("\x1b[{part}"))),
        }
    }
    text + end
}

/// An object on one line, with `"schema_version": 1` put first.
///
/// JSON may have all characters but the first 32 as they are. Here those that a terminal would obey
/// have JSON's escapes, so that [`printable`] finds none.
pub(crate) fn line(object: impl Serialize) -> String {
    let json = serde_json::to_string(&Versioned {
        schema_version: 1,
        object,
    })
    .expect("our objects have text for keys");
    if json.chars().all(is_plain) {
        return json;
    }
    let mut line = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match is_plain(c) {
            true => line.push(c),
            false => line.extend(
                c.encode_utf16(&mut [0; 2])
                    .iter()
                    .map(|unit| format!("\\u{unit:04x}")),
            ),
        }
    }
    line
}

/// An error's message, and the remedy that it contains.
fn with_remedy(words: &str) -> (&str, Option<&str>) {
    words
        .split_once(REMEDY)
        .map_or((words, None), |(message, remedy)| (message, Some(remedy)))
}

/// Reports a mistake in the command line, where JSON was requested, and nothing else is known.
pub(crate) fn refused(mistake: &str) {
    let exit_code = Some(Exit::Usage.code());
    let remedy = Some("`--help` says what the command takes");
    let said = line(JsonMessage {
        remedy,
        exit_code,
        ..JsonMessage::new("error", mistake)
    });
    // If stderr cannot be written, the error cannot be reported.
    writeln!(io::stderr().lock(), "{said}").ok();
}

/// Reports a mistake in the command line, if it contains characters that a terminal would
/// interpret. False if it contains none, and nothing was printed.
pub(crate) fn refused_escaped(mistake: &str) -> bool {
    let escaped = printable(mistake);
    let differs = escaped != mistake;
    if differs {
        write!(io::stderr().lock(), "{escaped}").ok();
    }
    differs
}

/// A duration for people: `0.84 s`, `3 min 20 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    match whole {
        0..10 => format!("{:.2} s", duration.as_secs_f64()),
        10..60 => format!("{:.1} s", duration.as_secs_f64()),
        _ => format!("{} min {} s", whole / 60, whole % 60),
    }
}

/// An estimated duration: hundredths of a second would promise too much.
pub(crate) fn whole_seconds(duration: Duration) -> String {
    match duration.as_secs() {
        whole @ 0..60 => format!("{whole} s"),
        _ => seconds(duration),
    }
}

/// The text with escapes for what a terminal would interpret: control characters, and those that
/// turn the direction of writing and so make it look like another text. Line ends are kept. Our
/// messages quote servers, queries and names, and every client that writes to a database can choose
/// those.
pub(crate) fn printable(text: &str) -> String {
    escaped(text, is_plain)
}

/// A cell of a table: it has no line ends either, so that no name looks like another row.
fn cell(text: &str) -> String {
    escaped(text, |c| c != '\n' && is_plain(c))
}

fn escaped(text: &str, plain: impl Fn(char) -> bool) -> String {
    if text.chars().all(&plain) {
        return text.to_owned();
    }
    text.chars()
        .map(|c| {
            if plain(c) {
                c.to_string()
            } else {
                c.escape_default().to_string()
            }
        })
        .collect()
}

/// Whether a terminal shows it as it is, given its position. Lines end with `\n` only.
fn is_plain(c: char) -> bool {
    match c {
        '\n' | '\t' => true,
        '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{feff}' => false,
        '\u{e0000}'..='\u{e007f}' => false,
        c => !c.is_control(),
    }
}

/// A table as [`Output::table`] prints it; nothing if it has no rows.
pub(crate) fn drawn<Row: IntoIterator<Item = String>>(
    columns: &[(&str, Align)],
    rows: impl IntoIterator<Item = Row>,
    columns_max: Option<usize>,
) -> String {
    let mut table = plain_table(columns_max);
    table.set_header(columns.iter().map(|(name, _)| *name));
    for row in rows {
        table.add_row(row.into_iter().map(|text| cell(&text)));
    }
    if table.is_empty() {
        return String::new();
    }
    for (index, (_, align)) in columns.iter().enumerate() {
        if let (Align::Right, Some(column)) = (align, table.column_mut(index)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    trimmed(&table)
}

/// A table without the columns that would make it wider than this, and their names. The column
/// with the highest rank goes first. If those that stay are too wide, their cells are wrapped.
pub(crate) fn fitted<'a>(
    columns: &[(&'a str, Align, Rank)],
    rows: &[Vec<String>],
    columns_max: Option<usize>,
) -> (String, Vec<&'a str>) {
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    let mut left_out = Vec::new();
    loop {
        let heads: Vec<(&str, Align)> = kept
            .iter()
            .map(|at| (columns[*at].0, columns[*at].1))
            .collect();
        let cells = rows.iter().map(|cells| {
            let cell = |at: &usize| cells.get(*at).cloned().unwrap_or_default();
            kept.iter().map(cell).collect::<Vec<_>>()
        });
        let table = drawn(&heads, cells.clone(), None);
        let width = table.lines().map(|line| line.chars().count()).max();
        let last = kept
            .iter()
            .enumerate()
            .filter(|(_, at)| columns[**at].2 != Rank::Stays)
            .max_by_key(|(_, at)| columns[**at].2)
            .map(|(place, _)| place);
        match last {
            Some(place) if columns_max.is_some() && width > columns_max => {
                left_out.push(columns[kept.remove(place)].0);
            }
            _ => return (drawn(&heads, cells, columns_max), left_out),
        }
    }
}

/// Text in lines of so many columns at most. It is broken between words only, and never within a
/// command in backquotes, so that a click or a selection takes the whole of it.
pub(crate) fn wrapped(text: &str, before: usize, indent: &str, columns: usize) -> String {
    let mut lines = String::new();
    let mut column = before;
    let mut is_first = true;
    for word in words(text) {
        let length = word.chars().count();
        if !is_first && column + 1 + length > columns {
            lines.push('\n');
            lines.push_str(indent);
            column = indent.len();
        } else if !is_first {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
        is_first = false;
    }
    lines
}

/// The words of a text; a command in backquotes, with what follows it directly, is one.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut is_quoted) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            '`' => is_quoted = !is_quoted,
            ' ' | '\n' if !is_quoted => {
                if at > start {
                    words.push(&text[start..at]);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < text.len() {
        words.push(&text[start..]);
    }
    words
}

/// A table without borders. With a limit, cells are wrapped so that no line is longer.
fn plain_table(columns_max: Option<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    if let Some(columns) = columns_max {
        // The outermost two spaces are trimmed.
        let width = u16::try_from(columns.saturating_add(2)).unwrap_or(u16::MAX);
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
    table
}

/// The width of the terminal that stdout is, if it is one.
pub(crate) fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns >= 20)
}

/// The table without the spaces that pad its borders.
fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table
        .lines()
        .map(|line| {
            line.strip_prefix(' ')
                .unwrap_or(&line)
                .trim_end()
                .to_owned()
        })
        .collect();
    lines.join("\n")
}

/// Bytes for people: `712 B`, `3.1 MiB`, `1.4 TiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut number = bytes as f64 / 1024.0;
    let mut unit = 0;
    while number >= 1023.95 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    format!("{number:.1} {}", UNITS[unit])
}

/// How long ago something was, in one unit: `5 s`, `12 min`, `3 h`, `9 d`.
pub(crate) fn age(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..86_400 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// A list with commas, or as many of its first items as fit in so many characters, with a mark.
pub(crate) fn cut_list(list: &str, characters_max: usize) -> String {
    if list.chars().count() <= characters_max {
        return list.to_owned();
    }
    let ends = list.match_indices(',').map(|(at, _)| at);
    let end = ends.take_while(|at| at + 2 <= characters_max).last();
    format!("{},…", &list[..end.unwrap_or(0)])
}

/// The text, or its beginning with a mark if it has more than so many characters.
pub(crate) fn cut(text: &str, characters_max: usize) -> String {
    if text.chars().count() <= characters_max {
        return text.to_owned();
    }
    let beginning: String = text
        .chars()
        .take(characters_max.saturating_sub(1))
        .collect();
    format!("{beginning}…")
}

/// `1 shard`, `3 shards`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that any client of a database could choose.
    const HOSTILE: &str = "a\x1b[2Jb\x1b]0;c\x07\u{9b}31m\u{202e}\u{2028}\u{e0041}\r\"\\\ttab";

    #[derive(JsonSchema, Serialize)]
    struct Quoted {
        text: &'static str,
    }

    #[test]
    fn json_stays_json() {
        let line = line(Quoted { text: HOSTILE });
        assert!(
            line.bytes().all(|byte| (b' '..0x7f).contains(&byte)),
            "{line}"
        );
        assert_eq!(printable(&line), line);
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["text"], HOSTILE);
    }

    #[test]
    fn a_name_is_no_second_row() {
        let table = drawn(
            &[("name", Align::Left)],
            [[format!("one\ntwo {HOSTILE}")]],
            None,
        );
        assert_eq!(table.lines().count(), 2, "{table}");
        assert!(table.chars().all(is_plain), "{table}");
    }

    #[test]
    fn a_command_and_an_id_are_never_broken() {
        let id = "019e2c0a-7b3f-7000-8000-000000000001";
        let command = format!("`pgshard moves rollback {id}`");
        let text = format!("or go back with {command}; {id} is kept up to date by a feed.");
        for columns in 20..120 {
            let wrapped = wrapped(&text, 6, "  ", columns);
            assert!(wrapped.contains(&command), "{columns}: {wrapped}");
            assert_eq!(wrapped.matches(id).count(), 2, "{columns}: {wrapped}");
            for (at, line) in wrapped.lines().enumerate() {
                let before = if at == 0 { 6 } else { 0 };
                let is_one = !line.trim().contains(' ') || line.trim().starts_with('`');
                let fits = before + line.chars().count() <= columns;
                assert!(fits || is_one, "{columns}: {line}");
            }
            let again: String = wrapped.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(again, text);
        }
    }

    #[test]
    fn columns_go_until_a_table_fits() {
        let columns = [
            ("move", Align::Left, Rank::Stays),
            ("from", Align::Left, Rank::Goes(1)),
            ("note", Align::Left, Rank::Goes(2)),
        ];
        let rows = [vec!["a".repeat(8), "b".repeat(30), "c".repeat(60)]];
        for (width, heads) in [(200, 3), (80, 2), (40, 2), (39, 1), (3, 1)] {
            let (table, left_out) = fitted(&columns, &rows, Some(width));
            assert_eq!(left_out.len(), 3 - heads, "{width}: {left_out:?}");
            let head = table.lines().next().unwrap();
            assert_eq!(head.split_whitespace().count(), heads, "{width}: {table}");
        }
    }

    #[test]
    fn a_table_fits_every_terminal() {
        let columns = [
            ("host", Align::Left),
            ("shard", Align::Right),
            ("what", Align::Left),
            ("remedy", Align::Left),
        ];
        for length in [1, 7, 40, 90, 300] {
            let text = |letter: &str| letter.repeat(5) + &format!(" {letter}").repeat(length / 2);
            let rows = [
                vec!["db1".to_owned(), "8191".to_owned(), text("a"), text("b")],
                vec!["c".repeat(63), "0".to_owned(), String::new(), text("d")],
            ];
            for width in [40, 80, 100, 160] {
                let table = drawn(&columns, rows.clone(), Some(width));
                let longest = table.lines().map(|line| line.chars().count()).max();
                assert!(longest <= Some(width), "{width}: {table}");
                let letters = |text: &str, letter| text.matches(letter).count();
                for letter in ["a", "b", "c"] {
                    let all = rows
                        .iter()
                        .flatten()
                        .map(|cell| letters(cell, letter))
                        .sum::<usize>();
                    let heads = columns
                        .iter()
                        .map(|(name, _)| letters(name, letter))
                        .sum::<usize>();
                    assert_eq!(letters(&table, letter), all + heads, "{width}: {table}");
                }
            }
        }
    }

    #[test]
    fn the_time_that_is_left_runs_down() {
        let at = Duration::from_secs;
        let mut bar = Remaining::default();
        assert_eq!(bar.text(at(5)), "");
        // The first of four took 30 s.
        bar.see(1, 4, at(30));
        assert_eq!(bar.text(at(30)), " · one in 30.0 s · 1 min 30 s left");
        bar.see(1, 4, at(50));
        assert_eq!(bar.text(at(50)), " · one in 30.0 s · 1 min 10 s left");
        bar.see(2, 4, at(60));
        assert_eq!(bar.text(at(60)), " · one in 30.0 s · 1 min 0 s left");
        // It takes longer than the others did: nothing is claimed.
        assert_eq!(bar.text(at(200)), " · one in 30.0 s");
        bar.see(1000, 2000, at(100));
        assert_eq!(bar.text(at(101)), " · 10/s · 1 min 39 s left");
        assert_eq!(bar.text(at(195)), " · 10/s · 5 s left");
        let mut hosts = Remaining {
            limit: Some(at(5)),
            ..Remaining::default()
        };
        // An answer of one host means nothing for the other.
        hosts.see(1, 2, at(1));
        assert_eq!(hosts.text(at(1)), " · 4 s left at most");
        assert_eq!(hosts.text(at(6)), "");
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in [(0, "0 s"), (59, "59 s"), (3599, "59 min"), (7200, "2 h")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
        assert_eq!(age(Duration::from_secs(9 * 86_400 + 5)), "9 d");
        assert_eq!(cut("operator-7:12345", 6), "opera…");
    }

    /// A number is never cut: 60 is another shard than 600.
    #[test]
    fn a_list_is_cut_between_its_items() {
        assert_eq!(cut_list("0-3, 7, 9-20", 12), "0-3, 7, 9-20");
        assert_eq!(cut_list("0-3, 7, 9-20", 11), "0-3, 7,…");
        assert_eq!(cut_list("0-3, 7, 9-20", 6), "0-3,…");
        let list = "600-700, 1000-1023, 2000, 3000-4000, 17";
        for characters_max in 9..39 {
            let cut = cut_list(list, characters_max);
            assert!(cut.chars().count() <= characters_max, "{cut}");
            let kept = cut.strip_suffix('…').unwrap();
            assert!(kept.ends_with(',') && list.starts_with(kept), "{cut}");
        }
    }

    #[test]
    fn a_line_of_the_log_is_one_line() {
        let line = format!("\x1b[33m WARN\x1b[0m of {HOSTILE}\nERROR forged\n");
        let plain = logged(&line, false);
        assert!(
            plain.ends_with("\\nERROR forged\n") && plain.lines().count() == 1,
            "{plain}"
        );
        assert!(plain.chars().all(is_plain), "{plain}");
        let coloured = logged(&line, true);
        assert!(
            coloured.starts_with("\x1b[33m WARN\x1b[0m of a\\u{1b}[2Jb\\u{1b}]0;c"),
            "{coloured}"
        );
        assert_eq!(coloured.matches('\x1b').count(), 2, "{coloured}");
    }
}
