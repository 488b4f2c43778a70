"""Checks of a configuration's parts: how exceptions become failed checks, and the abilities of a model server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.server.served import LEAST_LOGPROB, OVERWRITTEN, served_models
from amc_agents.errors import AmcError, CriticServerError
from amc_agents.quoting import excerpt, listed, masked, printable, quoted

State = Literal["ok", "failed", "skipped"]

PATIENCE = 180.0
"""Time limit of a check in seconds; a critic's check includes its retries."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check."""

    name: str
    """The subject of the check."""
    state: State
    """"skipped": it could not be checked, or the configuration does not need it."""
    detail: str
    """The finding."""
    advice: str = ""
    """The recommended action; empty if none is needed."""

    def __post_init__(self) -> None:
        """Hide API keys and escape control characters, since names and answers come from servers."""
        for field in ("name", "detail", "advice"):
            object.__setattr__(self, field, printable(masked(getattr(self, field))))


async def guarded(name: str, check: Callable[[], Awaitable[Check]], key_variable: str = "") -> Check:
    """Run a check; an exception becomes a failed check with the reason.

    Args:
        name: name of the failed check.
        check: the check.
        key_variable: environment variable of the server's API key.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            return await check()
    except CriticServerError as error:
        return Check(name, "failed", str(error), server_advice(error, key_variable))
    except AmcError as error:
        return Check(name, "failed", str(error))
    except TimeoutError:
        return Check(
            name, "failed", f"no end within {PATIENCE:g} s", "The server may be overloaded or stuck: see its log."
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {excerpt(str(error))}"
        return Check(name, "failed", reason, "This error is unexpected: please report it.")


def server_advice(error: CriticServerError, key_variable: str = "") -> str:
    """Advise what to do about an error of a server."""
    if error.status is None:
        return "Start the server, or correct the URL: amc serve --help."
    if error.status in (401, 403):
        return (
            f"Set {key_variable or 'the environment variable of its key'} to the key with which the server was started."
        )
    if error.status >= 500:
        return "The server itself failed: see its log."
    return ""


QUESTION = {"role": "user", "content": "Goal: craft oak gate. What is the first thing to get?"}
TOKENS = 16
"""Maximum tokens of an answer."""


async def server_answers(name: str, server: ModelServer) -> Check:
    """Check that a healthy server answers at the URL."""
    begun = time.perf_counter()
    try:
        await server.get("/health")
    except CriticServerError as error:
        # vLLM answers with an empty page; other servers may have no such page, or protect it.
        if error.status is None or error.status >= 500:
            raise
    return Check(name, "ok", f"{server.base_url} answers ({1000 * (time.perf_counter() - begun):.0f} ms)")


async def model_is_served(name: str, server: ModelServer, model: str | None) -> Check:
    """Check that the server has the model (None: its only model), and report its maximum length."""
    answer = await server.get("/v1/models")
    try:
        lengths = {served.name: served.limit for served in served_models(answer, f"{server.base_url}/v1/models")}
    except CriticServerError as error:
        return Check(name, "failed", error.reason, _NOT_OPENAI)
    if model is None and len(lengths) == 1:
        model = next(iter(lengths))
    if model not in lengths:
        problem = "no model was named" if model is None else f"no model {quoted(model)}"
        return Check(name, "failed", f"{problem}; the server has {listed(sorted(lengths)) or 'none'}",
                     "Use one of these names, or start the server with --served-model-name.")  # fmt: skip
    length = lengths[model]
    return Check(name, "ok", model + (f", reads at most {length} tokens" if length else ""))


async def chat_answers(name: str, server: ModelServer, model: str) -> Check:
    """Check that the model answers a message."""
    choice = (await _choices(server, model))[0]
    message = choice["message"]
    return Check(name, "ok", f"answered {quoted(message.get('content') or '', 200)}")


async def several_candidates(name: str, server: ModelServer, model: str) -> Check:
    """Check that n > 1 gives n candidates."""
    choices = await _choices(server, model, n=2)
    if len(choices) != 2:
        return Check(name, "failed", f"n=2 gave {len(choices)} candidate", _ONE_BY_ONE)
    return Check(name, "ok", "n=2 gives 2 candidates")


async def chat_logprobs(name: str, server: ModelServer, model: str) -> Check:
    """Check that a chat answer contains log-probabilities, including those of alternative tokens."""
    choice = (await _choices(server, model, logprobs=True, top_logprobs=2))[0]
    entries = (choice.get("logprobs") or {}).get("content") or []
    if not entries or any("logprob" not in entry or len(entry.get("top_logprobs") or []) < 2 for entry in entries):
        return Check(name, "failed", "logprobs and top_logprobs were requested, but are not in the answer", _NEEDS)
    return Check(name, "ok", f"logprobs and top_logprobs of {len(entries)} tokens")


async def chosen_logprobs(name: str, server: ModelServer, model: str) -> Check:
    """Check that log-probabilities of chosen tokens can be read, whatever their rank (an extension of vLLM)."""
    body = {"model": model, "prompt": [1, 2], "max_tokens": 1, "logprobs": 0, "logprob_token_ids": [1, 2],
            "return_tokens_as_token_ids": True}  # fmt: skip
    (answer,) = await server.post("/v1/completions", [body])
    places = (answer["choices"][0].get("logprobs") or {}).get("top_logprobs") or [{}]
    if not {"token_id:1", "token_id:2"} <= set(places[0]):
        return await _extension(name, server, "logprob_token_ids [1, 2] were requested, but are not in the answer")
    return Check(name, "ok", "logprob_token_ids gives exactly the chosen tokens")


async def prompt_logprobs(name: str, server: ModelServer, model: str) -> Check:
    """Check that the log-probability of every token of a prompt can be read (an extension of vLLM)."""
    body = {"model": model, "prompt": [1, 2], "max_tokens": 1, "prompt_logprobs": 0}
    (answer,) = await server.post("/v1/completions", [body])
    match answer["choices"][0].get("prompt_logprobs"):
        case [None, {"2": {"logprob": float()}}]:
            return Check(name, "ok", "prompt_logprobs gives the log-probabilities of the prompt's tokens")
    return await _extension(name, server, "prompt_logprobs were requested, but are not in the answer")


async def logprobs_side_by_side(name: str, server: ModelServer, model: str) -> Check:
    """Check that concurrent requests with `logprob_token_ids` do not overwrite log-probabilities, as in vLLM 0.32."""
    neighbour = {"model": model, "prompt": [1, 2], "max_tokens": TOKENS, "logprobs": 5, "temperature": 1.0}
    reading = {**neighbour, "max_tokens": 1, "logprobs": 1, "logprob_token_ids": [1, 2]}
    answers = (await server.post("/v1/completions", [neighbour, reading] * 8))[::2]
    places = [place for answer in answers for place in answer["choices"][0]["logprobs"]["top_logprobs"]]
    values = [float(value) for place in places for value in (place or {}).values()]
    if not values:
        return await _extension(name, server, "logprobs were requested, but are not in the answer")
    if min(values) < LEAST_LOGPROB:
        wrong = sum(value < LEAST_LOGPROB for value in values)
        return Check(name, "failed", f"{wrong} of {len(values)} log-probabilities next to logprob_token_ids are "
                     f"{min(values):g}", OVERWRITTEN)  # fmt: skip
    return Check(name, "ok", f"{len(values)} log-probabilities next to logprob_token_ids are correct")


async def embeds(name: str, server: ModelServer, model: str) -> Check:
    """Check that the model embeds a text."""
    (answer,) = await server.post("/v1/embeddings", [{"model": model, "input": ["craft oak gate"]}])
    vector = answer["data"][0]["embedding"]
    return Check(name, "ok", f"vectors of {len(vector)} numbers")


async def served(name: str, server: ModelServer, model: str | None, key_variable: str) -> list[Check]:
    """Check that a server answers and has the model; the second check is skipped if the first fails."""
    answers = await guarded(f"{name} server", lambda: server_answers(f"{name} server", server), key_variable)
    if answers.state == "failed":
        return [answers, Check(f"{name} model", "skipped", "the server does not answer")]
    return [
        answers,
        await guarded(f"{name} model", lambda: model_is_served(f"{name} model", server, model), key_variable),
    ]


async def policy_checks(server: ModelServer, model: str, key_variable: str) -> list[Check]:
    """Run all checks of a policy's server."""
    return await _all("policy", server, model, key_variable, {
        "chat": chat_answers, "n > 1": several_candidates, "logprobs": chat_logprobs,
        "chosen logprobs": chosen_logprobs, "prompt logprobs": prompt_logprobs,
        "logprobs side by side": logprobs_side_by_side,
    })  # fmt: skip


