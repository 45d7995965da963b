"""`hubbub pipeline infer`: proposes a typed table from the messages that came."""

from __future__ import annotations

from typing import Annotated

import typer

from hubbub.cli.options import DATA, Data
from hubbub.cli.tables import need_spark
from hubbub.errors import HubbubError


def infer(
    topics: Annotated[str, typer.Argument(help="An MQTT filter: 'plant/+/temp'.")],
    data: Data = DATA,
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the table.")] = "",
    rules: Annotated[
        str, typer.Option(metavar="FILE", help="How to decode, if the messages do not say (TOML).")
    ] = "",
) -> None:
    """Print a typed table for a rules file, from the newest messages of DIR's journal."""
    need_spark()
    from hubbub.journal.examine import directory_of
    from hubbub.journal.table import Table as Journal
    from hubbub.pipeline.infer import look, name_of
    from hubbub.pipeline.rules import NO_RULES, read_rules
    from hubbub.pipeline.typed import check_name

    name = name or name_of(topics)
    check_name(name)

    directory_of(data)
    found = look(Journal(str(data)), topics, read_rules(rules) if rules else NO_RULES)
    if not found.types:
        raise HubbubError(
            f"no message of {topics} in the newest rows of {data} has values that can be read "
            f"({found.messages} were looked at): publish some, or say with --rules what they are"
        )
    for line in found.lines(name, topics):
        print(line)
