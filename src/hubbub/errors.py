"""The errors a user of Hubbub can meet. Everybody raises them; this module imports nothing.

Each carries a text that says what was expected, what came, and what to do next.
"""

from __future__ import annotations


def without_user(url: str) -> str:
    """The URL, whatever is wrong with it, as a text may show it: without user and password."""
    scheme, found, rest = url.partition("://")
    head = scheme + found if found and not {":", "@"} & {*scheme} else ""
    return head + (rest if head else url).rpartition("@")[2]


class HubbubError(Exception):
    """The base of all errors that Hubbub raises on purpose."""


class SettingError(HubbubError):
    """A setting, option or address that cannot be used. The command line exits with 2."""


class DirectoryError(HubbubError):
    """The data directory is not writable, is held by another hub, or is of another format."""


class JournalError(HubbubError):
    """The journal cannot be read or written as it should: damage, a failed sync, a full disk."""


class UnreadableError(HubbubError):
    """The machine cannot read the journal now: a block, no descriptors, no memory. Nothing was
    changed; the same may work again. The command line exits with 3.
    """


class OffsetError(JournalError):
    """Rows that were asked for are gone (retention) or never were in this journal."""


class ProtocolError(HubbubError):
    """Bytes from a peer that its protocol does not allow. Closes that one connection.

    `reply` is what the protocol sends before closing (b"" = nothing).
    """

    def __init__(self, reason: str, reply: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.reply = reply


class Refused(HubbubError):
    """A hub said no to a client of ours: credentials, permission, limit, or it is shutting down."""


class CallFailed(Refused):
    """A call was answered with an error: the service failed, or no service can take the request.

    A handler that raises it says its text to the caller; of any other error the caller hears the
    name of its class.
    """


class CallTimeout(HubbubError):
    """A call was not answered in time. The request may still be answered later."""
