"""What bash is taught, in the place of typer's own script: words with `=` and `:` are one word.

bash breaks its words there too, and puts in the place of the last piece only. So the pieces are
joined again before the offers are asked for, and what stands already is cut off them. typer has
no door for that: its version is pinned, and `tests/cli/test_completion.py` types into a real bash.
"""

from __future__ import annotations

from typing import Final

from typer import _completion_classes, _completion_shared

# Filled in by typer with `%`, so every other one is doubled.
BASH: Final = """
%(complete_func)s() {
    local IFS=$'\\n' words=() i piece rest="$COMP_LINE"
    for ((i = 0; i <= COMP_CWORD; i++)); do
        piece="${COMP_WORDS[i]}"
        if [[ ${#words[@]} -gt 0 && $rest != [[:space:]]* ]]; then
            words[-1]+="$piece"
        else
            rest="${rest#"${rest%%%%[![:space:]]*}"}"
            words+=("$piece")
        fi
        rest="${rest#"$piece"}"
    done
    local word="${words[-1]}" stands=""
    if [[ $COMP_WORDBREAKS == *[=:]* && $word == *[=:]* ]]; then
        stands="${word%%"${word##*[=:]}"}"
        [[ $word != --*=* ]] || stands="${stands#*=}"  # what is offered has no option before it
    fi
    COMPREPLY=( $( env COMP_WORDS="${words[*]}" \\
                   COMP_CWORD=$((${#words[@]} - 1)) \\
                   %(autocomplete_var)s=complete_bash $1 ) )
    COMPREPLY=( "${COMPREPLY[@]#"$stands"}" )
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""


def teach() -> None:
    """From now on typer hands out this script."""
    _completion_shared._completion_scripts["bash"] = BASH
    _completion_classes.BashComplete.source_template = BASH
