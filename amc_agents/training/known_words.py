"""Check that a base model's tokenizer knows the words of the training data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from amc_agents.critics.render import Encoder
from amc_agents.critics.tokenizing import MOST_UNKNOWN, Segment, TemplateTokenizer, UnknownWords
from amc_agents.errors import ConfigurationError
from amc_agents.training.dataset import iter_records
from amc_agents.types import Trajectory

SAMPLE = 1000
"""Maximum number of trajectories to check; unknown words concern the whole data."""
WARNED = 0.01
"""Share of unknown words from which on a training warns."""
_REMEDY = "Choose a base model that knows these words, such as a language model's folder (--base)"


def check_words(data: Iterable[Trajectory] | str | Path, encoder: Encoder, *, anyway: bool = False) -> UnknownWords:
    """Refuse data whose words the tokenizer does not know.

    Args:
        data: trajectories, or a dataset's folder.
        encoder: renders and tokenizes them.
        anyway: do not refuse.

    Returns:
        The count of unknown words. A tokenizer without a token for unknown words, such as a byte-level one, knows all.

    Raises:
        ConfigurationError: too many words are unknown; the message gives the share and examples.
    """
    words = _count(data, encoder)
    if words.too_many and not anyway:
        raise ConfigurationError(
            f"the base model's tokenizer cannot read the training data: {words.share:.0%} of the words are unknown to "
            f"it (at most {MOST_UNKNOWN:.0%}), {_examples(data, encoder)}. {_REMEDY}"
        )
    return words


def warning_of(words: UnknownWords, data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> list[str]:
    """Return a warning if more than `WARNED` of the words are unknown."""
    if words.share <= WARNED:
        return []
    return [
        f"{words.share:.1%} of the words are unknown to the base model, {_examples(data, encoder)}: the critic cannot "
        f"tell them apart. {_REMEDY}."
    ]


def _count(data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> UnknownWords:
    if not isinstance(encoder.tokenize, TemplateTokenizer):
        return UnknownWords(0, 0, "")
    return encoder.tokenize.unknown_words(_texts(data, encoder))


def _examples(data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> str:
    assert isinstance(encoder.tokenize, TemplateTokenizer)
    examples = encoder.tokenize.unknown_examples(_texts(data, encoder), _EXAMPLES)
    return f"such as {', '.join(repr(word[:20]) for word in examples)}"


def _texts(data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> Iterator[Segment]:
    trajectories = (record.trajectory for record in iter_records(data)) if isinstance(data, str | Path) else data
    return (text for trajectory in islice(trajectories, SAMPLE) for text in encoder.format.segments(trajectory))


_EXAMPLES = 5
