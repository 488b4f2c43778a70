"""Copies of a game that reuse the interpreters of games that have ended.

TextWorld's own copy loads the interpreter's library twice, from two copies of its file, which takes most of a fork.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

from textworld.envs.zmachine.jericho import JerichoEnv

N_UNUSED = 64
"""Number of interpreters that are kept, at about 1 MB each."""
_unused: list[Any] = []
"""Interpreters of games that have ended, the latest last."""


def reuse_interpreters() -> None:
    """Let TextWorld's games take and leave interpreters here, in this whole process."""
    JerichoEnv.copy, JerichoEnv.close = _copy, _close


def _copy(self: Any) -> Any:
    twin = JerichoEnv(self.request_infos)
    twin._seed, twin.gamefile, twin._reset = self._seed, self.gamefile, self._reset
    twin._jericho = None if self._jericho is None else _copied(self._jericho)
    twin.state, twin.request_infos = self.state.copy(), self.request_infos.copy()
    return twin


def _copied(interpreter: Any) -> Any:
    spare = next((each for each in reversed(_unused) if _story(each) == _story(interpreter)), None)
    if spare is None:
        return interpreter.copy()
    _unused.remove(spare)
    spare.seed(interpreter._seed)
    spare.reset()  # What a state does not hold, such as a game's end, is forgotten.
    spare.set_state(interpreter.get_state())
    return spare


def _story(interpreter: Any) -> bytes:
    """Return what was read from the story's file, which may have changed since."""
    return bytes(interpreter._cache[interpreter.story_file.decode()][0])


def _close(self: Any) -> None:
    interpreter, self._jericho, self._reset = self._jericho, None, False
    if interpreter is not None:
        _unused.append(interpreter)
        del _unused[:-N_UNUSED]
