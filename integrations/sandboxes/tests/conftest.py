"""A local HTTP server in the place of a vendor's, which records the requests of its SDK."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Vendor:
    """Answers by "METHOD /path" without the query: (status, content) or (status, content, type), or a function of the
    body that returns it."""

    def __init__(self):
        self.answers = {}
        self.requests = []
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.body()
                path, _, query = self.path.partition("?")
                try:
                    body = json.loads(body) if body else None
                except ValueError:
                    pass
                vendor.requests.append(
                    (
                        f"{self.command} {path}",
                        query,
                        body,
                        {name.lower(): value for name, value in self.headers.items()},
                    )
                )
                answer = vendor.answers.get(f"{self.command} {path}", (404, {"code": 404, "message": "unknown"}))
                status, content, *kind = answer(body) if callable(answer) else answer
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", *kind or ["application/json"])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def body(self):
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                chunks = []
                while size := int(self.rfile.readline(), 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(chunks)

            do_GET = do_POST = do_DELETE = do_PUT = answer

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def seen(self, *, without=()):
        return [request[0] for request in self.requests if request[0] not in without]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def vendor():
    vendor = Vendor()
    yield vendor
    vendor.close()
