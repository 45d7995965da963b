"""Options that several commands have: declared once, handed over as one value.

    class Target(NamedTuple): …         the options, with their defaults

    @takes(Target)
    def pub(target: Target, …)          has them beside its own

Also the data directory, and those of TLS, which are the same for every command that speaks with
a hub.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, get_type_hints

import typer

from hubbub.config.settings import DEFAULT_DATA
from hubbub.errors import SettingError

if TYPE_CHECKING:
    import ssl


def _directory(said: str) -> Path:
    """A path of no letters is the current directory to Python, and nobody meant that."""
    if not said:
        raise SettingError('--data "" names no directory')
    return Path(said)


Data = Annotated[
    Path, typer.Option(metavar="DIR", parser=_directory, help="The hub's data directory.")
]
DATA: Final = Path(DEFAULT_DATA)
Cafile = Annotated[Path | None, typer.Option(help="TLS: certificates to trust.")]
Cert = Annotated[Path | None, typer.Option(help="TLS: our certificate.")]
Key = Annotated[Path | None, typer.Option(help="TLS: its key.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="TLS: do not check the hub's name.")]

OF_TLS: Final = ("cafile", "cert", "key", "insecure")


class Trusting(Protocol):
    """What has the options of TLS."""

    @property
    def cafile(self) -> Path | None: ...
    @property
    def cert(self) -> Path | None: ...
    @property
    def key(self) -> Path | None: ...
    @property
    def insecure(self) -> bool: ...


def tls_of(given: Trusting) -> ssl.SSLContext:
    """TLS as these say it. SettingError if a file cannot be used."""
    from hubbub.client.mqtt import tls_context  # which takes a while to load

    return tls_context(given.cafile, given.cert, given.key, given.insecure)


def tls_over(given: Trusting, scheme: str) -> ssl.SSLContext | None:
    """The same for HTTP; None without TLS, where they say nothing: SettingError."""
    if scheme in ("https", "switchs"):
        return tls_of(given)
    for name in OF_TLS:
        if getattr(given, name):
            raise SettingError(f"--{name} says nothing over {scheme}://; leave it out")
    return None


def takes(kind: type[Any], placed: bool = True) -> Callable[..., Callable[..., None]]:
    """Replace the parameter of that kind, a NamedTuple, by its options.

    Not `placed`: the command itself says from where the URL is, if none was typed as an option.
    """

    def replace(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        whole = next(name for name, hint in hints.items() if hint is kind)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(command).parameters.items()
            if name != whole
        ]
        of_kind = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=kind._field_defaults[name],
                annotation=annotation,
            )
            for name, annotation in get_type_hints(kind, include_extras=True).items()
        ]  # fmt: skip

        def with_options(**values: Any) -> None:
            made = kind(*(values.pop(name) for name in kind._fields))
            command(**{whole: made.placed() if placed else made}, **values)

        signature = inspect.Signature(own + of_kind)
        with_options.__signature__ = signature  # type: ignore[attr-defined]
        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        return with_options

    return replace
