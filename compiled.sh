#!/bin/sh
# The hot path as a C extension, in build/compiled, where development does not meet it. Called by
# the Makefile:
# compiled.sh           make it now; an error is shown
# compiled.sh --beside  make it at the lowest priority, and do not wait
# compiled.sh COMMAND   run that with it if it is of this very source, else plain; then it is made
#                       beside, for the next start. Nobody waits for gcc.
set -u
cd "$(dirname "$0")" || exit 1
of_now() { # whether $1 is there and no file of the source is younger
    [ -e "$1" ] && [ -z "$(find src setup.py pyproject.toml -type f -newer "$1" \
        -not -path '*/__pycache__/*' -not -path '*.egg-info/*' -print -quit)" ]
}

make_it() { # from a copy: pip writes beside the source, and may be installing it just now
    rm -rf build/source build/wheel build/fresh build/compiled.failed
    mkdir -p build/source
    cp -r src setup.py pyproject.toml README.md LICENSE build/source/
    touch build/source/began
    if HUBBUB_COMPILE=1 .venv/bin/pip wheel --quiet --no-deps -w build/wheel ./build/source &&
        .venv/bin/pip install --quiet --no-deps --target build/fresh build/wheel/*.whl; then
        touch -r build/source/began build/fresh/made
        rm -rf build/compiled && mv build/fresh build/compiled
    else
        touch -r build/source/began build/compiled.failed
        return 1
    fi
    rm -rf build/source build/wheel
}

beside() {
    mkdir -p build
    setsid nice -n 19 flock --nonblock build/compiling.lock ./compiled.sh --make \
        >build/compiling.log 2>&1 </dev/null &
}

case ${1-} in
'') mkdir -p build && exec flock build/compiling.lock ./compiled.sh --make ;;
--make) of_now build/compiled/made || make_it ;;
--beside) beside ;;
*)
    if of_now build/compiled/made; then
        PYTHONPATH="$PWD/build/compiled${PYTHONPATH:+:$PYTHONPATH}" exec "$@"
    elif [ -e .venv/dev ]; then
        : # who changes the source says when: make compiled
    elif of_now build/compiled.failed; then
        echo "Plain Python: the hot path could not be compiled here (build/compiling.log says why)."
    else
        echo "Plain Python for now: the hot path is being compiled (minutes), and the next start uses it."
        beside
    fi
    exec "$@"
    ;;
esac
