"""What vLLM answers to each kind of request, in the smallest form that the clients read."""

from __future__ import annotations

from typing import Any

from tests.critics.value.fake_vllm import score

USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}


def right(path: str, sent: Any) -> Any:
    """vLLM's answer to a request."""
    if path == "/v1/models":
        return {"object": "list", "data": [{"id": "m", "root": None, "max_model_len": 4096}]}
    if path == "/classify":
        rows = [{"index": i, "probs": [score(row)]} for i, row in enumerate(sent["input"])]
        return {"object": "list", "data": rows, "usage": USAGE}
    if path == "/v1/embeddings":
        rows = [{"index": i, "embedding": [float(i), 1.0]} for i, _ in enumerate(sent["input"])]
        return {"data": rows, "usage": USAGE}
    if path == "/tokenize":
        text = sent.get("prompt", "pqrstx" if not sent.get("add_generation_prompt", True) else "pqrst")
        tokens = [*map(ord, text), *([0] if "prompt" not in sent and text.endswith("x") else [])]
        return {"tokens": tokens, "count": len(tokens)}
    if "logprob_token_ids" in sent:
        top = [{f"token_id:{token}": -1.5 for token in sent["logprob_token_ids"]}]
        choices = [{"index": i, "logprobs": {"top_logprobs": top}} for i, _ in enumerate(sent["prompt"])]
        return {"choices": choices, "usage": USAGE}
    choices = [
        {"index": i, "prompt_logprobs": [None, *({str(token): {"logprob": -1.0, "rank": 1}} for token in row[1:])]}
        for i, row in enumerate(sent["prompt"])
    ]
    return {"choices": choices, "usage": USAGE}
