//! The token that every request must show: as a bearer, or as the password that a browser prompts
//! for.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::exit::Exit;
use crate::failure::Failure;

/// Shorter ones can be guessed.
const LENGTH_MIN: usize = 16;

/// Longer than any header that is read.
const LENGTH_MAX: usize = 1024;

/// The digests of the headers that show the token: it is kept nowhere itself, and digests have all
/// one length.
pub(super) struct Token {
    headers: Vec<[u8; 32]>,
}

impl Token {
    /// Reads it from its file, the first line.
    ///
    /// # Errors
    /// With [`Exit::Usage`] where others may read the file, or the token can be guessed.
    pub(super) fn read(path: &Path) -> Result<Token, Failure> {
        let shown = path.display();
        let failed = |error: std::io::Error| {
            Failure::new(Exit::Usage, format!("cannot read {shown}: {error}"))
        };
        let facts = std::fs::metadata(path).map_err(failed)?;
        let mode = facts.mode();
        // A group may read what root has given to it: Kubernetes mounts secrets so, and the access
        // list of a systemd credential shows in the bits of the group.
        let forbidden = if facts.uid() == 0 { 0o037 } else { 0o077 };
        if mode & forbidden != 0 {
            let error = format!("{shown} can be read by others (mode {:03o})", mode & 0o777);
            return Err(Failure::usage(error).hint(format!("chmod 600 {shown}")));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let token = text.lines().next().unwrap_or_default().trim();
        if !(LENGTH_MIN..=LENGTH_MAX).contains(&token.len())
            || !token.chars().all(|c| c.is_ascii_graphic())
        {
            let error =
                format!("{shown} has no token of {LENGTH_MIN} to {LENGTH_MAX} ASCII characters");
            return Err(Failure::usage(error).hint(format!("openssl rand -hex 24 >{shown}")));
        }
        Ok(Token::new(token))
    }

    fn new(token: &str) -> Token {
        let basic = |user: &str| format!("Basic {}", base64(format!("{user}:{token}").as_bytes()));
        let headers = [format!("Bearer {token}"), basic("pgshard"), basic("")];
        Token {
            headers: headers
                .iter()
                .map(|header| Sha256::digest(header.as_bytes()).into())
                .collect(),
        }
    }

    /// Whether this value of `Authorization` shows it. How long that takes reveals nothing about
    /// how much of it is right.
    pub(super) fn is_shown_by(&self, header: &[u8]) -> bool {
        let shown: [u8; 32] = Sha256::digest(header).into();
        self.headers
            .iter()
            .fold(false, |found, header| found | equal(header, &shown))
    }
}

/// Whether the two are equal, in the same time whatever they are.
fn equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let differences = a
        .iter()
        .zip(b)
        .fold(0, |differences, (a, b)| differences | (a ^ b));
    std::hint::black_box(differences) == 0
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number = (0..3).fold(0_u32, |number, at| {
            number << 8 | u32::from(chunk.get(at).copied().unwrap_or(0))
        });
        for at in 0..4 {
            let letter = char::from(LETTERS[(number >> (18 - 6 * at) & 63) as usize]);
            text.push(if at <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("?>~", "Pz5+"),
        ];
        for (plain, coded) in cases {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn only_the_whole_token_is_right() {
        let token = Token::new("0123456789abcdef");
        for right in [
            "Bearer 0123456789abcdef",
            "Basic cGdzaGFyZDowMTIzNDU2Nzg5YWJjZGVm",
        ] {
            assert!(token.is_shown_by(right.as_bytes()), "{right}");
        }
        for wrong in [
            "",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "0123456789abcdef",
            "Basic ",
        ] {
            assert!(!token.is_shown_by(wrong.as_bytes()), "{wrong}");
        }
    }
}
