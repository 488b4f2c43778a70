"""A worker thread that computes the requests of all callers in one batch (continuous batching).

Callers are tasks of any event loop, or plain threads. A batch starts when all recently active callers are waiting, or
2 ms after the first request. Later requests join the running batch by the same rule, and each candidate leaves it when
it ends. A request has its own random stream, so its answer does not depend on the other requests of the batch (see
`sampling.choose` for the last bits).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.models.engine import (
    Answer,
    Completion,
    Decoder,
    Float32Array,
    Request,
    TokenLogprob,
    choose,
    log_softmax,
)

_MAX_WAIT_S = 0.002
"""Maximum time that a request waits for others to share its batch."""
_BURST_QUIET = 0.0003
"""Seconds without a new caller after which a burst of new callers counts as complete."""
_AWAY_SECONDS = 0.05
"""Seconds after its last answer during which a caller is expected to send another request."""
_IDLE_SECONDS = 10.0
"""Seconds without work after which the worker thread ends; the next request starts another."""
_DRAWS = 64


class _Ticket:
    """A waiting or running request, and how to notify its caller."""

    def __init__(self, request: Request, future: asyncio.Future[Answer] | None) -> None:
        self.request = request
        self.future = future
        self.loop = future.get_loop() if future is not None else None
        self.event = threading.Event() if future is None else None
        self.since = time.monotonic()
        self.cached = len(request.prompt)
        self.completions: list[Completion | None] = [None] * request.sampling.n
        self.left = request.sampling.n
        self.error: BaseException | None = None
        self.cancelled = False

    def answer(self) -> Answer:
        """Return the answer, once all candidates are complete."""
        done = tuple(completion for completion in self.completions if completion is not None)
        return Answer(done, len(self.request.prompt), self.cached)

    def settle(self) -> None:
        """Notify the caller: on its event loop, or on any thread if the caller blocks."""
        if self.event is not None:
            self.event.set()
        elif self.future is not None and not self.future.done():
            if self.error is not None:
                self.future.set_exception(self.error)
            else:
                self.future.set_result(self.answer())


class _Row:
    """A candidate in the batch."""

    def __init__(self, ticket: _Ticket, candidate: int, context: int) -> None:
        self.ticket, self.candidate = ticket, candidate
        sampling = ticket.request.sampling
        self.temperature, self.top_p = sampling.temperature, sampling.top_p
        self.limit = min(sampling.max_tokens, context - len(ticket.request.prompt))
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.streamed = 0
        self._rng = np.random.Generator(np.random.PCG64([ticket.request.seed, candidate]))
        self._draws: list[float] = []

    def uniform(self) -> float:
        """Return the next number of the row's own random stream."""
        if self.temperature == 0:
            return 0.0
        if not self._draws:
            self._draws = self._rng.random(_DRAWS).tolist()
        return self._draws.pop()


