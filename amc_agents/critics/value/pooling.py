"""A value model served by vLLM's pooling runner: `vllm:http://host:8000?model=org/name`.

Prompts are rendered and tokenized in this process and sent as token ids, in one request per call. So they equal the
prompts of training, and the server's prefix cache reuses the tokens that it has seen.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from pydantic import SecretStr
from typing_extensions import override

from amc_agents.budget import Bound
from amc_agents.concurrency.gather import Once
from amc_agents.critics.adapting import checked_values
from amc_agents.critics.render import Batch, Encoder
from amc_agents.critics.server.client import KEY_VARIABLE, ModelServer, server_options
from amc_agents.critics.server.served import (
    ServedModel,
    chosen_model,
    local_folder,
    rows_of,
    served_folder,
    tokenizer_of,
)
from amc_agents.critics.spec import allow, needed, number, positive_integer
from amc_agents.critics.value.checkpoint import CheckpointedCritic, ValueCheckpoint
from amc_agents.errors import CheckpointError, CriticError, CriticServerError
from amc_agents.models.tokenizers import Tokenize
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage, record

CONTROL_TOKENS = 4
"""Length of the control prompt, which is part of every request: a fraction of a cache block."""
_ATTEMPTS = 3
_REMEMBERED = 50_000
"""Maximum number of segments whose JSON is kept."""


def one_server(url: str, options: Mapping[str, str], *, trusted: bool) -> VLLMCritic:
    """The critic of `vllm:URL?options`."""
    allow("vllm", options, "model", "checkpoint", "max_batch", "tolerance", "key_env", "timeout", "retry_for")
    return VLLMCritic(
        needed("vllm", url, "http://host:8000"),
        model=options.get("model"),
        checkpoint=options.get("checkpoint"),
        **server_options("vllm", options),
        max_batch=positive_integer("vllm", options, "max_batch", 256),
        tolerance=number("vllm", options, "tolerance", 0.0, least=0.0) if "tolerance" in options else None,
        trusted=trusted,
    )


@dataclass(frozen=True)
class _Session:
    """The result of a handshake, valid until another server answers."""

    served: ServedModel
    encoder: Encoder
    control: bytes
    """The control prompt, as JSON."""
    control_score: float
    interruptions: int
    """`ModelServer.interruptions` when the golden scores arrived."""


class VLLMCritic(CheckpointedCritic):
    """A value model on a vLLM server. The constructor sends no request.

    The first use is a handshake: it checks the model's name, the server's length limit and the checkpoint's golden
    scores. It is repeated after a lost connection, and when the control prompt, a short prompt of known score in every
    request, gets another score. One object may serve several threads and event loops.

    Args:
        url: such as "http://host:8000".
        model: the model's name on the server; None: the only model there.
        checkpoint: folder with its `amc_value.json` and `tokenizer.json` (the weights are not needed here). None:
            the model's name or the `root` that the server reports, if it is a local folder or a repository of the
            Hugging Face hub.
        api_key: None: the value of the environment variable `key_variable`, if it is set.
        key_variable: name of the key's environment variable.
        timeout: seconds for one request.
        retry_for: seconds over which a request that fails temporarily is retried.
        max_batch: prompts per request; larger batches are split and sent concurrently.
        tolerance: how far golden scores may be off (2e-2 for a server in bfloat16); None: the checkpoint's tolerance.
        trusted: False for a critic that a call names, see `ModelServer`.
        transport: an httpx transport, for tests.

    Raises:
        CheckpointError: `checkpoint` is not a value model's folder.
        ConfigurationError: the URL is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        checkpoint: str | Path | None = None,
        api_key: str | SecretStr | None = None,
        key_variable: str = KEY_VARIABLE,
        timeout: float = 60.0,
        retry_for: float = 60.0,
        max_batch: int = 256,
        tolerance: float | None = None,
        trusted: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._server = ModelServer(
            url,
            api_key=api_key,
            key_variable=key_variable,
            timeout=timeout,
            retry_for=retry_for,
            trusted=trusted,
            transport=transport,
        )
        self.name = f"vllm:{self._server.base_url}" + (f"?model={model}" if model else "")
        self.usage = Usage()
        """Total usage so far, handshakes included; a run reports the difference."""
        self._model, self._max_batch, self._tolerance = model, max_batch, tolerance
        self._folder = local_folder(checkpoint, model, trusted=trusted)
        self._checkpoint = ValueCheckpoint.load(self._folder) if self._folder else None
        self._tokenize: Tokenize | None = None
        self._session = Once(self._open)
        self._written: dict[tuple[int, ...], bytes] = {}

    @property
    @override
    def checkpoint(self) -> ValueCheckpoint:
        if self._checkpoint is None:
            raise CriticError(
                f"critic {self.name}: its checkpoint is unknown until it connects: await connect(), or pass "
                "checkpoint=path/to/value"
            )
        return self._checkpoint

    @property
    def charged_as(self) -> str | None:
        """Name of the model under which a budget is charged; None: the server was not asked for it yet."""
        session = self._session.known
        return self._model if session is None else session.served.name

    async def connect(self) -> str:
        """Find the model, perform the handshake, and return the model's name. The first `values` connects, too.

        Raises:
            CheckpointError: the model's checkpoint is missing, or the server's scores differ from it.
            CriticServerError: the server cannot be reached, refuses the request, or does not serve the model.
        """
        with self._server.redacted():
            return (await self._session.get()).served.name

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predictions in reward units; equal prompts are scored once.

        Raises:
            CheckpointError, CriticServerError: as in `connect`.
            CriticError: the answer is not one finite number per prompt, or a prompt exceeds the length limit.
        """
        trajectories = tuple(trajectories)
        if not trajectories:
            return np.zeros(0)
        with self._server.redacted():
            return await self._values(trajectories)

    async def _values(self, trajectories: tuple[Trajectory, ...]) -> FloatArray:
        for _ in range(_ATTEMPTS):
            session = await self._session.get()
            # In a thread, because tokenizing new texts takes a while.
            rows, prompts = await asyncio.to_thread(self._write, session.encoder, trajectories)
            try:
                scores, controls = await self._score(session, prompts, session_headers(trajectories))
            except CriticServerError as error:
                if not await self._renamed_or_resized(session, error):
                    raise
                continue
            if session.interruptions != self._server.interruptions:
                # Another server may have answered: accept the scores only if a new handshake passes.
                self._session.drop(session)
                session = await self._session.get()
            if all(abs(control - session.control_score) <= self._allowed for control in controls):
                return self.checkpoint.values(checked_values(scores[rows], len(rows), self.name))
            self._session.drop(session)
        raise CriticServerError(
            self._server.base_url,
            f"the model behind this URL changed during each of {_ATTEMPTS} attempts: are servers of different "
            "models behind it? Give each model its own URL",
        )

    @property
    def _allowed(self) -> float:
        return self.checkpoint.allowed if self._tolerance is None else self._tolerance

    async def _renamed_or_resized(self, session: _Session, error: CriticServerError) -> bool:
        """True if a new server refused the request, because its model has another name or a lower length limit."""
        if error.status not in (400, 404):
            return False
        self._session.drop(session)
        return (await self._session.get()).served != session.served

    async def _open(self) -> _Session:
        """Find the model and its checkpoint, and compare the golden scores."""
        answer = await self._server.get("/v1/models")
        served = chosen_model(answer, self._model, f"{self._server.base_url}/v1/models")
        checkpoint, tokenize = await asyncio.to_thread(self._load, served)
        where = f"critic {self.name}"
        await asyncio.to_thread(checkpoint.check_prompts, tokenize, where)
        rows = checkpoint.handshake_rows()
        if not rows:
            raise CheckpointError(f"{where}: the checkpoint has no golden scores, so a wrong server could not be seen")
        longest = max(map(len, rows))
        if served.limit is not None and longest > served.limit:
            raise CheckpointError(
                f"{where}: a golden prompt has {longest} tokens and the server takes {served.limit}: start it with "
                f"--max-model-len {longest} or more"
            )
        control = ids_as_json(rows[0][:CONTROL_TOKENS])
        try:
            (scores,) = await self._ask(served.name, [[*map(ids_as_json, rows), control]])
        except CriticServerError as error:
            if error.status != 404:
                raise
            why = f"{error.reason}. The model is there, but not as a value model: serve it with --runner pooling"
            raise CriticServerError(error.url, why, error.status) from error
        interruptions = self._server.interruptions
        checkpoint.check_scores(scores[:-1], where, self._tolerance)
        limit = min(filter(None, (checkpoint.max_tokens, served.limit)), default=None)
        encoder = replace(checkpoint, max_tokens=limit).encoder(tokenize)
        return _Session(served, encoder, control, float(scores[-1]), interruptions)

    def _load(self, served: ServedModel) -> tuple[ValueCheckpoint, Tokenize]:
        # Only once: a server that restarts with another model must still give the first model's golden scores.
        if self._folder is None:
            self._folder = served_folder(served.name, served.root, local=self._server.may_name_folders)
        if self._checkpoint is None:
            self._checkpoint = ValueCheckpoint.load(self._folder)
        if self._tokenize is None:
            self._tokenize = tokenizer_of(self._folder)
        return self._checkpoint, self._tokenize

    def _write(self, encoder: Encoder, trajectories: Sequence[Trajectory]) -> tuple[list[int], list[bytes]]:
        """`[N]` index of each trajectory's prompt, and the distinct prompts as JSON."""
        batch = Batch.of(encoder, trajectories)
        if len(self._written) > _REMEMBERED:
            self._written.clear()
        return batch.rows, [b"[%b]" % b",".join(map(self._segment, filter(None, prompt))) for prompt in batch.prompts]

    def _segment(self, ids: tuple[int, ...]) -> bytes:
        """The ids of a segment as JSON without brackets, cached because siblings share most segments."""
        written = self._written.get(ids)
        if written is None:
            written = self._written[ids] = ids_as_json(ids)[1:-1]
        return written

    async def _score(
        self, session: _Session, prompts: Sequence[bytes], headers: Mapping[str, str]
    ) -> tuple[FloatArray, list[float]]:
        """`[rows]` raw scores, and `[requests]` scores of the control prompt."""
        starts = range(0, len(prompts), self._max_batch)
        requests = [[*prompts[start : start + self._max_batch], session.control] for start in starts]
        answers = await self._ask(session.served.name, requests, headers)
        return np.concatenate([scores[:-1] for scores in answers]), [float(scores[-1]) for scores in answers]

    async def _ask(
        self, model: str, requests: Sequence[Sequence[bytes]], headers: Mapping[str, str] | None = None
    ) -> list[FloatArray]:
        """Send requests, record their usage, and return the raw scores of each request's prompts."""
        bodies = [classify_body(model, prompts) for prompts in requests]
        # Ids are separated by commas.
        bounds = [Bound(model, sum(prompt.count(b",") + 1 for prompt in prompts), 0) for prompts in requests]

        def count(_: int, used: Usage) -> None:
            self.usage += used
            record("critic", used, model)

        answers = await self._server.post("/classify", bodies, bounds, headers, count)
        return [
            _scores_of(answer, len(prompts), f"critic {self.name}")
            for answer, prompts in zip(answers, requests, strict=True)
        ]


