//! Rounds that continue from seed to seed, until the minutes or the rounds are over.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::words::{self, Words};

struct Asked {
    seed: u64,
    version: Option<u32>,
    minutes: Option<f64>,
    rounds: Option<u64>,
    keep_going: bool,
}

fn asked() -> Result<Asked, String> {
    let mut asked = Asked {
        seed: words::seed(),
        version: None,
        minutes: None,
        rounds: None,
        keep_going: false,
    };
    let mut words = Words::of_process();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--keep-going" => asked.keep_going = true,
            "--seed" => asked.seed = words.value(&word)?,
            "--minutes" => asked.minutes = Some(words.value(&word)?),
            "--rounds" => asked.rounds = Some(words.value(&word)?),
            "--version" => asked.version = Some(words.value(&word)?),
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(asked)
}

/// Plays the rounds that the arguments request, on 15 and 18 in turn if no version is named. A
/// round fails if it panics.
pub(crate) fn play<C, P>(help: &str, case_of: fn(u64, u32) -> C, round: fn(C) -> P) -> ExitCode
where
    C: Display,
    P: Future<Output: Send> + Send + 'static,
{
    let asked = match asked() {
        Ok(asked) => asked,
        Err(mistake) => {
            eprintln!("{mistake}\n\n{help}");
            return ExitCode::from(2);
        }
    };
    let begun = Instant::now();
    let rounds = asked
        .rounds
        .unwrap_or(if asked.minutes.is_some() { u64::MAX } else { 1 });
    let over = || {
        asked
            .minutes
            .is_some_and(|minutes| begun.elapsed() > Duration::from_secs_f64(minutes * 60.0))
    };
    let mut failed = 0;
    for at in 0..rounds {
        if over() {
            break;
        }
        let version = asked.version.unwrap_or(if at % 2 == 0 { 15 } else { 18 });
        let case = case_of(asked.seed.wrapping_add(at), version);
        let text = case.to_string();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime can be made");
        let one = Instant::now();
        // Each round is a task of its own, so that the next round runs even if one panics.
        let played = runtime.block_on(async { tokio::spawn(round(case)).await });
        let word = if played.is_ok() { "ok    " } else { "FAILED" };
        println!("{word} {text}, {:.0} s", one.elapsed().as_secs_f64());
        if played.is_err() {
            failed += 1;
            if !asked.keep_going {
                break;
            }
        }
    }
    println!(
        "{failed} failed, {:.1} minutes",
        begun.elapsed().as_secs_f64() / 60.0
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
