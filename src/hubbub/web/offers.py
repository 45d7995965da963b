"""Requests that offer another protocol than WebSocket, as `Upgrade: h2c`, are heard without that.

A server may ignore what a client offers (RFC 9110, 7.8); Java's default client and `curl --http2`
always do. To the parser such a request ends with its head: uvicorn would answer it as if it had no
body, and take the body for the next request. So its head is parsed again without the offer.

Made by `app`, for each connection of the web application. Never upgrades anything itself.
"""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_NO_CONNECT = "CONNECT is for proxies, and this is none"


class Offered(HttpToolsProtocol):
    """uvicorn's protocol, but for such requests."""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data:
            try:
                data = self._fed(data)
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def _fed(self, data: bytes) -> bytes:
        """Parse it; return what is left behind the head of a request that offered something."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self.parser.get_method() == b"CONNECT":
                self.send_400_response(_NO_CONNECT)
            else:
                return self._head_without_offer() + data[upgrade.args[0] :]
        return b""

    def _head_without_offer(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (
            self.parser.get_method(), self.url, self.parser.get_http_version().encode()
        )]  # fmt: skip
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"\r\n".join([*lines, b"", b""])

    def _is_heard_again(self) -> bool:
        return bool(self.parser.should_upgrade()) and not self._should_upgrade()

    # Called by the parser

    def on_headers_complete(self) -> None:
        if not self._is_heard_again():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_heard_again():
            super().on_message_complete()
