//! PostgreSQL's protocol, as far as a router and a store speak it, from the server's side.

use std::io;

use tokio::io::{AsyncReadExt, BufReader};

use crate::pg::simulated::Stream;

/// A message of the client.
#[derive(Debug)]
pub(super) enum Message {
    Query(String),
    Parse {
        name: String,
        sql: String,
    },
    Bind {
        statement: String,
        parameters: Vec<Option<Vec<u8>>>,
    },
    Describe,
    Execute,
    Close {
        name: String,
    },
    Sync,
    Terminate,
}

/// What a statement gives.
#[derive(Debug)]
pub(super) enum Answer {
    Rows(Vec<Vec<Option<Vec<u8>>>>),
    Done,
    Refused(Refusal),
}

/// An error of the server.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: &'static str,
    pub(super) detail: String,
}

/// The types of a statement's parameters and columns, by their OIDs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) parameters: &'static [u32],
    pub(super) columns: &'static [(&'static str, u32)],
}

pub(super) const INT8: u32 = 20;
pub(super) const INT4: u32 = 23;
pub(super) const TEXT: u32 = 25;
pub(super) const FLOAT8: u32 = 701;
pub(super) const INT4_ARRAY: u32 = 1007;
pub(super) const UUID: u32 = 2950;

/// The first message of a connection. True when it wants a session, not a cancellation.
pub(super) async fn startup(from: &mut BufReader<impl AsyncReadExt + Unpin>) -> io::Result<bool> {
    let length = from.read_u32().await? as usize;
    let mut body = vec![0; length.saturating_sub(4)];
    from.read_exact(&mut body).await?;
    Ok(body.starts_with(&[0, 3]))
}

pub(super) async fn message(
    from: &mut BufReader<tokio::io::ReadHalf<Stream>>,
) -> io::Result<Message> {
    let tag = from.read_u8().await?;
    let length = from.read_u32().await? as usize;
    let mut body = vec![0; length.saturating_sub(4)];
    from.read_exact(&mut body).await?;
    let mut body = Body(&body);
    Ok(match tag {
        b'Q' => Message::Query(body.text()),
        b'P' => Message::Parse {
            name: body.text(),
            sql: body.text(),
        },
        b'B' => {
            body.text();
            let statement = body.text();
            let formats = body.int2();
            (0..formats).for_each(|_| _ = body.int2());
            let parameters = (0..body.int2()).map(|_| body.value()).collect();
            Message::Bind {
                statement,
                parameters,
            }
        }
        b'D' => Message::Describe,
        b'E' => Message::Execute,
        b'C' => {
            body.0 = &body.0[1..];
            Message::Close { name: body.text() }
        }
        b'S' => Message::Sync,
        b'X' => Message::Terminate,
        other => panic!("a router does not send {:?}", char::from(other)),
    })
}

/// The bytes of a message, read from the front.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn text(&mut self) -> String {
        let end = self
            .0
            .iter()
            .position(|byte| *byte == 0)
            .expect("a text ends with 0");
        let text = String::from_utf8_lossy(&self.0[..end]).into_owned();
        self.0 = &self.0[end + 1..];
        text
    }

    fn int2(&mut self) -> u16 {
        let (number, rest) = self.0.split_first_chunk().expect("a number has two bytes");
        self.0 = rest;
        u16::from_be_bytes(*number)
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let (length, rest) = self.0.split_first_chunk().expect("a length has four bytes");
        let length = usize::try_from(i32::from_be_bytes(*length)).ok();
        let (value, rest) = rest.split_at(length.unwrap_or(0));
        self.0 = rest;
        length.map(|_| value.to_vec())
    }
}

/// The elements of an array of `int4`.
pub(super) fn int4_array(value: &[u8]) -> Vec<i32> {
    // Dimensions, whether there are NULLs, the type, the length and the lower bound; then each with
    // its length.
    let elements = value.get(20..).unwrap_or_default();
    elements
        .chunks_exact(8)
        .map(|one| i32::from_be_bytes(one[4..].try_into().expect("four bytes")))
        .collect()
}

/// Messages of the server, one after the other.
#[derive(Default)]
pub(super) struct Reply(pub(super) Vec<u8>);

impl Reply {
    fn put(&mut self, tag: u8, body: &[u8]) {
        self.0.push(tag);
        self.0
            .extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        self.0.extend_from_slice(body);
    }

    pub(super) fn greeting(&mut self) {
        self.put(b'R', &0_u32.to_be_bytes());
        self.put(b'S', b"server_version\x0018.0\0");
        self.put(b'K', &[0; 8]);
        self.ready();
    }

    pub(super) fn ready(&mut self) {
        self.put(b'Z', b"I");
    }

    pub(super) fn parsed(&mut self) {
        self.put(b'1', b"");
    }

    pub(super) fn bound(&mut self) {
        self.put(b'2', b"");
    }

    pub(super) fn closed(&mut self) {
        self.put(b'3', b"");
    }

    pub(super) fn described(&mut self, shape: Shape) {
        let mut body = (shape.parameters.len() as u16).to_be_bytes().to_vec();
        shape
            .parameters
            .iter()
            .for_each(|oid| body.extend_from_slice(&oid.to_be_bytes()));
        self.put(b't', &body);
        if shape.columns.is_empty() {
            return self.put(b'n', b"");
        }
        let mut body = (shape.columns.len() as u16).to_be_bytes().to_vec();
        for (name, oid) in shape.columns {
            body.extend_from_slice(name.as_bytes());
            body.extend_from_slice(&[0; 7]);
            body.extend_from_slice(&oid.to_be_bytes());
            body.extend_from_slice(&[0, 8, 0xff, 0xff, 0xff, 0xff, 0, 1]);
        }
        self.put(b'T', &body);
    }

    /// The answer; false when it is an error.
    pub(super) fn answer(&mut self, answer: Answer) -> bool {
        match answer {
            Answer::Refused(Refusal { code, detail }) => {
                let error = format!("SERROR\0VERROR\0C{code}\0Mrefused\0D{detail}\0\0");
                self.put(b'E', error.as_bytes());
                return false;
            }
            Answer::Done => self.put(b'C', b"SET\0"),
            Answer::Rows(rows) => {
                for row in &rows {
                    let mut body = (row.len() as u16).to_be_bytes().to_vec();
                    for value in row {
                        let length = value.as_ref().map_or(-1, |value| value.len() as i32);
                        body.extend_from_slice(&length.to_be_bytes());
                        body.extend_from_slice(value.as_deref().unwrap_or_default());
                    }
                    self.put(b'D', &body);
                }
                self.put(b'C', format!("SELECT {}\0", rows.len()).as_bytes());
            }
        }
        true
    }

    pub(super) fn notification(&mut self) {
        self.put(b'A', b"\0\0\0\0pgshard_map\0\0");
    }
}
