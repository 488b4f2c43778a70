"""vLLM's `/v1/models` and `/classify`: what is sent, and what the answers must hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_agents.errors import CriticError, CriticServerError
from amc_agents.types import FloatArray
from amc_agents.usage import Usage


class ServedModel(NamedTuple):
    """What `/v1/models` says of a model."""

    name: str
    root: str | None
    """What it was loaded from, on the server's machine."""
    limit: int | None
    """The most tokens that the server takes."""


def chosen_model(answer: Any, wanted: str | None, url: str) -> ServedModel:
    """The wanted model among those that the server offers; None: the only one.

    Raises:
        CriticServerError: it is not there, or there are several; the message lists them.
    """
    try:
        models = [ServedModel(one["id"], one.get("root"), one.get("max_model_len")) for one in answer["data"]]
    except (TypeError, KeyError, AttributeError) as error:
        raise CriticServerError(url, f"expected a list of models, got {_shown(answer)}") from error
    found = [one for one in models if wanted in (one.name, None)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(one.name for one in models)) or "nothing"
    if wanted is None:
        raise CriticServerError(url, f"expected one model, it serves {names}: say which, ?model=NAME")
    raise CriticServerError(url, f"no model {wanted!r} on this server, it serves {names}")


def ids_as_json(ids: Sequence[int]) -> bytes:
    """Token ids as a JSON list."""
    return json.dumps(ids, separators=(",", ":")).encode()


def classify_body(model: str, prompts: Sequence[bytes]) -> bytes:
    """A request for raw scores of some prompts, each a JSON list of token ids.

    Without `use_activation: false` the server would answer their sigmoid.
    """
    return b'{"model":%b,"use_activation":false,"input":[%b]}' % (json.dumps(model).encode(), b",".join(prompts))


def scores_of(answer: Any, n: int, where: str) -> FloatArray:
    """`[n]` the scores in an answer, by their `index`; NaN is left for others to judge.

    Raises:
        CriticError: it is not one number for each prompt.
    """
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or len(data) != n:
        raise CriticError(f"{where}: expected {n} scores in `data`, got {_shown(answer)}")
    found: dict[int, float] = {}
    for row in data:
        match row:
            case {"index": int(index), "probs": [int() | float() as score]} if 0 <= index < n:
                found[index] = float(score)
            case {"probs": [_, _, *_] as labels}:
                raise CriticError(
                    f"{where}: the model answers {len(labels)} labels for a prompt: a value model has num_labels=1"
                )
            case _:
                raise CriticError(
                    f"{where}: expected `index` (0 to {n - 1}) and one number in `probs`, got {_shown(row)}"
                )
    if len(found) != n:
        raise CriticError(f"{where}: expected each `index` from 0 to {n - 1} once, got {sorted(found)}")
    return np.array([found[index] for index in range(n)])


def usage_of(answer: Any) -> Usage:
    """One request, and the tokens that the server counted."""
    reported = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(reported, dict) or not isinstance(reported.get("prompt_tokens"), int):
        return Usage(calls=1, missing=1)
    details = reported.get("prompt_tokens_details") or {}
    return Usage(calls=1, input_tokens=reported["prompt_tokens"], cached_tokens=details.get("cached_tokens") or 0)


def _shown(answer: Any) -> str:
    text = repr(answer)
    return text if len(text) <= 200 else f"{text[:200]}..."
