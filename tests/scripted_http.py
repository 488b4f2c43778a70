"""An HTTP server on 127.0.0.1 that says what a table of functions tells it to: for faults and for wire shapes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any] | tuple[int, Any, Mapping[str, str]]
"""Status, body (text goes as it is, anything else as JSON), and further headers."""
Routes = Mapping[str, Callable[[Any], Answer]]
"""`"GET /path"` -> function of the request's JSON (None for a GET)."""


@dataclass
class ScriptedServer:
    url: str
    asked: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    """What came, in order: method and path, JSON, headers in lower case."""


@contextmanager
def scripted_server(routes: Routes, *, keep_alive: bool = False) -> Iterator[ScriptedServer]:
    """Serve the routes; anything else is a 404, as vLLM says it. `routes` may be changed while it runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if keep_alive else "HTTP/1.0"

        def do_GET(self) -> None:
            self.reply("GET", None)

        def do_POST(self) -> None:
            self.reply("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, method: str, asked: Any) -> None:
            name = f"{method} {self.path}"
            told.asked.append((name, asked, {key.lower(): value for key, value in self.headers.items()}))
            status, answer, *headers = routes[name](asked) if name in routes else (404, {"detail": "Not Found"})
            text = answer if isinstance(answer, str) else json.dumps(answer)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if text.startswith("data:") else "application/json")
            self.send_header("Content-Length", str(len(body)))
            for header, value in headers[0].items() if headers else ():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # A client may leave an open connection.
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told = ScriptedServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
