#!/bin/sh
# Installs this project into .venv, with extras if some are given. Called by the Makefile:
# install.sh [EXTRAS [OPTIONS of pip]]
#
# pip prints pages that nobody reads, or nothing. This says what it is at: on one line of a
# terminal, every ten seconds in a log. Its errors are shown in full.
set -u
log=.venv/install.log
errors=.venv/install.errors
began=$(date +%s)
said=0

at() { # the last thing that pip says it began; of its log, which becomes 65 MB, the end
    tail -c 2000000 "$log" | sed -nE -e 's/(Downloading [^-]+-[^-]+)-[^ ]+/\1/' \
        -e 's/^[^ ]+ +((Collecting|Downloading|Building|Installing) [^:;]*).*/\1/p' |
        tail -n 1 | cut -c 1-70
}

rm -f "$log"
extras=${1-}
[ $# -eq 0 ] || shift
.venv/bin/pip install --quiet --progress-bar off --log "$log" "$@" -e ".${extras:+[$extras]}" 2>"$errors" &
pip=$!
trap 'kill $pip; exit 1' INT TERM HUP
while kill -0 $pip 2>/dev/null; do
    sleep 1
    seconds=$(($(date +%s) - began))
    if [ -t 1 ]; then
        printf '\r\033[K  %s s: %s' "$seconds" "$(at)"
    elif [ $((seconds - said)) -ge 10 ]; then
        said=$seconds
        echo "  $seconds s: $(at)"
    fi
done
[ ! -t 1 ] || printf '\r\033[K'
wait $pip || {
    grep -v '^WARNING' "$errors"
    sed -nE 's/^[^ ]+  +(ERROR: .*)/\1/p' "$log" # those of a build, which pip keeps to itself
    echo "pip failed after $seconds s. All it did is in $log; the same command goes on from here."
    exit 1
}
echo "Installed in $seconds s."