class Batcher:
    """Compute requests of concurrent callers in shared batches.

    Args:
        decoder: computes the batch; only the worker thread uses it.
        max_rows: maximum number of candidates in the batch; further candidates wait.
    """

    def __init__(self, decoder: Decoder, max_rows: int = 128) -> None:
        self.decoder = decoder
        self.max_rows = max_rows
        self._changed = threading.Condition()
        self._waiting: deque[_Ticket] = deque()
        self._away: deque[float] = deque()
        self._new_caller_at = 0.0
        self._thread: threading.Thread | None = None
        self._rows: list[_Row] = []

    def generate(self, request: Request) -> Answer:
        """Compute a request; blocks the calling thread. Raises `ConfigurationError` if the request does not fit."""
        ticket = _Ticket(request, None)
        self._submit(ticket)
        assert ticket.event is not None
        try:
            ticket.event.wait()
        except BaseException:
            ticket.cancelled = True
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.answer()

    async def agenerate(self, request: Request) -> Answer:
        """Compute a request; if the caller is cancelled, its rows leave the batch at the next token."""
        ticket = _Ticket(request, asyncio.get_running_loop().create_future())
        self._submit(ticket)
        assert ticket.future is not None
        try:
            return await ticket.future
        except asyncio.CancelledError:
            ticket.cancelled = True
            raise

    def _submit(self, ticket: _Ticket) -> None:
        n, prompt = ticket.request.sampling.n, ticket.request.prompt
        if n > self.max_rows:
            raise ConfigurationError(
                f"expected at most {self.max_rows} candidates (one batch), got n={n}: split the request"
            )
        if not 0 < len(prompt) < self.decoder.context:
            raise ConfigurationError(
                f"the prompt has {len(prompt)} tokens; this model's context is {self.decoder.context} tokens, "
                "including at least 1 token for the answer. Shorten the dialogue."
            )
        with self._changed:
            if self._away:
                self._away.popleft()
            else:
                self._new_caller_at = ticket.since
            self._waiting.append(ticket)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="amc-batcher", daemon=True)
                self._thread.start()
            # Notify all: after a fork, waiters of threads that no longer exist are still registered.
            self._changed.notify_all()

    # All methods below run on the worker thread.

    def _work(self) -> None:
        while True:
            tickets = self._admit()
            if tickets is None:
                return
            try:
                if tickets:
                    self._join(tickets)
                elif self._rows:
                    self._advance(self.decoder.step(np.array([row.tokens[-1] for row in self._rows])), 0)
            except Exception as error:
                # All callers in the batch get the error, and the batch starts again empty.
                self._fail(tickets, error)

    def _admit(self) -> list[_Ticket] | None:
        """Return the requests that start now, or None if the thread should end."""
        with self._changed:
            if not self._rows:
                while not self._waiting:
                    if not self._changed.wait(_IDLE_SECONDS) and not self._waiting:
                        self._thread = None
                        return None
                while (pause := self._patience()) > 0:
                    self._changed.wait(pause)
            elif not self._waiting or self._patience() > 0:
                return []
            admitted: list[_Ticket] = []
            room = self.max_rows - len(self._rows)
            while self._waiting and self._waiting[0].request.sampling.n <= room:
                ticket = self._waiting.popleft()
                if not ticket.cancelled:
                    room -= ticket.request.sampling.n
                    admitted.append(ticket)
            return admitted

    def _patience(self) -> float:
        """Return for how many more seconds the waiting requests should wait for others."""
        now = time.monotonic()
        while self._away and self._away[0] < now - _AWAY_SECONDS:
            self._away.popleft()
        longest = self._waiting[0].since + _MAX_WAIT_S - now
        if self._away:
            return longest
        return min(longest, self._new_caller_at + _BURST_QUIET - now)

    def _join(self, tickets: Sequence[_Ticket]) -> None:
        joining = [(ticket, candidate) for ticket in tickets for candidate in range(ticket.request.sampling.n)]
        joined = self.decoder.join([ticket.request.prompt for ticket, _ in joining])
        first = len(self._rows)
        for index, cached in zip(joined.order, joined.cached, strict=True):
            ticket, candidate = joining[index]
            ticket.cached = min(ticket.cached, cached)
            self._rows.append(_Row(ticket, candidate, self.decoder.context))
        self._advance(joined.logits, first)

    def _advance(self, logits: Float32Array, first: int) -> None:
        """Draw a token for each row from `first` on, and remove finished rows."""
        rows = self._rows[first:]
        uniform = np.array([row.uniform() for row in rows])
        temperature = np.array([row.temperature for row in rows])
        drawn = choose(logits, temperature, np.array([row.top_p for row in rows]), uniform).tolist()
        for row, token in zip(rows, drawn, strict=True):
            row.tokens.append(token)
        self._note_logprobs(rows, logits)
        finished: list[_Ticket] = []
        # Backwards, because the last row takes the place of a removed row.
        for index in range(len(self._rows) - 1, first - 1, -1):
            row = self._rows[index]
            completion = self._completion(row)
            if completion is None and not row.ticket.cancelled:
                continue
            row.ticket.completions[row.candidate] = completion
            row.ticket.left -= 1
            if row.ticket.left == 0:
                finished.append(row.ticket)
            self.decoder.leave(index)
            self._rows[index] = self._rows[-1]
            self._rows.pop()
        if finished:
            self._settle(finished)

    def _note_logprobs(self, rows: Sequence[_Row], logits: Float32Array) -> None:
        wanted = [index for index, row in enumerate(rows) if row.ticket.request.sampling.logprobs]
        if not wanted:
            return
        table = log_softmax(logits[wanted])
        for line, index in zip(table, wanted, strict=True):
            row = rows[index]
            best = np.argsort(-line, kind="stable")[: row.ticket.request.sampling.top_logprobs].tolist()
            top = tuple((token, float(line[token])) for token in best)
            row.logprobs.append(TokenLogprob(row.tokens[-1], float(line[row.tokens[-1]]), top))

    def _completion(self, row: _Row) -> Completion | None:
        """Return the candidate if its last token ended it, else None."""
        request = row.ticket.request
        stop, listener = request.sampling.stop, request.on_text
        ended = row.tokens[-1] in self.decoder.end_tokens
        full = len(row.tokens) >= row.limit
        if not (ended or full or stop or listener):
            return None
        text = self.decoder.decode(row.tokens)
        cut = min((at for at in (text.find(word) for word in stop) if at >= 0), default=-1)
        over = ended or full or cut >= 0
        if cut >= 0:
            text = text[:cut]
        if listener is not None:
            settled = len(text) if over else _settled(text, stop)
            listener(text[row.streamed : settled], row.logprobs[-1] if row.logprobs else None)
            row.streamed = max(row.streamed, settled)
        if not over:
            return None
        reason = "stop" if ended or cut >= 0 else "length"
        return Completion(text, tuple(row.tokens), reason, tuple(row.logprobs))

    def _settle(self, tickets: Sequence[_Ticket]) -> None:
        """Notify the callers, with one call per event loop."""
        now = time.monotonic()
        by_loop: dict[asyncio.AbstractEventLoop, list[_Ticket]] = {}
        with self._changed:
            self._away.extend(now for ticket in tickets if not ticket.cancelled)
        for ticket in tickets:
            if ticket.loop is None:
                ticket.settle()
            elif not ticket.cancelled:
                by_loop.setdefault(ticket.loop, []).append(ticket)
        for loop, group in by_loop.items():
            # A loop that was closed in the meantime has no waiting caller, and must not end the worker.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle_all, group)

    def _fail(self, tickets: Sequence[_Ticket], error: Exception) -> None:
        broken = {id(ticket): ticket for ticket in (*tickets, *(row.ticket for row in self._rows))}
        self._rows = []
        self.decoder.clear()
        for ticket in broken.values():
            ticket.error = error
        self._settle(list(broken.values()))


def _settle_all(tickets: Sequence[_Ticket]) -> None:
    for ticket in tickets:
        ticket.settle()


def _settled(text: str, stop: Sequence[str]) -> int:
    """Return the length of the part of `text` that is final: no beginning of a stop text and no partial character."""
    length = len(text)
    while length and text[length - 1] == "\ufffd":
        length -= 1
    for word in stop:
        for size in range(min(len(word) - 1, length), 0, -1):
            if text.endswith(word[:size]):
                length = min(length, len(text) - size)
                break
    return length
