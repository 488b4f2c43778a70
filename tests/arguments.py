"""Arguments of `amc()` for tests that pass settings on: what it does not take itself goes into its `settings=`."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from amc_agents import AmcSettings, amc

_OTHERS = {field.name for field in fields(AmcSettings)} - inspect.signature(amc).parameters.keys()


def arguments(**given: Any) -> dict[str, Any]:
    """The arguments of a call of `amc`, from its arguments and the fields of `AmcSettings`."""
    settings = {name: given.pop(name) for name in _OTHERS & given.keys()}
    return {**given, "settings": AmcSettings(**settings)}
