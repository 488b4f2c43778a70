"""What the servers behind the proxy answer: the same in every run, so that a fault can be compared with none."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages

from tests.critics.server.right_answers import USAGE, right
from tests.pnlc.pnlc_agents import goals_for

CHAT = "/v1/chat/completions"
Talk = Callable[[Sequence[BaseMessage]], str]


def digit(messages: Sequence[BaseMessage]) -> str:
    """A digit that depends on the conversation."""
    return str(1 + zlib.crc32(json.dumps([message.text for message in messages]).encode()) % 8)


def digits(messages: Sequence[BaseMessage]) -> str:
    """A policy of `tests.population.worlds.SumWorld`."""
    return f"Thought: any\nAction: {digit(messages)}"


def judged(messages: Sequence[BaseMessage]) -> str:
    """A judge's number."""
    taken = re.findall(r"taken (\d+)", messages[-1].text)
    return f"It went on.\nScore: 0.{int(taken[-1]) % 10 if taken else 0}"


def imagined(messages: Sequence[BaseMessage]) -> str:
    """What a forward model imagines."""
    return f"Observation: There are {digit(messages)} doors.\nAction: look"


def named(messages: Sequence[BaseMessage]) -> str:
    """The goals that a proposer names."""
    return goals_for(messages[-1].text)


def upstream(talk: Talk = digits) -> Callable[[str, Any], Any]:
    """Answers of every server; `talk` is the chat model."""

    def answer(path: str, sent: Any) -> Any:
        if path == CHAT:
            return completion(talk(convert_to_messages(sent["messages"])), sent)
        if path == "/v1/embeddings":
            return {"data": [{"index": i, "embedding": embedded(text)} for i, text in enumerate(sent["input"])],
                    "usage": USAGE}  # fmt: skip
        if path == "/classify" and not isinstance(sent.get("input"), list):
            return {"data": [{"index": 0, "probs": [length_of(sent)]}], "usage": USAGE}
        if path == "/v1/completions" and "logprob_token_ids" in sent:
            return {"choices": [_verdict(i, row, sent) for i, row in enumerate(sent["prompt"])], "usage": USAGE}
        if path == "/step":
            return {"action": sent["action"]}
        return right(path, sent)

    return answer


def completion(text: str, sent: Any) -> dict[str, Any]:
    """A chat completion as OpenAI's API gives it."""
    choice: dict[str, Any] = {
        "index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text},
    }  # fmt: skip
    if sent.get("logprobs"):
        top = [{"token": "GOOD", "logprob": -0.5, "bytes": None}, {"token": "BAD", "logprob": -1.0, "bytes": None}]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}], "refusal": None}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
            "usage": USAGE | {"total_tokens": 4}}  # fmt: skip


def embedded(text: str) -> list[float]:
    """A vector of 8 numbers that depends on the words."""
    words = re.findall(r"\w+", text.lower())
    return [1.0 + sum(zlib.crc32(word.encode()) >> (4 * place) & 15 for word in words) / 16 for place in range(8)]


def length_of(sent: Any) -> float:
    """A probability that depends on a prompt."""
    return len(json.dumps(sent)) % 97 / 100


def _verdict(index: int, row: Sequence[int], sent: Any) -> dict[str, Any]:
    quality = len(row) % 7 / 7  # by the length alone, since prompts may hold a random mark
    top = {f"token_id:{token}": -1.5 + quality / (2 + place) for place, token in enumerate(sent["logprob_token_ids"])}
    return {"index": index, "logprobs": {"top_logprobs": [top]}}
