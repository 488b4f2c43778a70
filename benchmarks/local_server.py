"""A small OpenAI-compatible server on this machine that answers after a latency: for `overhead.py`.

    python benchmarks/local_server.py PORT_FILE

The request's own field `latency` (seconds) says how long to wait; 0.1 where it is absent.
"""

import asyncio
import json
import sys
from pathlib import Path

REPLY = {
    "id": "reply",
    "object": "chat.completion",
    "created": 0,
    "model": "local",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Thought: go on\nAction: 1"}}
    ],
    "usage": {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28},
}
BODY = json.dumps(REPLY).encode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            request = json.loads(await reader.readexactly(length))
            await asyncio.sleep(request.get("latency", 0.1))
            writer.write(HEAD + BODY)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionResetError):
        writer.close()


async def main(port_file: Path) -> None:
    server = await asyncio.start_server(serve_connection, "127.0.0.1", 0)
    port_file.write_text(str(server.sockets[0].getsockname()[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
