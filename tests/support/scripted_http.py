"""A provider in the test's own process: it notes every request, waits as long as it is told to, and answers what it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class Asked:
    """One request."""

    number: int
    path: str
    key: str
    body: bytes


class ScriptedProvider:
    """Answers ``{}`` with 200 until ``answer`` is replaced; holds its answers back between ``hold`` and ``let_go``."""

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self.answer: Callable[[Asked], tuple[int, bytes]] = lambda _asked: (200, b"{}")
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                status, body = provider._note(self)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except ConnectionError:  # the caller was killed
                    self.close_connection = True

            def log_message(self, *_arguments: object) -> None:
                """Says nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_arguments: object) -> None:
                """A caller that is killed is no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = "http://{}:{}".format(*self._server.server_address[:2])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._open.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def hold(self) -> None:
        """Requests are taken and not answered from now on."""
        self._open.clear()

    def let_go(self) -> None:
        """Answer those that wait, and the next ones at once."""
        self._open.set()

    def _note(self, handler: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self._lock:
            asked = Asked(len(self.requests), handler.path, handler.headers.get("Idempotency-Key", ""), body)
            self.requests.append(asked)
        answer = self.answer
        self._open.wait(ANSWER_SECONDS)
        return answer(asked)
