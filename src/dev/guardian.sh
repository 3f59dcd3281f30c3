# Keeps one PostgreSQL server for the process that holds the other end of stdin, and stops it when that process is gone.
# usage: sh -c THIS guardian POSTGRES SERVER_DIRECTORY
#
# One order a line: launch | signal NAME | keep. At the end of stdin (also when the parent was killed): stop the server
# at once and, unless told to keep it, remove its directory. No order is answered: the process that gave it watches the
# files `pid` and `exited`.
set -u
postgres=$1 server=$2
pid='' watcher='' keep=no
exec >>"$server/log" 2>&1

launch() {
    rm -f "$server/pid" "$server/exited"
    {
        "$postgres" -D "$server/data" </dev/null &
        echo $! >"$server/pid.new" && mv "$server/pid.new" "$server/pid"
        wait $!
        echo $? >"$server/exited"
    } </dev/null &
    watcher=$!
    until [ -f "$server/pid" ] || ! kill -0 "$watcher" 2>/dev/null; do sleep 0.01; done
    pid=$(cat "$server/pid")
}

# A server that was paused with SIGSTOP acts on nothing before SIGCONT.
pass_on() {
    [ ! -f "$server/exited" ] && kill -s "$1" "$pid" && kill -s CONT "$pid"
}

finish() {
    trap '' INT TERM HUP
    # More than once: until a starting server has set its handlers up, it ignores the signal (as every background
    # command of a shell does).
    tries=0
    while [ -n "$pid" ] && pass_on QUIT 2>/dev/null; do
        sleep 0.02
        tries=$((tries + 1))
        [ $tries -lt 1000 ] || kill -s KILL "$pid"
    done
    [ -n "$watcher" ] && wait "$watcher"
    [ "$keep" = no ] && cd / && rm -rf "$server"
    exit 0
}

trap finish INT TERM HUP
while read -r order name; do
    case $order in
    launch) launch ;;
    signal) pass_on "$name" ;;
    keep) keep=yes ;;
    esac
done
finish
