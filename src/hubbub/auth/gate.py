"""The gate of each listener: who is it, may it come in, and with which rights.

    what a client showed                    what decides
    a TLS certificate, if the listener      the authority that signed it (the listener has
      goes by certificates                    checked that); its name is the user
    a token (JWT) as its secret             the keys of who signs them, and the token's time
    user and password                       the password file, in a thread
    nothing                                 allow_anonymous

The hub makes one `Gates`, which makes the gates and reads each file once for all of them.
Checking a password is slow on purpose; it happens in threads, of which there are few, and the
client's connection waits meanwhile (`logins`). What was right before is found right at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hubbub.auth.acl import Acl, Subject
from hubbub.auth.dynamic import Dynamic
from hubbub.auth.guesses import Guesses
from hubbub.auth.keys import Keys
from hubbub.auth.logins import Logins
from hubbub.auth.passwords import Account, Passwords
from hubbub.auth.scram import METHOD, Scram
from hubbub.config.identity import Jwt
from hubbub.config.settings import Listener
from hubbub.core.gate import Credentials, Exchange, Gate
from hubbub.core.rights import (
    BAD_CLIENT,
    BAD_CREDENTIALS,
    CERTIFICATE_REQUIRED,
    NO_CREDENTIALS,
    TOO_BUSY,
    Rights,
    worded,
)
from hubbub.errors import SettingError
from hubbub.wire.http import is_jwt
from hubbub.wire.source import source_of

if TYPE_CHECKING:
    from hubbub.auth.tokens import Token, Tokens

DISABLED: Final = "that user is disabled in dynamic security"
_BELIEVED: Final = "a user name is what a client says it is"

log = logging.getLogger("hubbub.auth")

Done = Callable[[Rights | None, str], None]


class Basis(NamedTuple):
    """What lets a client in, as the files say it: if they say otherwise, it may not stay.

    `account`: its user's, None if there is none or it came in without a password; `subject`: whose
    permissions it has; `token`: what it showed instead, None if it is not good any more. `key`:
    that of the identity its TLS began with.
    """

    by_password: bool
    account: Account | None
    subject: Subject | None
    token: Token | None = None
    key: bytes | None = None


# Of all whom no file says anything of: the same one, not one for each connection.
_NO_FILE: Final = (Basis(False, None, None), Basis(True, None, None))


class Gates:
    """The gates of one hub, and the files behind them. Used on the loop; closed with the hub."""

    def __init__(self, everything: Rights, dynamic: str = "") -> None:
        """`dynamic` names the file of who is managed while the hub runs."""
        self.everything = everything
        self._passwords: dict[str, Passwords] = {}
        self._acls: dict[str, Acl] = {}
        self._tokens: dict[Jwt, Tokens] = {}
        self._keys: dict[str, Keys] = {}
        self._by_tokens_alone = Acl(None)
        self.dynamic = Dynamic(Path(dynamic)) if dynamic else None
        self.logins = Logins(Guesses(time.monotonic))

    def gate(self, listener: Listener) -> Gate:
        """The gate of a listener, whose settings are filled in; SettingError names a bad file."""
        passwords: Passwords | None = None
        acl: Acl | Dynamic | None = None
        keys = self._shared(listener)
        if self.dynamic is not None:
            passwords, acl = self.dynamic.passwords, self.dynamic
            return Guard(self, listener, passwords, acl, self._taken(listener), keys)
        tokens = self._taken(listener)
        if tokens is not None and listener.jwt.acl_claim:
            acl = self._by_tokens_alone
        if listener.password_file:
            passwords = self._passwords.get(listener.password_file)
            if passwords is None:
                passwords = Passwords(Path(listener.password_file))
                self._passwords[listener.password_file] = passwords
        if listener.acl_file:
            if not (listener.checks or listener.tls.names):
                log.warning("%s: acl_file without password_file: %s", listener.address, _BELIEVED)
            acl = self._acls.get(listener.acl_file)
            if acl is None:
                acl = self._acls[listener.acl_file] = Acl(Path(listener.acl_file))
        return Guard(self, listener, passwords, acl, tokens, keys)

    def _shared(self, listener: Listener) -> Keys | None:
        """The keys that clients share with it, if any do."""
        file = listener.tls.psk_file
        if file and file not in self._keys:
            self._keys[file] = Keys(Path(file))
        return self._keys.get(file)

    def _taken(self, listener: Listener) -> Tokens | None:
        """The keys of the tokens that are taken there, if any are."""
        if not listener.jwt.keys:
            return None
        tokens = self._tokens.get(listener.jwt)
        if tokens is None:
            tokens = self._tokens[listener.jwt] = _tokens(listener.jwt)
        return tokens

    def files(self) -> list[Passwords | Acl | Tokens | Keys | Dynamic]:
        """The files behind the gates, each to be `read` again by itself."""
        found: list[Passwords | Acl | Tokens | Keys | Dynamic] = [*self._passwords.values()]
        found += [*self._acls.values(), *self._tokens.values(), *self._keys.values()]
        return [*found, self.dynamic] if self.dynamic is not None else found

    def close(self) -> None:
        self.logins.close()


class Guard(Gate):
    """The gate of one listener."""

    def __init__(
        self, gates: Gates, listener: Listener, passwords: Passwords | None,
        acl: Acl | Dynamic | None, tokens: Tokens | None = None, keys: Keys | None = None,
    ) -> None:  # fmt: skip
        super().__init__(gates.everything, listener.address)
        by_tls = listener.tls.identity != "none"
        self.checks = passwords is not None or tokens is not None or by_tls
        self.anonymous = listener.allow_anonymous or by_tls
        self._gates = gates
        self._listener = listener
        self._passwords = passwords
        self._acl = acl
        self._tokens = tokens
        self._keys = keys

    def authenticate(self, credentials: Credentials, done: Done) -> None:
        def decide(reason: str) -> None:
            reason = reason or self._wrong_client(credentials)
            if not reason and not self.still_in(credentials):  # the files changed meanwhile
                reason = BAD_CREDENTIALS
            if reason and self._is_disabled(credentials.user):
                credentials.aside = DISABLED
            done(None if reason else self._rights(credentials), reason)

        user, secret, passwords = credentials.user, credentials.secret, self._passwords
        complaint = self._complaint(credentials)
        by_certificate = self._by_certificate(credentials)
        if by_certificate:
            credentials.user = credentials.certificate or _shared(credentials)
        by_token = not by_certificate and self._tokens is not None and is_jwt(secret)
        credentials.proved = by_certificate or by_token or passwords is not None
        credentials.basis = self._basis(credentials, not (by_certificate or by_token))
        if complaint:
            decide(complaint)
        elif by_certificate:
            decide("")
        elif by_token:
            decide(self._by_token(credentials))
        elif not user and not secret:
            decide("" if self._listener.allow_anonymous else NO_CREDENTIALS)
        elif passwords is None:
            # Nothing to check against: a user name is what the client says it is.
            unchecked = self._listener.allow_anonymous and self._tokens is None
            decide("" if unchecked else BAD_CREDENTIALS)
        elif passwords.known(user, secret):
            decide("")
        else:
            self._gates.logins.verify(passwords, credentials, decide)

    def _by_token(self, credentials: Credentials) -> str:
        """Let in whom its token names: "", or why not.

        Looked at however many forged ones came from there: it is little work, and a signature
        cannot be guessed.
        """
        from hubbub.auth.tokens import BadToken

        assert self._tokens is not None
        try:
            token = self._tokens.check(credentials.secret)
        except BadToken as error:
            busy = error.forged and self._forged(credentials)
            return TOO_BUSY if busy else worded(BAD_CREDENTIALS, str(error))
        if credentials.user not in ("", token.user):
            return worded(BAD_CREDENTIALS, f"the token is for another user, {token.user!r}")
        credentials.user = token.user
        credentials.expires = token.expires
        credentials.basis = self._basis(credentials, False, token)
        return ""

    def _forged(self, credentials: Credentials) -> bool:
        """Count it as a guess; return whether there were too many before."""
        guesses, address = self._gates.logins.guesses, source_of(credentials.address)
        busy = guesses.blocked(address, credentials.user)
        guesses.wrong(address, credentials.user)
        return busy

    def _complaint(self, credentials: Credentials) -> str:
        """What is wrong whatever the password, "" if nothing is."""
        rules = self._listener
        if rules.tls.require_certificate and not credentials.certificate:
            return CERTIFICATE_REQUIRED
        if rules.client_prefixes and not credentials.client.startswith(rules.client_prefixes):
            return BAD_CLIENT
        if rules.require_client_id and not credentials.client:
            return BAD_CLIENT
        return ""

    def _wrong_client(self, credentials: Credentials) -> str:
        """Said to who has proved its user only: an account may be for one client id."""
        basis = credentials.basis
        account = basis.account if isinstance(basis, Basis) else None
        wrong = account is not None and account.client not in ("", credentials.client)
        return BAD_CLIENT if wrong else ""

    def _is_disabled(self, user: str) -> bool:
        return self._passwords is not None and self._passwords.is_disabled(user)

    def _by_certificate(self, credentials: Credentials) -> bool:
        named = credentials.certificate or _shared(credentials)
        return self._listener.tls.identity != "none" and bool(named)

    def _rights(self, credentials: Credentials) -> Rights:
        if self._acl is None:
            return self.rights
        basis = credentials.basis
        assert isinstance(basis, Basis)
        return self._acl.rights(credentials.user, credentials.client, _lines(basis.token))

    def rights_of(self, user: str, client: str) -> Rights | None:
        passwords, by_certificate = self._passwords, self._listener.tls.identity != "none"
        known = passwords is not None and user in passwords.users
        nobody_checks = passwords is None and self._tokens is None
        unchecked = self._listener.allow_anonymous and (nobody_checks or not user)
        # What a token said of it nobody knows any more; what the file says of it holds.
        by_token = self._tokens is not None and not self._listener.jwt.acl_claim
        if not (known or unchecked or ((by_certificate or by_token) and user)):
            return None
        if self._is_disabled(user):
            return None
        return self.permissions(user, client)

    def permissions(self, user: str, client: str) -> Rights:
        return self.rights if self._acl is None else self._acl.rights(user, client)

    def lines_of(self, credentials: Credentials) -> tuple[str, ...] | None:
        basis = credentials.basis
        return _lines(basis.token) if isinstance(basis, Basis) else None

    def rights_by(self, user: str, client: str, lines: tuple[str, ...]) -> Rights | None:
        if self._tokens is None or self._acl is None or self._is_disabled(user):
            return None
        return self._acl.rights(user, client, lines)

    def vouched(self, shown: Credentials, lines: tuple[str, ...] | None) -> Rights | None:
        rights = super().vouched(shown, lines)
        if rights is not None:
            shown.basis = self._basis(shown, not shown.expires and lines is None)
            if self._tokens is not None and (shown.expires or lines is not None):
                from hubbub.auth.tokens import Token

                token = Token(shown.user, shown.expires, lines, None)
                shown.basis = self._basis(shown, False, token)
        return rights

    def exchange(self, method: str, credentials: Credentials) -> Exchange | None:
        if method != METHOD or self._passwords is None:
            return None

        def claimed(user: str) -> None:
            credentials.user = user
            credentials.aside = DISABLED if self._is_disabled(user) else ""

        def admit(user: str) -> tuple[Rights | None, str]:
            complaint = self._complaint(credentials)
            credentials.proved = True
            credentials.basis = self._basis(credentials, True)
            complaint = complaint or self._wrong_client(credentials)
            return (None, complaint) if complaint else (self._rights(credentials), "")

        guesses, address = self._gates.logins.guesses, source_of(credentials.address)
        return Scram(self._passwords, admit, guesses, address, claimed)

    def _basis(
        self, credentials: Credentials, by_password: bool, token: Token | None = None
    ) -> Basis:
        """What the files say of it now; `credentials.user` is who it is."""
        user, passwords, acl = credentials.user, self._passwords, self._acl
        if passwords is None and acl is None and self._keys is None and token is None:
            return _NO_FILE[by_password]
        return Basis(
            by_password,
            passwords.users.get(user) if by_password and passwords is not None else None,
            acl.subject(user, credentials.client, _lines(token)) if acl is not None else None,
            token,
            self._keys.by_identity.get(_shared(credentials)) if self._keys is not None else None,
        )

    def still_in(self, credentials: Credentials) -> bool:
        """False if its password was changed or taken away, or it is to have other rights.

        Or its token's time is over, the key that signed it was taken away, or it is disabled.
        """
        before = credentials.basis
        assert isinstance(before, Basis)
        token, tokens = before.token, self._tokens
        if token is not None and (tokens is None or not tokens.still(token)):
            return False
        if self._is_disabled(credentials.user):
            return False
        return self._basis(credentials, before.by_password, token) == before


def _shared(credentials: Credentials) -> str:
    """The identity of the key that its TLS began with, "" if none did."""
    return credentials.opening.shared if credentials.opening is not None else ""


def _lines(token: Token | None) -> tuple[str, ...] | None:
    """What a token says that its user may, None if the file says it."""
    return token.lines if token is not None else None


def _tokens(settings: Jwt) -> Tokens:
    """SettingError if the file cannot be used, or there is nothing here to check tokens with."""
    try:
        from hubbub.auth.tokens import Tokens
    except ImportError as error:
        raise SettingError(
            f"jwt.keys: {error}: tokens need more than is installed here: run "
            "`pip install '.[jwt]'` where Hubbub's source is"
        ) from None
    return Tokens(settings)
