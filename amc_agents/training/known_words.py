"""Whether a base model's tokenizer knows the words of the data that it is to be trained on."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from amc_agents.critics.render import Encoder
from amc_agents.critics.tokenizing import TemplateTokenizer
from amc_agents.errors import ConfigurationError
from amc_agents.training.dataset import iter_records
from amc_agents.types import Trajectory

LOOKED_AT = 1000
"""The most trajectories that are looked at: unknown words are a matter of the whole data."""


def check_words(data: Iterable[Trajectory] | str | Path, encoder: Encoder) -> None:
    """Refuse data whose words the tokenizer does not know, before anything is trained on what is left of them.

    Args:
        data: trajectories, or a dataset's folder.
        encoder: what writes and tokenizes them.

    Raises:
        ConfigurationError: too many words are unknown; the message shows the share and one of the words.
    """
    if not isinstance(encoder.tokenize, TemplateTokenizer):
        return
    trajectories = (record.trajectory for record in iter_records(data)) if isinstance(data, str | Path) else data
    texts = (text for one in islice(trajectories, LOOKED_AT) for text in encoder.format.segments(one))
    words = encoder.tokenize.unknown_words(texts)
    if words.too_many:
        raise ConfigurationError(
            f"the base model's tokenizer cannot read the training data: {words}. Choose a base model that knows these "
            "words, such as a language model's folder (--base)"
        )
