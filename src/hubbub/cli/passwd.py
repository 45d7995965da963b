"""`hubbub passwd`: edits the password files that listeners check. Never shows or logs a password.

A running hub takes the changes on SIGHUP.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from hubbub.auth import passwords
from hubbub.cli.payload import typed
from hubbub.errors import SettingError
from hubbub.terminal import say

app = typer.Typer(no_args_is_help=True, add_completion=False)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The password file.")]
User = Annotated[str, typer.Argument(metavar="USER", help="The user name.")]


@app.command()
def add(
    file: File,
    user: User,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the password from standard input, one line.")
    ] = False,
    token: Annotated[
        bool, typer.Option("--token", help="Make a random password; print the bearer token.")
    ] = False,
    scram: Annotated[
        bool, typer.Option(help="Also store what SCRAM-SHA-256 needs, a weaker hash.")
    ] = True,
) -> None:
    """Add a user, or give a user another password."""
    secret = secrets.token_urlsafe(24) if token else _read() if stdin else _ask(user)
    can_scram = passwords.add_user(file, user, typed(secret), scram)
    if token:
        print(f"{user}.{secret}")
    elif scram and not can_scram:
        print("hubbub: this password cannot be used with SCRAM-SHA-256", file=sys.stderr)


@app.command("list")
def list_users(file: File) -> None:
    """List the users, and how each can prove who it is."""
    for name, account in sorted(passwords.read_users(file).items()):
        say(f"{name}  password" + (", SCRAM-SHA-256" if account.verifier else ""))


@app.command()
def remove(file: File, user: User) -> None:
    """Remove a user."""
    passwords.remove_user(file, user)


def _read() -> str:
    return sys.stdin.readline().rstrip("\r\n")


def _ask(user: str) -> str:
    if not sys.stdin.isatty():
        raise SettingError("no terminal to ask for the password; use --stdin")
    try:
        return str(typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True))
    except typer.Abort:  # what a prompt makes of Ctrl-C, which ends every command with 130
        raise KeyboardInterrupt from None
