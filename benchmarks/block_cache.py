"""A simulator of vLLM's prefix cache: which tokens of a prompt a server computes. Numbers of it are simulated.

What it copies from vLLM's scheduler (V1): a cache entry is a full block of tokens, named by the hash of the block and
of all blocks before it; a hit is the longest run of cached blocks from the start of the prompt, at most all tokens but
the last; memory is a number of blocks; the least recently used unneeded block is replaced, the end of a prompt before
its beginning. What it leaves out: requests that are cut in the middle because memory is exhausted while they run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """The prefix cache of one server.

    Args:
        n_blocks: capacity.
        block_size: tokens per block.
    """

    def __init__(self, n_blocks: int, block_size: int = 16) -> None:
        self._n_blocks, self._block_size = n_blocks, block_size
        self._blocks: OrderedDict[int, None] = OrderedDict()
        """Names of the cached blocks, the next to be replaced first."""
        self.prompt_tokens = self.cached_tokens = 0

    def compute(self, prompt: Sequence[int]) -> int:
        """Serve a prompt and return the number of tokens that are computed."""
        names = self._names(prompt)
        hits = 0
        for name in names[: (len(prompt) - 1) // self._block_size]:
            if name not in self._blocks:
                break
            hits += 1
        cached = hits * self._block_size
        # From the end, so that the beginning is replaced last.
        for name in reversed(names):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._n_blocks:
            self._blocks.popitem(last=False)
        self.prompt_tokens += len(prompt)
        self.cached_tokens += cached
        return len(prompt) - cached

    def _names(self, prompt: Sequence[int]) -> list[int]:
        names, before = [], 0
        for start in range(0, len(prompt) - self._block_size + 1, self._block_size):
            before = hash((before, *prompt[start : start + self._block_size]))
            names.append(before)
        return names
