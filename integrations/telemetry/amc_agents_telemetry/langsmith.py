"""Send the critic's values of particles to LangSmith, as feedback on the particles' runs."""

from __future__ import annotations

import math
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langsmith import Client

from amc_agents_telemetry.backlog import Backlog


class LangSmithFeedback(BaseCallbackHandler):
    """Sends each value that the critic gives a particle to LangSmith, in a thread of its own.

    A callback beside LangSmith's tracer: `graph.invoke(input, {"callbacks": [LangSmithFeedback()]})`. Every particle's
    run in LangSmith then has its values as feedback, by which LangSmith can sort and filter. A failure is logged.

    Args:
        client: of LangSmith. Default: a new client, which reads LangSmith's environment variables.
        key: name of the feedback.
    """

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_chain = ignore_agent = True
    ignore_retriever = ignore_custom_event = True

    def __init__(self, client: Client | None = None, key: str = "amc_value") -> None:
        self._client, self._key = client or Client(), key
        self._backlog = Backlog(relieve=lambda: None)
        self._projects: dict[str, UUID] = {}

    def on_particle_value(self, value: float, *, run_id: UUID, trace_id: UUID | None, project: str | None) -> None:
        """Send a value.

        Args:
            value: of the particle; NaN is not sent.
            run_id: the particle's run.
            trace_id: the outermost run around it, which LangSmith needs to take feedback in batches; None: unknown.
            project: name of the LangSmith project; None: unknown.
        """
        if math.isfinite(value):
            self._backlog.add(self._send, value, run_id, trace_id, project)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Hand all feedback so far to the client; False: it was not done in time."""
        return self._backlog.flush(timeout_s)

    def _send(self, value: float, run_id: UUID, trace_id: UUID | None, project: str | None) -> None:
        if project is not None and project not in self._projects:
            self._projects[project] = self._client.read_project(project_name=project).id
        session_id = None if project is None else self._projects[project]
        self._client.create_feedback(run_id, self._key, score=value, trace_id=trace_id, session_id=session_id)
