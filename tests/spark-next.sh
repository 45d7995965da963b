#!/bin/sh
# Tries Spark's next minor version as soon as the package index has one, development versions too.
# Called by `make spark-next`; VERSION=4.2.1 takes that one, whatever is newest.
#
# It lies in build/spark-next, before .venv on the path of all Pythons: everything else stays as it
# is pinned. Says in a line why there is nothing to try.
set -u
place=build/spark-next
pinned=$(.venv/bin/python -c 'import pyspark; print(pyspark.__version__)')
newest=${VERSION:-$(.venv/bin/pip index versions --pre pyspark 2>/dev/null | sed -n 's/^pyspark (\(.*\))$/\1/p')}

minor() { echo "$1" | cut -d. -f1-2; }
[ -n "$newest" ] || { echo "Skipped: the package index does not say which versions of pyspark it has."; exit 0; }
[ "$(minor "$newest")" != "$(minor "$pinned")" ] || {
    echo "Skipped: the newest pyspark of the package index is $newest, of the minor version that is pinned."
    exit 0
}
echo "Trying pyspark $newest (pinned: $pinned)"
rm -rf "$place"
.venv/bin/pip install --quiet --pre --target "$place" "pyspark==$newest" || exit 1
PYTHONPATH="$PWD/$place:$PWD/src:$PWD"
export PYTHONPATH
.venv/bin/python -c 'import pyspark, sys; sys.exit(pyspark.__version__ != sys.argv[1])' "$newest" || exit 1
exec .venv/bin/pytest -m 'spark and not slow and not soak' tests/spark tests/pipeline "$@"