async def embeddings_checks(server: ModelServer, model: str, key_variable: str) -> list[Check]:
    """Run all checks of an embedding server."""
    return await _all("embeddings", server, model, key_variable, {"vectors": embeds})


_Question = Callable[[str, ModelServer, str], Awaitable[Check]]


async def _all(
    name: str, server: ModelServer, model: str, key_variable: str, questions: Mapping[str, _Question]
) -> list[Check]:
    checks = await served(name, server, model, key_variable)
    available = all(check.state == "ok" for check in checks)
    for ability, question in questions.items():
        title = f"{name} {ability}"
        if not available:
            checks.append(Check(title, "skipped", "the model is not available"))
            continue
        checks.append(await guarded(title, _bound(question, title, server, model, key_variable)))
        # Without chat, the model has no candidates and no log-probabilities either.
        available = checks[-1].state != "failed" or question is not chat_answers
    return checks


def _bound(
    question: _Question, title: str, server: ModelServer, model: str, key_variable: str
) -> Callable[[], Awaitable[Check]]:
    async def check() -> Check:
        try:
            return await question(title, server, model)
        except CriticServerError as error:
            if question in _EXTENSIONS and error.status is not None and error.status < 500:
                return await _extension(title, server, str(error))
            return Check(title, "failed", str(error), server_advice(error, key_variable) or _ADVICE.get(question, ""))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            problem = f"the answer does not have OpenAI's format ({type(error).__name__}: {excerpt(str(error))})"
            return Check(title, "failed", problem, _NOT_OPENAI)

    return check


