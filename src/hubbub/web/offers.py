"""Requests that offer another protocol than WebSocket, as `Upgrade: h2c`, are heard without that.

A server may ignore what a client offers (RFC 9110, 7.8); Java's default client and `curl --http2`
always do. To the parser such a request ends with its head: uvicorn would answer it as if it had no
body, and take the body for the next request. So its head is parsed again without the offer, as
`wire.http` does for message-switch. Nor does uvicorn answer a peer that only stopped sending.

Made by `app`, for each connection of the web application. Never upgrades anything itself.
"""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hubbub.errors import ProtocolError
from hubbub.wire.http import without_offer


class Offered(HttpToolsProtocol):
    """uvicorn's protocol, but for such requests, and for the end of what a peer says."""

    def eof_received(self) -> bool:  # type: ignore[override]
        """Who changes something and says no more is told what became of it, and then closed. A
        page that is read is left: its tail would go on for nobody.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        if cycle.scope["method"] in ("GET", "HEAD"):
            return False
        cycle.keep_alive = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()  # requests that waited have this, and it has them: 100 in a cycle

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        try:
            while rest:
                rest = self._step(rest)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except ProtocolError as error:
            self.send_400_response(error.reason)

    def _step(self, data: memoryview) -> memoryview:
        """Parse up to the end, or to that of a head which offers something."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._should_upgrade():
                self._hear_again()
                return data[upgrade.args[0] :]
            self.handle_websocket_upgrade()
        return data[:0]

    def _hear_again(self) -> None:
        method, version = self.parser.get_method().decode(), self.parser.get_http_version()
        headers = ((key.decode("latin-1"), text.decode("latin-1")) for key, text in self.headers)
        head = without_offer(method, self.url.decode("latin-1"), version, headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(head)

    def _is_heard_again(self) -> bool:
        return bool(self.parser.should_upgrade()) and not self._should_upgrade()

    # Called by the parser

    def on_headers_complete(self) -> None:
        if not self._is_heard_again():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_heard_again():
            super().on_message_complete()
