//! A program that prints a password: for tokens that a service gives out for some minutes.
//!
//! Invariant: what the program prints is in no error and no log line; nor are its arguments.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::password_error::PasswordError;

/// How long the program may take.
const TAKES_MAX: Duration = Duration::from_secs(10);

/// How much it may print.
const OUTPUT_MAX: u64 = 64 * 1024;

/// For how long a password is used again: connections that are opened together cost one run.
const KEPT_FOR: Duration = Duration::from_secs(5);

/// How often is looked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A program that prints a password, as a list of arguments without a shell, and what it printed
/// last. All clones share that.
#[derive(Clone)]
pub struct PasswordCommand {
    /// The program, and its arguments.
    args: Vec<String>,
    /// Where it runs.
    folder: PathBuf,
    last: Arc<Mutex<Option<(Instant, String)>>>,
}

impl PasswordCommand {
    /// The program, which is looked up in `PATH` if it has no slash, and its arguments.
    pub fn new(args: Vec<String>) -> PasswordCommand {
        PasswordCommand {
            args,
            folder: PathBuf::from("."),
            last: Arc::default(),
        }
    }

    /// Takes the folder where it runs, and that a program with a slash is below, as below this one.
    pub(super) fn below(&mut self, folder: &Path) {
        self.folder = folder.join(&self.folder);
    }

    /// The first line that the program prints. It runs once for all calls within five seconds,
    /// and concurrent calls wait for it; it blocks.
    pub(super) fn read(&self) -> Result<String, PasswordError> {
        // A panic while it is held leaves the last password as it was.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, password)) = &*last
            && at.elapsed() < KEPT_FOR
        {
            return Ok(password.clone());
        }
        *last = None;
        let password = self.run()?;
        *last = Some((Instant::now(), password.clone()));
        Ok(password)
    }

    /// Takes the last password for outdated: a server has refused it.
    pub(super) fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn run(&self) -> Result<String, PasswordError> {
        let failed = |why: String| PasswordError::Command {
            program: self.program().to_owned(),
            why,
        };
        let program = match self.program().contains('/') {
            true => self.folder.join(self.program()),
            false => self.program().into(),
        };
        let child = Command::new(program)
            .args(self.args.iter().skip(1))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // It may have a secret in it.
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.map_err(|error| failed(format!("cannot be started: {error}")))?;
        let outcome = wait(&mut child);
        if !matches!(outcome, Ok(Some(_))) {
            // It may have ended in the meantime. Processes that it started are not ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        let text = match outcome {
            Ok(Some(text)) => text,
            Ok(None) => {
                return Err(failed(format!(
                    "took longer than {} s",
                    TAKES_MAX.as_secs()
                )));
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        let password = text.lines().next().unwrap_or_default();
        match password.is_empty() {
            true => Err(failed("printed no password".to_owned())),
            false => Ok(password.to_owned()),
        }
    }

    fn program(&self) -> &str {
        self.args.first().map_or("", String::as_str)
    }
}

/// What the program prints, once it has ended well; `None` if it takes too long.
fn wait(child: &mut Child) -> io::Result<Option<String>> {
    let until = Instant::now() + TAKES_MAX;
    let (sender, receiver) = mpsc::channel();
    let Some(stdout) = child.stdout.take() else {
        return Err(io::Error::other("prints to nowhere"));
    };
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.take(OUTPUT_MAX + 1).read_to_end(&mut bytes);
        // The waiting caller may have given up.
        let _ = sender.send(read.map(|_| bytes));
    });
    let Ok(bytes) = receiver.recv_timeout(TAKES_MAX) else {
        return Ok(None);
    };
    let bytes = bytes?;
    if bytes.len() as u64 > OUTPUT_MAX {
        return Err(io::Error::other(format!(
            "printed more than {OUTPUT_MAX} bytes"
        )));
    }
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => break,
            Some(status) => return Err(io::Error::other(format!("failed: {status}"))),
            None if Instant::now() >= until => return Ok(None),
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| io::Error::other("printed what is not UTF-8"))
}

/// The same program with the same arguments, whatever it has printed.
impl PartialEq for PasswordCommand {
    fn eq(&self, other: &PasswordCommand) -> bool {
        self.args == other.args && self.folder == other.folder
    }
}

impl Eq for PasswordCommand {}

impl fmt::Debug for PasswordCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PasswordCommand")
            .field(&self.program())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> PasswordCommand {
        PasswordCommand::new(["sh", "-c", script].map(str::to_owned).to_vec())
    }

    fn why(script: &str) -> String {
        let error = shell(script).read().unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        error.to_string()
    }

    #[test]
    fn the_first_line_is_the_password() {
        assert_eq!(
            shell("echo 'se cret'; echo more").read().unwrap(),
            "se cret"
        );
        assert!(!format!("{:?}", shell("echo hunter2")).contains("hunter2"));
    }

    #[test]
    fn a_password_is_kept_until_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = shell("echo x >> runs; wc -l < runs");
        command.below(folder.path());
        let first = command.read().unwrap();
        assert_eq!(command.clone().read().unwrap(), first);
        command.forget();
        assert_ne!(command.read().unwrap(), first);
    }

    #[test]
    fn a_program_that_fails_gives_no_password() {
        assert!(why("echo hunter2; exit 3").contains("exit status: 3"));
        assert!(why("true").contains("printed no password"));
        assert!(why("yes hunter2").contains("printed more than"));
        let missing = PasswordCommand::new(vec!["/nonexistent/program".to_owned()]);
        assert!(
            missing
                .read()
                .unwrap_err()
                .to_string()
                .contains("cannot be started")
        );
    }
}