async def _choices(server: ModelServer, model: str, **settings: Any) -> Sequence[Mapping[str, Any]]:
    body = {"model": model, "messages": [QUESTION], "max_completion_tokens": TOKENS, **settings}
    (answer,) = await server.post("/v1/chat/completions", [body])
    choices: Sequence[Mapping[str, Any]] = answer["choices"]
    return choices


async def _extension(name: str, server: ModelServer, problem: str) -> Check:
    """Report a missing extension of vLLM: a failure for vLLM, skipped for other servers."""
    try:
        version = (await server.get("/version"))["version"]
    except (CriticServerError, KeyError, TypeError):
        return Check(name, "skipped", f"an extension of vLLM, which this server does not offer ({problem})", _NEEDS)
    return Check(name, "failed", f"vLLM {excerpt(str(version), 40)}: {problem}", f"Use vLLM 0.26 or newer. {_NEEDS}")


_NEEDS = "Required for likelihoods (LAC's likelihood prior, verdict critics); AMC itself does not need them."
_NOT_OPENAI = "Check that this is the URL of an OpenAI-compatible server."
_ONE_BY_ONE = "Candidates must be requested one by one, and each request pays for the prompt."
_EXTENSIONS = (chosen_logprobs, prompt_logprobs, logprobs_side_by_side)
_ADVICE: dict[_Question, str] = {
    chat_answers: "Check that it is a generating model with a chat template.",
    several_candidates: _ONE_BY_ONE,
    chat_logprobs: _NEEDS,
    embeds: "Check that it is an embedding model, served with --runner pooling.",
}
