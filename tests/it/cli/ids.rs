//! `pgshard id`, which needs no database and no config.

use super::alone;

#[derive(serde::Deserialize)]
struct Vectors {
    ids: Vec<Vector>,
}

#[derive(serde::Deserialize)]
struct Vector {
    epoch_ms: Option<i64>,
    time: Option<String>,
    ms: u64,
    shard: u16,
    sequence_value: u64,
    seq: u16,
    id: String,
}

/// The published vectors, in both directions, at the command line.
#[test]
fn commands_match_the_published_vectors() {
    let vectors: Vectors = serde_json::from_str(include_str!("../../data/ids.json")).unwrap();
    assert_eq!(vectors.ids.len(), 6);
    for vector in vectors.ids {
        let (ms, shard, seq) = (
            vector.ms.to_string(),
            vector.shard.to_string(),
            vector.sequence_value.to_string(),
        );
        let encoded = alone(&[
            "id", "encode", "--ms", &ms, "--shard", &shard, "--seq", &seq,
        ]);
        assert_eq!(encoded.stdout.trim(), vector.id, "{}", encoded.stderr);

        let epoch = vector.epoch_ms.map(|ms| ms.to_string());
        let mut args = vec!["id", "decode", &vector.id, "--json"];
        args.extend(epoch.iter().flat_map(|epoch| ["--epoch", epoch]));
        let decoded = alone(&args).json().remove(0);
        assert_eq!(decoded["id"], vector.id.as_str());
        assert_eq!(decoded["ms"], vector.ms);
        assert_eq!(decoded["shard"], vector.shard);
        assert_eq!(decoded["seq"], vector.seq);
        assert_eq!(decoded["time"].as_str(), vector.time.as_deref());

        if let (Some(epoch), Some(time)) = (&epoch, &vector.time) {
            let args = [
                "id", "encode", "--time", time, "--epoch", epoch, "--shard", &shard, "--seq", &seq,
            ];
            assert_eq!(alone(&args).stdout.trim(), vector.id);
        }
    }
}

#[test]
fn decode_explains_one_id() {
    insta::assert_snapshot!(
        alone(&["id", "decode", "11637205501278089", "--epoch", "2011-01-01"]).shown()
    );
}

#[test]
fn decode_without_an_epoch() {
    insta::assert_snapshot!(alone(&["id", "decode", "11637205501278089"]).shown());
}

#[test]
fn decode_several_and_negative() {
    let epoch = "2012-01-01T00:00:00Z";
    let ids = [
        "9221321628057605849",
        "-9203679173715945767",
        "18446744073709551615",
    ];
    let text = [&["id", "decode", "--epoch", epoch][..], &ids].concat();
    insta::assert_snapshot!("decode_several_text", alone(&text).shown());
    let json = [&["id", "decode", "--json", "--epoch", epoch][..], &ids].concat();
    insta::assert_snapshot!("decode_several_json", alone(&json).shown());
}

#[test]
fn encode_makes_an_id() {
    let args = [
        "id",
        "encode",
        "--time",
        "2046-12-01",
        "--epoch",
        "1325376000000",
        "--shard",
        "5",
        "--seq",
        "112345",
    ];
    insta::assert_snapshot!("encode_text", alone(&args).shown());
    insta::assert_snapshot!(
        "encode_json",
        alone(&[&args[..], &["--json"]].concat()).shown()
    );
}

#[test]
fn range_bounds_the_ids_of_a_time() {
    let args = [
        "id",
        "range",
        "--from",
        "2026-11-01",
        "--to",
        "2026-11-08T00:00:00Z",
        "--epoch",
        "2011-01-01",
    ];
    insta::assert_snapshot!("range_text", alone(&args).shown());
    insta::assert_snapshot!(
        "range_json",
        alone(&[&args[..], &["--json"]].concat()).shown()
    );
}

#[test]
fn mistakes_are_refused_by_name() {
    let mistakes: [&[&str]; 9] = [
        &["id", "decode", "1e3"],
        &["id", "decode", "18446744073709551616"],
        &["id", "encode", "--time", "2026-11-01", "--shard", "1"],
        &[
            "id",
            "encode",
            "--time",
            "2001-11-01",
            "--shard",
            "1",
            "--epoch",
            "2011-01-01",
        ],
        &["id", "encode", "--ms", "2199023255552", "--shard", "1"],
        &["id", "encode", "--ms", "1", "--shard", "8192"],
        &[
            "id",
            "range",
            "--from",
            "2046-01-01",
            "--to",
            "2047-01-01",
            "--epoch",
            "2012-01-01",
        ],
        &[
            "id",
            "range",
            "--from",
            "last week",
            "--to",
            "2047-01-01",
            "--epoch",
            "2012-01-01",
        ],
        // The time zone of the midnight is not given.
        &[
            "id",
            "range",
            "--from",
            "2026-11-01T10:00",
            "--to",
            "2026-11-08",
            "--epoch",
            "2011-01-01",
        ],
    ];
    let shown =
        mistakes.map(|args| format!("$ pgshard {}\n{}", args.join(" "), alone(args).shown()));
    insta::assert_snapshot!(shown.join("\n"));
}

/// IDs that no shard made.
#[test]
fn decode_other_schemes() {
    let runs: [&[&str]; 8] = [
        &[
            "id",
            "decode",
            "--scheme",
            "snowflake",
            "1541815603606036480",
        ],
        &[
            "id",
            "decode",
            "--scheme",
            "snowflake",
            "1541815603606036480",
            "4194304",
            "--epoch",
            "2024-01-01",
        ],
        &[
            "id",
            "decode",
            "--scheme",
            "snowflake",
            "1541815603606036480",
            "--json",
        ],
        &[
            "id",
            "decode",
            "--scheme",
            "flake",
            "000001a3185c50000100000000070009",
            "--json",
        ],
        &["id", "decode", "--scheme", "simpleflake", "4194305"],
        &[
            "id",
            "decode",
            "--scheme",
            "uuid7",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
        ],
        &[
            "id", "decode", "--scheme", "ticket", "8197", "139264", "--json",
        ],
        &["id", "decode", "--scheme", "uuid7", "12"],
    ];
    let shown = runs.map(|args| format!("$ pgshard {}\n{}", args.join(" "), alone(args).shown()));
    insta::assert_snapshot!(shown.join("\n"));
}
