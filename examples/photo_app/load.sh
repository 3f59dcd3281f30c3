#!/bin/sh
# Requests to a photo app (examples/photo_app.rs) on throwaway servers, while one of its shards is moved there and back. Prints the
# requests by status, and ends with exit code 1 if one of them failed.
#
#   examples/photo_app/load.sh [SECONDS]
#
# Needs curl; builds the command and the example in debug.
#
# What one sees, on two busy cores (debug build, 15 seconds): every request a 200, 201 or 204, two
# moves, and of the 525 requests the one that met a move as a retry.
#
#   moves of shard 7   2, and 0 that gave up
#   requests by status
#       210 200
#       210 201
#       105 204
#   pgshard_signposts_total{host="db2"} 1
#   pgshard_retries_total{host="db2",reason="moved"} 1
#   pgshard_map_version 3
set -eu
seconds=${1:-15}
cd "$(dirname "$0")/../.."
cargo build --quiet --bin pgshard --example photo_app
folder=$(mktemp -d)
# Started by root, the servers run as another user, which needs access to this folder.
chmod 755 "$folder"
PATH="$PWD/target/debug:$PATH"
export PGSHARD_CONFIG="$folder/pgshard.toml" PHOTO_APP_LISTEN=127.0.0.1:3900
at=http://$PHOTO_APP_LISTEN
app=

end() {
    # Whatever ended this, the clients end too.
    touch "$folder/stop"
    [ -z "$app" ] || kill "$app" || true
    pgshard dev down --dir "$folder" --yes >/dev/null || true
}
trap end EXIT

pgshard dev up --hosts 2 --shards 8 --dir "$folder" >/dev/null
rm -f "$folder"/migrations/*
cp examples/photo_app/migrations/* "$folder/migrations/"
pgshard bootstrap >/dev/null
pgshard tickets create users >/dev/null
target/debug/examples/photo_app >"$folder/app.log" 2>&1 &
app=$!
until curl --silent --fail "$at/healthz" >/dev/null; do
    kill -0 "$app" 2>/dev/null || { cat "$folder/app.log" >&2; exit 1; }
    sleep 0.1
done

ask() {
    curl --silent --output "$folder/answer.$writer" --write-out '%{http_code}\n' -H content-type:application/json "$@" >>"$folder/codes.$writer"
}

# One client: users, photos, likes, the feed; on eight shards, of which shard 7 moves.
client() {
    writer=$1
    number=0
    while [ ! -e "$folder/stop" ]; do
        number=$((number + 1))
        ask -X POST "$at/users" -d "{\"name\": \"user $number of $writer\"}"
        user=$(sed -n 's/.*"id":"\([0-9]*\)".*/\1/p' "$folder/answer.$writer")
        ask -X POST "$at/users/$user/photos" -d "{\"title\": \"photo $number\"}"
        id=$(sed -n 's/.*"id":"\([0-9]*\)".*/\1/p' "$folder/answer.$writer")
        ask -X PUT "$at/photos/$id/likes/$writer"
        ask "$at/photos/$id"
        ask "$at/feed?limit=5&users=$user,$((user + 1)),$((user + 8))"
    done
}
for writer in 1 2 3 4; do
    client "$writer" &
    clients="${clients:-} $!"
done

sleep 1
until_time=$(($(date +%s) + seconds))
host=db2
moves=0
gave_up=0
while [ "$(date +%s)" -lt "$until_time" ]; do
    code=0
    pgshard move 7 --to "$host" --yes >>"$folder/moves.log" 2>&1 || code=$?
    case $code in
    0)
        pgshard moves complete --yes >>"$folder/moves.log" 2>&1
        moves=$((moves + 1))
        if [ "$host" = db2 ]; then host=db1; else host=db2; fi
        ;;
    # The cut-over found no gap and the shard is served as before: that is no error.
    5) gave_up=$((gave_up + 1)) ;;
    *)
        tail -n 5 "$folder/moves.log" >&2
        exit 1
        ;;
    esac
done
touch "$folder/stop"
# shellcheck disable=SC2086
wait $clients

echo "moves of shard 7   $moves, and $gave_up that gave up"
echo "requests by status"
cat "$folder"/codes.* | sort | uniq -c
curl --silent "$at/metrics" | grep -E '^pgshard_(retries|signposts|fences|look_ups)_total|^pgshard_map_version'
if cat "$folder"/codes.* | grep -qv '^20'; then
    echo "a request failed; the app's log is $folder/app.log" >&2
    exit 1
fi
