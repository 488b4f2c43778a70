"""Check that a base model's tokenizer knows the words of the training data."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from amc_agents.critics.render import Encoder
from amc_agents.critics.tokenizing import TemplateTokenizer
from amc_agents.errors import ConfigurationError
from amc_agents.training.dataset import iter_records
from amc_agents.types import Trajectory

SAMPLE = 1000
"""Maximum number of trajectories to check; unknown words concern the whole data."""


def check_words(data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> None:
    """Refuse data whose words the tokenizer does not know.

    Args:
        data: trajectories, or a dataset's folder.
        encoder: renders and tokenizes them.

    Raises:
        ConfigurationError: too many words are unknown; the message gives the share and an example.
    """
    if not isinstance(encoder.tokenize, TemplateTokenizer):
        return
    trajectories = (record.trajectory for record in iter_records(data)) if isinstance(data, str | Path) else data
    texts = (text for trajectory in islice(trajectories, SAMPLE) for text in encoder.format.segments(trajectory))
    words = encoder.tokenize.unknown_words(texts)
    if words.too_many:
        raise ConfigurationError(
            f"the base model's tokenizer cannot read the training data: {words}. Choose a base model that knows these "
            "words, such as a language model's folder (--base)"
        )
