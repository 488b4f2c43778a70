"""ALFWorld's engine, with everything that depends on the game alone computed once.

TextWorld's engine translates a game for its planner four times per start, parses the grammar of each command at every
step, and never gives back its copy of the planner's library, which takes 33 MB of disk. The answers are the same here.
A twin of a game repeats the planner's operators alone, and takes what they mean in words from its origin.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from copy import copy, deepcopy
from functools import lru_cache, wraps
from typing import Any, NamedTuple

import fast_downward
import textworld
from alfworld.agents.utils.misc import Demangler
from textworld.envs.pddl import PddlEnv, logic, textgen
from textworld.logic import Rule

from amc_agents.errors import ForkError

N_GAMES = 256
"""Number of games that are kept translated, at about 1 MB each."""
_PREDICATES = re.compile(r"(\w+)\(")
_unused_planners: list[Any] = []
"""Loaded copies of the planner's library. A copy has a single state, so that every game in progress needs its own."""


class Game(NamedTuple):
    """What all engines of a game share."""

    logic: Any
    entities: dict[str, Any]
    commands: dict[str, str]
    """The planner's name of an action -> its command, if no state changes it."""
    changing: frozenset[str]
    """Predicates that actions change."""


class Engine(PddlEnv):  # type: ignore[misc]  # TextWorld has no types.
    """A game that `load` reads, `reset` starts, `step` plays, `twin` copies and `close` ends."""

    def __init__(self) -> None:
        super(PddlEnv, self).__init__(textworld.EnvInfos(admissible_commands=True, won=True))
        self.downward_lib = _planner()
        self._applied: list[tuple[int, int]] = []
        """Number of each operator that was applied, and of its effects."""

    def load(self, data: Mapping[str, str]) -> None:
        """Read a game."""
        self._game_data, self.walkthrough = data, None
        self._game = _read(data["pddl_domain"], data["grammar"], data["pddl_problem"])
        self._logic, self._entity_infos = self._game.logic, self._game.entities

    def step(self, command: str) -> Any:
        """Play a command: (state, score, whether the game has ended)."""
        operators = self._pddl_state._operators
        answer = super().step(command)
        if self._last_action is not None:
            number = self._last_action.id
            self._applied.append((number, operators[number].nb_effect_atoms))
        return answer

    def twin(self) -> Engine:
        """Return an independent copy of the game in progress.

        Raises:
            ForkError: the planner is in another state after the same operators.
        """
        twin = Engine()
        try:
            planner = twin.downward_lib
            twin.__dict__.update(self.__dict__, downward_lib=planner, _applied=list(self._applied))
            twin._pddl_state = _copied(self._pddl_state, planner)
            for number, n_effects in self._applied:
                planner.apply_operator(number, (fast_downward.Atom * n_effects)())
            if _facts(planner) != _facts(self.downward_lib):
                raise ForkError("ALFWorld's planner is in another state after the same operators: report this")
        except BaseException:
            twin.close()
            raise
        return twin

    def plan(self) -> list[str]:
        """Return the commands that reach the goal from the current state; empty if there are none."""
        return [str(command) for command in self._pddl_state.replan(self._entity_infos)]

    def close(self) -> None:
        """Give the planner back; safe to call twice."""
        planner, self.downward_lib = self.downward_lib, None
        if planner is not None:
            _unused_planners.append(planner)

    def _gather_infos(self) -> None:
        actions = self._pddl_state.all_applicable_actions()
        self.state["won"], self.state["lost"] = self._pddl_state.check_goal(), False
        self.state["_valid_actions"] = actions
        self.state["_valid_commands"] = [self._command(action) for action in actions]
        self.state["admissible_commands"] = sorted(set(self.state["_valid_commands"]))

    def _command(self, action: Any) -> str:
        name = self._pddl_state._operators[action.id].name
        known = self._game.commands.get(name)
        if known is not None:
            return known
        template = action.command_template
        action.command_template = self._logic.grammar.derive(template, self._context(action))
        command = str(action.format_command({key: info.name for key, info in self._entity_infos.items()}))
        if "#" not in template and self._game.changing.isdisjoint(_PREDICATES.findall(template.lower())):
            self._game.commands[name] = command
        return command

    def _context(self, action: Any) -> dict[str, Any]:
        return {
            "state": self._pddl_state,
            "facts": list(self._pddl_state.facts),
            "variables": {place.name: self._entity_infos[entity.name] for place, entity in action.mapping.items()},
            "mapping": action.mapping,
            "entity_infos": self._entity_infos,
        }


def _planner() -> Any:
    return _unused_planners.pop() if _unused_planners else fast_downward.load_lib()


def _copied(state: Any, planner: Any) -> Any:
    """Return a copy of a state that uses another copy of the planner, which is at the game's start."""
    planner.load_sas(state.sas.encode())
    planner.load_sas_replan(state.sas_replan.encode())
    twin = copy(state)
    twin.downward_lib = planner
    for name in ("_vars_by_name", "_var_counts"):
        setattr(twin, name, getattr(state, name).copy())
    for name in ("_facts", "_vars_by_type"):
        setattr(twin, name, defaultdict(set, {key: set(members) for key, members in getattr(state, name).items()}))
    return twin


def _facts(planner: Any) -> bytes:
    atoms = (fast_downward.Atom * planner.get_state_size())()
    planner.get_state(atoms)
    return bytes(atoms)


@lru_cache(maxsize=N_GAMES)
def _read(domain: str, grammar: str, problem: str) -> Game:
    engine, planner = PddlEnv.__new__(PddlEnv), _planner()
    try:
        engine._pddl_state = logic.PddlState(planner, problem, logic.GameLogic(domain=domain, grammar=grammar))
    finally:
        _unused_planners.append(planner)
    entities = engine._get_entity_infos()
    names = Demangler(game_infos=entities)
    for entity in entities.values():
        entity.name = names.demangle_alfred_name(entity.id)
    effects = (effect for action in engine._pddl_state.task.actions for effect in action.effects)
    changing = frozenset(effect.literal.predicate.lower() for effect in effects)
    return Game(engine._pddl_state._logic, entities, {}, changing)


def _copied_context(context: dict[str, Any]) -> dict[str, Any]:
    return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}


def _remember() -> None:
    """Make the vendor's pure functions of texts remember their results, for every engine of the process."""
    translate = lru_cache(maxsize=2 * N_GAMES)(fast_downward.pddl2sas)
    parse = lru_cache(maxsize=4096)(textgen._parse_and_convert)

    @wraps(fast_downward.pddl2sas)
    def pddl2sas(*args: Any, **options: Any) -> Any:
        arguments = sys.argv
        try:
            return translate(*args, **options)
        finally:
            sys.argv = arguments  # The translator replaces them.

    fast_downward.pddl2sas = pddl2sas
    # A symbol keeps the context of its last use, so that every use needs its own.
    textgen._parse_and_convert = lambda text, **options: deepcopy(parse(text, **options))
    # Contexts are changed by adding entries only: copies of the entries themselves took most of a step's time.
    textgen.copy_context = _copied_context
    Rule.parse_conjunctive_query = lru_cache(maxsize=4096)(Rule.parse_conjunctive_query)


_remember()
