"""Log-likelihoods of texts by a vLLM server, read from its `prompt_logprobs`.

The server applies its own chat template (`/tokenize`); the token ids of the dialogue and of each text go to
`/v1/completions`. The server reports log-probabilities l at temperature 1. At another temperature T

    log p_T(x) = l_x / T - log sum_v exp(l_v / T)

needs the whole vocabulary. The sum over the `top` likeliest tokens is known. For T < 1 the rest is bounded: the other
tokens share the missing mass m and have at most probability p_k each, so they add between 0 and m p_k^(1/T - 1). A text
whose bounds are further apart than the tolerance is refused; so is T > 1, unless the server reports all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from amc_agents.budget import Bound
from amc_agents.concurrency.gather import Once
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.server.served import LEAST_LOGPROB, OVERWRITTEN, chosen_model, rows_of
from amc_agents.errors import ConfigurationError, CriticError, CriticServerError
from amc_agents.lac.text_scoring import Messages, Text, Written, check_temperature, written
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray
from amc_agents.usage import Usage, record


class CompletionsScorer:
    """Scores texts by a model on a vLLM server, all texts of a call in one request (more above `max_batch`).

    Each text is computed with its whole dialogue: vLLM does not use its prefix cache for `prompt_logprobs`.

    Args:
        server: the server.
        model: name of the model; None: the only model of the server.
        top: number of tokens whose log-probabilities are requested at temperatures other than 1: at most the server's
            `--max-logprobs` (20 by default), or -1 for all tokens if the server runs with `--max-logprobs -1`.
        tolerance: maximum distance between the bounds of a text's log-likelihood.
        end_token: id of the token that ends an answer; None: derived from the chat template.
        template: further fields for the template, equal to those of the policy's requests: `tools`,
            `chat_template_kwargs`.
        max_batch: maximum number of texts in a request.
    """

    def __init__(
        self,
        server: ModelServer,
        *,
        model: str | None = None,
        top: int = 20,
        tolerance: float = 0.01,
        end_token: int | None = None,
        template: Mapping[str, Any] | None = None,
        max_batch: int = 256,
    ) -> None:
        if top != -1 and top < 1:
            raise ConfigurationError(f"top must be a number of tokens, or -1 for all, got {top}")
        self.usage = Usage()
        self._server, self._wanted, self._top, self._tolerance = server, model, top, tolerance
        self._end, self._template, self._max_batch = end_token, dict(template or {}), max_batch
        self._model = Once(self._find_model)
        self._known: dict[str, tuple[int, ...]] = {}

    @property
    def charged_as(self) -> str | None:
        """Name of the model under which a budget is charged; None: the server was not asked for it yet."""
        return self._model.known or self._wanted

    async def log_likelihoods(self, messages: Messages, texts: Sequence[Text], temperature: float) -> FloatArray:
        """Return `[N]` log-probabilities of the scored parts after the dialogue, end token included.

        Raises:
            ConfigurationError: the temperature is not above 0.
            CriticError: the answer does not determine the likelihoods at this temperature.
            CriticServerError: the server failed or its answer cannot be read.
        """
        check_temperature(temperature)
        if temperature > 1 and self._top != -1:
            raise CriticError(
                f"at temperature {temperature:g} the probability of a text depends on all tokens, and the {self._top} "
                "likeliest do not bound it: sample at temperature 1 or below, or start the server with "
                "--max-logprobs -1 and give top=-1"
            )
        if not texts:
            return np.zeros(0)
        model = await self._model.get()
        prompt, end = await self._dialogue(model, messages)
        ids = await self._ids(model, {part for text in texts for part in (text.given, text.given + text.scored)})
        rows = written(texts, ids, end)
        batches = [rows[at : at + self._max_batch] for at in range(0, len(rows), self._max_batch)]
        top = 0 if temperature == 1 else self._top
        bodies = [_request(model, prompt, batch, top) for batch in batches]
        bounds = [Bound(model, sum(len(prompt) + len(row.ids) for row in batch), len(batch)) for batch in batches]

        def count(_: int, used: Usage) -> None:
            self.usage += used
            record("policy", used, model=model)

        answers = await self._server.post(_PATH, bodies, bounds, count=count)
        scores: list[float] = []
        for batch, answer in zip(batches, answers, strict=True):
            for row, places in zip(batch, self._places(answer, len(batch)), strict=True):
                scores.append(self._score(row, len(prompt), places, temperature))
        return np.array(scores)

    def _score(self, row: Written, prompt_length: int, places: Sequence[Any], temperature: float) -> float:
        expected = prompt_length + len(row.ids)
        if len(places) != expected:
            raise self._unexpected(f"expected {expected} prompt_logprobs, got {len(places)}")
        return self._sum(zip(row.ids[row.start :], places[prompt_length + row.start :], strict=True), temperature)

    def _sum(self, places: Iterable[tuple[int, Any]], temperature: float) -> float:
        """Sum the log-likelihoods of some tokens; the middle of the bounds if there are any."""
        most = least = 0.0
        for token, place in places:
            try:
                logprob = _logprob(place[str(token)])
                if temperature == 1:
                    most, least = most + logprob, least + logprob
                    continue
                ranked = [(int(entry["rank"]), _logprob(entry)) for entry in place.values()]
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                raise self._unexpected(
                    f"no log-probability of token {token} in {quoted(place, 200)}: {error}"
                ) from error
            total, rest = self._partition(ranked, temperature)
            most += logprob / temperature - math.log(total)
            least += logprob / temperature - math.log(total + rest)
        if most - least > self._tolerance:
            raise CriticError(
                f"at temperature {temperature:g} a text's log-likelihood is only known to lie between {least:.4f} and "
                f"{most:.4f} by the {self._top} likeliest tokens, and the tolerance is {self._tolerance:g}: sample at "
                "temperature 1, where it is exact, or give a larger top= (the server's --max-logprobs) or tolerance="
            )
        return (most + least) / 2

    def _partition(self, ranked: Sequence[tuple[int, float]], temperature: float) -> tuple[float, float]:
        """Return the known part of the sum over the vocabulary, and an upper bound of the rest."""
        known = np.array([logprob for _, logprob in ranked])
        total = float(np.exp(known / temperature).sum())
        if self._top == -1:
            return total, 0.0
        missing = max(0.0, 1.0 - float(np.exp(known).sum()))
        last = min(logprob for rank, logprob in ranked if rank <= self._top)
        return total, missing * math.exp(last * (1 / temperature - 1))

    async def _dialogue(self, model: str, messages: Messages) -> tuple[tuple[int, ...], int]:
        """Return the token ids up to the assistant's turn, and the token that ends that turn."""
        requests: list[dict[str, Any]] = [{"messages": list(messages), "add_generation_prompt": True}]
        if self._end is None:
            answered = [*messages, {"role": "assistant", "content": _PROBE}]
            requests += [{"messages": answered, "add_generation_prompt": False}, _plain(_PROBE)]
        prompt, *probes = await self._tokenized(model, requests)
        if self._end is None:
            whole, probe = probes
            before = len(prompt) + len(probe)
            if whole[:before] != prompt + probe or len(whole) == before:
                raise CriticError(
                    f"{self._server.base_url}: the chat template writes an answer differently from the model, so the "
                    "token that ends an answer cannot be derived: pass it as end_token="
                )
            self._end = whole[before]
        return prompt, self._end

    async def _ids(self, model: str, texts: Iterable[str]) -> Mapping[str, tuple[int, ...]]:
        known = self._known
        new = [text for text in texts if text not in known]
        tokens = await self._tokenized(model, [_plain(text) for text in new])
        if len(known) > _REMEMBERED:
            known = self._known = {text: known[text] for text in texts if text in known}
        known.update(zip(new, tokens, strict=True))
        return known

    async def _tokenized(self, model: str, requests: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
        bodies = [
            {"model": model, **request, **(self._template if "messages" in request else {})} for request in requests
        ]
        answers = await self._server.post("/tokenize", bodies)
        try:
            return [tuple(map(int, answer["tokens"])) for answer in answers]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._unexpected(f"/tokenize: expected tokens, got {quoted(answers, 200)}") from error

    async def _find_model(self) -> str:
        answer = await self._server.get("/v1/models")
        return chosen_model(answer, self._wanted, f"{self._server.base_url}/v1/models").name

    def _places(self, answer: Any, n: int) -> list[list[Any]]:
        try:
            return [list(choice["prompt_logprobs"]) for choice in rows_of(answer, "choices", n)]
        except ValueError as error:
            raise self._unexpected(f"{error}. Is it a vLLM server?") from error
        except (KeyError, TypeError) as error:
            raise self._unexpected(
                f"expected prompt_logprobs, got {quoted(answer, 200)}. Is it a vLLM server?"
            ) from error

    def _unexpected(self, reason: str) -> CriticServerError:
        return CriticServerError(f"{self._server.base_url}{_PATH}", reason)


def _request(model: str, prompt: Sequence[int], batch: Sequence[Written], top: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": [[*prompt, *row.ids] for row in batch],
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": top,
    }


def _plain(text: str) -> dict[str, Any]:
    return {"prompt": text, "add_special_tokens": False}


def _logprob(entry: Any) -> float:
    """Read a reported log-probability. Raises `ValueError` if it is not a log-probability."""
    logprob = float(entry["logprob"])
    if not math.isfinite(logprob):
        raise ValueError(f"{logprob} is not a log-probability")
    if logprob < LEAST_LOGPROB:
        raise ValueError(f"{logprob:g} is not a log-probability. {OVERWRITTEN}")
    return logprob


_PATH = "/v1/completions"
_PROBE = "x"
_REMEMBERED = 50_000
"""Maximum number of texts whose token ids are kept."""
