"""Variants of a promise: the first guards it in `make test`, all of them in CI."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def variants(names: str | Sequence[str], values: Iterable[Any], ids: Any = None) -> pytest.MarkDecorator:
    """Like `pytest.mark.parametrize`, but all values after the first are thorough."""
    first, *others = values
    several = not isinstance(names, str)
    later = [pytest.param(*(value if several else (value,)), marks=pytest.mark.thorough) for value in others]
    return pytest.mark.parametrize(names, [first, *later], ids=ids)