def ids_as_json(ids: Sequence[int]) -> bytes:
    """Token ids as a JSON list."""
    return json.dumps(ids, separators=(",", ":")).encode()


def classify_body(model: str, prompts: Sequence[bytes]) -> bytes:
    """Body of a `/classify` request for the raw scores of prompts, each a JSON list of token ids.

    Without `use_activation: false` the server would answer the sigmoid of the scores.
    """
    return b'{"model":%b,"use_activation":false,"input":[%b]}' % (json.dumps(model).encode(), b",".join(prompts))


def _scores_of(answer: Any, n: int, where: str) -> FloatArray:
    """`[n]` scores of a `/classify` answer, by their `index`; NaN and infinity pass.

    Raises:
        CriticError: the answer is not one number per prompt.
    """
    try:
        rows = rows_of(answer, "data", n)
    except ValueError as error:
        raise CriticError(f"{where}: {error}. Is it vLLM with a value model (--runner pooling)?") from error
    scores = []
    for row in rows:
        match row:
            case {"probs": [int() | float() as score]} if not isinstance(score, bool):
                scores.append(float(score))
            case {"probs": [_, _, *_] as labels}:
                raise CriticError(
                    f"{where}: the model answers {len(labels)} labels for a prompt: a value model has num_labels=1"
                )
            case _:
                raise CriticError(f"{where}: expected one number in `probs`, got {quoted(row, 200)}")
    return np.array(scores)


SESSION_HEADER = "X-Session-ID"
"""The header by which vllm-router's policy `consistent_hash` chooses a replica."""


def session_of(trajectory: Trajectory) -> str:
    """Return the session of a trajectory: a hash of its task, so that a header reveals no text."""
    task = trajectory.task
    return hashlib.sha256(f"{task.id}\n{task.instruction}".encode()).hexdigest()[:16]


def session_headers(trajectories: Sequence[Trajectory]) -> Mapping[str, str]:
    """Return the header that names the session; empty if the trajectories are of several tasks."""
    sessions = {session_of(trajectory) for trajectory in trajectories}
    return {SESSION_HEADER: sessions.pop()} if len(sessions) == 1 else {}
