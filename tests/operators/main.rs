//! Several operators at once, round after round. See `script/test-operators --help`.
#![allow(dead_code, unused_imports, unused_macros, reason = "what the tests share is more than this needs")]

mod case;
mod deeds;
mod fates;
mod judge;
mod operator;
mod round;
mod settle;
mod state;
#[path = "../rows/words.rs"]
mod words;
mod writers;

#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use case::Case;
use round::Round;
use words::Words;

const HELP: &str = "script/test-operators [--seed S] [--minutes M] [--rounds N] [--version V] [--keep-going]

Each seed is a round: some hosts with writers, and two to four operators who run commands at the same time, each of
them a process, some of which are killed, stopped or interrupted. Then everything is settled as a careful operator
would, and the hosts are looked at. Rounds go on from seed to seed, on 15 and 18 in turn where no version is named,
until the minutes or the rounds are over. A round that fails prints its story and the words that play it again;
PGSHARD_OPERATORS_TELL=1 prints the story of each as it goes.";

struct Asked {
    seed: u64,
    version: Option<u32>,
    minutes: Option<f64>,
    rounds: Option<u64>,
    keep_going: bool,
}

fn asked() -> Result<Asked, String> {
    let mut asked = Asked { seed: words::seed(), version: None, minutes: None, rounds: None, keep_going: false };
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

fn main() -> ExitCode {
    let asked = match asked() {
        Ok(asked) => asked,
        Err(mistake) => {
            eprintln!("{mistake}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let begun = Instant::now();
    let rounds = asked.rounds.unwrap_or(if asked.minutes.is_some() { u64::MAX } else { 1 });
    let over = || asked.minutes.is_some_and(|minutes| begun.elapsed() > Duration::from_secs_f64(minutes * 60.0));
    let mut failed = Vec::new();
    for at in 0..rounds {
        if over() {
            break;
        }
        let version = asked.version.unwrap_or(if at % 2 == 0 { 15 } else { 18 });
        let case = Case::of(asked.seed.wrapping_add(at), version);
        let text = case.to_string();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let round = Instant::now();
        // Each round is a task of its own, so that the next round runs even if one panics.
        let played = runtime.block_on(async { tokio::spawn(Round::play(case)).await });
        let word = if played.is_ok() { "ok    " } else { "FAILED" };
        println!("{word} {text}, {:.0} s", round.elapsed().as_secs_f64());
        if played.is_err() {
            failed.push(text);
            if !asked.keep_going {
                break;
            }
        }
    }
    println!("{} failed, {:.1} minutes", failed.len(), begun.elapsed().as_secs_f64() / 60.0);
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
