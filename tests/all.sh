#!/bin/sh
# Run every test (the arguments are pytest's); what fails beside others runs once more alone.
#
# `make test` calls this. The suite keeps a small machine busy for a quarter of an hour or more: a
# test that fails there and passes alone has met the load, which is a fault of the test or a race of
# the product. It is named at the end, for somebody to look at. More than six are no chance, as a
# machine that stands still for a moment meets one of each worker: docs/decisions/0047.
cd "$(dirname "$0")/.." || exit
.venv/bin/pytest "$@"
ended=$?
[ "$ended" -eq 1 ] || exit "$ended"
failed=$(.venv/bin/python -c 'import json
print(*json.load(open(".pytest_cache/v/cache/lastfailed")), sep="\n")') || exit 1
count=$(printf '%s\n' "$failed" | wc -l)
[ "$count" -le 6 ] || { echo "$count tests failed: too many to be the load's doing."; exit 1; }
printf '\nOnce more, alone:\n%s\n' "$failed"
.venv/bin/pytest --last-failed --last-failed-no-failures none || exit
printf '\nPASSED ONLY ALONE, which somebody should look at:\n%s\n' "$failed"
