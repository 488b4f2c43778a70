"""Work that need not wait for one another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def side_by_side(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """What all of them give; where one fails, the others are given up and its error is raised as it is."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
