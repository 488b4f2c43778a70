"""log pi(action | thought) of a dialogue's next turn, for the priors that score texts again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amc_agents.lac.served_rescoring import Messages, Text, TextScorer
from amc_agents.types import FloatArray

WriteTurn = Callable[[str, str], Text]
"""(thought, action) -> the policy's text: the thought is given, the action scored."""


def written_turn(thought: str, action: str) -> Text:
    r"""A turn as the library's text agents write it.

    >>> written_turn("look first", "open the door")
    Text(given='Thought: look first\nAction:', scored=' open the door')
    >>> written_turn("", "open the door")
    Text(given='Action:', scored=' open the door')
    """
    # That no thought came is given too: over thoughts of which some are empty, each has the share that was sampled.
    return Text(f"Thought: {thought}\nAction:" if thought else "Action:", f" {action}")


class ChatRescorer:
    """A text scorer at one state: what `amc_agents.lac.decision.decide` takes as its rescorer.

    Args:
        scorer: `critics.rescoring.CompletionsScorer` (vLLM), `critics.rescoring_embedded.EmbeddedScorer`.
        messages: the dialogue up to the decision, as the policy is asked.
        temperature: of the samples. Samples drawn with top-p, top-k or penalties are not of this distribution.
        write: how the policy writes a turn. Tool calls are written by each chat template in a way of its own: say how.
    """

    def __init__(
        self, scorer: TextScorer, messages: Messages, *, temperature: float = 1.0, write: WriteTurn = written_turn
    ) -> None:
        self._scorer, self._messages, self._temperature, self._write = scorer, messages, temperature, write

    async def log_likelihoods(self, thoughts: Sequence[str], actions: Sequence[str]) -> FloatArray:
        """`[K, A]` log pi(action a | thought k), end token included. Raises as the scorer does."""
        texts = [self._write(thought, action) for thought in thoughts for action in actions]
        found = await self._scorer.log_likelihoods(self._messages, texts, self._temperature)
        return found.reshape(len(thoughts), len(actions))
