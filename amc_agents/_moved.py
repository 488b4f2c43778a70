"""Old module paths that documentation has shown: deprecated aliases of the modules that hold their names now."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "amc_agents.envs.found": "amc_agents.envs.registry",
    "amc_agents.methods": "amc_agents",
    "amc_agents.methods.lac": "amc_agents.lac.decision",
    "amc_agents.methods.pnlc": "amc_agents.pnlc.decision",
    "amc_agents.methods.posterior": "amc_agents.psrl.posterior.updates",
    "amc_agents.nodes": "amc_agents",
    "amc_agents.nodes.actor_critic": "amc_agents.lac.node",
    "amc_agents.nodes.amc": "amc_agents.population.wrap",
    "amc_agents.nodes.critique_refine": "amc_agents.pnlc.node",
    "amc_agents.nodes.exploration": "amc_agents.psrl.nodes",
    "amc_agents.nodes.posterior": "amc_agents.psrl.posterior.store",
    "amc_agents.nodes.text_agent": "amc_agents.runtime.text_agent",
    "amc_agents.nodes.world": "amc_agents.runtime.world",
}
"""Old path -> new path. Packages whose names are all public now are aliases of `amc_agents` itself."""
DEPRECATED_IN, REMOVED_IN = "0.1.0", "0.2.0"
"""The release in which the paths of `MOVED` are deprecated, and the release without them."""


class _Alias(Loader):
    """Loads an old path as a module whose attributes are those of the new one."""

    def __init__(self, old: str, target: str) -> None:
        self._old, self._target = old, target
        self._warned = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Use Python's default module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Look every name up in the new module, and warn at the first."""
        target = import_module(self._target)

        def looked_up(name: str) -> Any:
            value = getattr(target, name)
            # Python itself looks for names such as __path__, also in a package that is only on the way to a module.
            if not (self._warned or name.startswith("__")):
                self._warned = True
                warnings.warn(warning(self._old), DeprecationWarning, stacklevel=2)
            return value

        module.__getattr__ = looked_up  # type: ignore[method-assign]


def warning(old: str) -> str:
    """Return what is said of an old path."""
    return f"{old} is deprecated in {DEPRECATED_IN} and removed in {REMOVED_IN}: import from {MOVED[old]}"


class _Finder(MetaPathFinder):
    """Finds the old paths, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The alias of an old path; None for any other module."""
        if fullname not in MOVED:
            return None
        has_modules = any(old.startswith(f"{fullname}.") for old in MOVED)
        return ModuleSpec(fullname, _Alias(fullname, MOVED[fullname]), is_package=has_modules)


def install() -> None:
    """Make the old paths importable; a second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
