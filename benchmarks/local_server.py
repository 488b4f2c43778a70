"""A small OpenAI-compatible server with an artificial latency, for the other benchmarks.

    python benchmarks/local_server.py PORT_FILE

Fields of the request control the answer: `latency` (seconds, default 0.1), `replies` (texts of the choices, in turn),
`marked` (maps a mark in the last message to the answer), `count_words` (usage counts words as tokens), and `logprobs`
(the answer is GOOD, with BAD almost as likely). With `stream`, the words of the answer are spread over the latency. A
request with `input` is answered by embeddings.
"""

import asyncio
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
TURN = itertools.count()
VERDICT = {
    "content": [
        {
            "token": "GOOD", "logprob": -0.5, "bytes": None,
            "top_logprobs": [
                {"token": word, "logprob": logprob, "bytes": None} for word, logprob in (("GOOD", -0.5), ("BAD", -1.0))
            ],
        }
    ]
}  # fmt: skip


DIMENSIONS = 384


def embeddings(texts: list[str]) -> bytes:
    """Embed texts deterministically."""
    rows = [[random.Random(f"{text}{i}").gauss(0, 1) for i in range(8)] * (DIMENSIONS // 8) for text in texts]
    data = [{"index": i, "embedding": row} for i, row in enumerate(rows)]
    return json.dumps({"data": data, "usage": {"prompt_tokens": sum(len(text.split()) for text in texts)}}).encode()


def texts_for(request: dict[str, Any]) -> list[str]:
    last = str(request["messages"][-1]["content"])
    marked = [text for mark, text in request.get("marked", {}).items() if mark in last]
    return marked[:1] or request.get("replies", ["Thought: go on\nAction: 1"])


def answer(request: dict[str, Any]) -> bytes:
    if "input" in request:
        return embeddings(request["input"])
    texts = texts_for(request)
    verdict = request.get("logprobs")
    n = request.get("n") or 1
    choices: list[dict[str, Any]] = [
        {
            "index": i,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "GOOD" if verdict else texts[next(TURN) % len(texts)]},
            **({"logprobs": VERDICT} if verdict else {}),
        }
        for i in range(n)
    ]
    prompt_tokens, completion_tokens = 20, 8 * n
    if request.get("count_words"):
        prompt_tokens = sum(len(str(message["content"]).split()) for message in request["messages"])
        completion_tokens = sum(len(choice["message"]["content"].split()) for choice in choices)
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    reply = {"id": "reply", "object": "chat.completion", "created": 0, "model": "local", "choices": choices}
    return json.dumps({**reply, "usage": usage}).encode()


async def stream_words(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    words = texts_for(request)[0].split(" ")
    writer.write(STREAM_HEAD)
    for number, word in enumerate(words):
        await asyncio.sleep(request.get("latency", 0.1) / len(words))
        delta = {"role": "assistant", "content": word if number == 0 else f" {word}"}
        await send_event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, writer)
    await send_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, writer)
    writer.write(b"data: [DONE]\n\n")
    await writer.drain()
    writer.close()


async def send_event(event: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    event = {"id": "reply", "object": "chat.completion.chunk", "created": 0, "model": "local", **event}
    writer.write(f"data: {json.dumps(event)}\n\n".encode())
    await writer.drain()


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            request = json.loads(await reader.readexactly(length))
            if request.get("stream"):
                return await stream_words(request, writer)
            await asyncio.sleep(request.get("latency", 0.1))
            body = answer(request)
            writer.write(HEAD % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionResetError):
        writer.close()


async def main(port_file: Path) -> None:
    server = await asyncio.start_server(serve_connection, "127.0.0.1", 0)
    port_file.write_text(str(server.sockets[0].getsockname()[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
