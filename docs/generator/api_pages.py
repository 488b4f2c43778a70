"""The API reference: a page for each package with public names, from their docstrings and signatures.

The docstrings are read by griffe, which imports nothing, so optional dependencies need not be installed. The pages are
Markdown, so that the site, its `.md` files and `llms.txt` have the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

from amc_agents.markdown import table

INDENTED = "    "
INTRODUCTION = """# Python API

Look up a class or function, its arguments and its errors. The texts are those of the docstrings. Each package lists its
public names in `__all__`; everything else may change without notice.
"""


def api_pages(root: Path) -> dict[str, str]:
    """Return the pages: their paths under `reference/`, and their text."""
    package = griffe.load("amc_agents", search_paths=[root], docstring_parser="google", resolve_aliases=True)
    home = {name: "api/amc_agents.md" for name in _public(package)}
    pages = {f"api/{module.path}.md": _page(module, home) for module in _modules(package) if module.exports}
    return {"api/index.md": _index(package), **pages}


def _modules(module: Any) -> Iterator[Any]:
    if module.is_init_module:
        yield module
    for name in sorted(module.modules):
        inner = module.modules[name]
        if not inner.is_alias and not name.startswith("_"):
            yield from _modules(inner)


def _public(module: Any) -> dict[str, Any]:
    """The public names of a module, with their definitions."""
    names = [str(name) for name in module.exports or ()]
    return {name: _definition(module, name) for name in names if _definition(module, name) is not None}


def _definition(module: Any, name: str) -> Any:
    member = module.members.get(name)
    if member is not None and member.is_module:
        member = member.members.get(name)  # The module of a function has the function's name.
    return member.final_target if member is not None and member.is_alias else member


def _index(package: Any) -> str:
    rows = [
        [f"[`{module.path}`]({module.path}.md)", _first_line(module)] for module in _modules(package) if module.exports
    ]
    return f"{INTRODUCTION}\n{table(['package', 'content'], rows, 'll')}\n"


def _first_line(thing: Any) -> str:
    return str(thing.docstring.value).strip().split("\n\n")[0].replace("\n", " ") if thing.docstring else ""


def _page(module: Any, home: dict[str, str]) -> str:
    public = _public(module)
    elsewhere = {name for name in public if name in home and module.path != "amc_agents"}
    rows = [
        [f"[`{name}`]({'amc_agents.md' if name in elsewhere else ''}#{name.lower()})", _first_line(thing)]
        for name, thing in public.items()
    ]
    text = f"# {module.path}\n\n{_first_line(module)}\n\n{table(['name', ''], rows, 'll')}\n"
    return text + "".join(f"\n{_described(name, thing)}" for name, thing in public.items() if name not in elsewhere)


def _described(name: str, thing: Any) -> str:
    parts = [f"## {name}", f"```python\n{_signature(name, thing)}\n```", *_sections(thing)]
    if thing.is_class:
        parts += _members(name, thing)
    return "\n\n".join(part for part in parts if part) + "\n"


def _signature(name: str, thing: Any) -> str:
    if thing.is_attribute:
        return f"{name}: {thing.annotation}" if thing.annotation else f"{name} = {thing.value}"
    if thing.is_function:
        return _call(name, thing)
    bases = ", ".join(str(base) for base in thing.bases)
    start = thing.members.get("__init__")
    parameters = _parameters(start) if start is not None and start.is_function else []
    head = f"class {name}" + (f"({bases})" if bases else "")
    return head + ("\n\n" + _written(name, parameters, None) if parameters else "")


def _call(name: str, function: Any) -> str:
    prefix = "async def " if "async" in function.labels else "def "
    return prefix + _written(name, _parameters(function), function.returns)


def _written(name: str, parameters: list[str], returns: Any) -> str:
    tail = f" -> {returns}" if returns is not None else ""
    line = f"{name}({', '.join(parameters)}){tail}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){tail}"


def _parameters(function: Any) -> list[str]:
    written, keyword_only = [], False
    for parameter in function.parameters:
        if parameter.name in {"self", "cls"}:
            continue
        kind = parameter.kind.value
        keyword_only = keyword_only or kind == "variadic positional"
        if kind == "keyword-only" and not keyword_only:
            written.append("*")
            keyword_only = True
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        note = f": {parameter.annotation}" if parameter.annotation is not None else ""
        default = f" = {parameter.default}" if parameter.default is not None and not stars else ""
        written.append(f"{stars}{parameter.name}{note}{default}")
    return written


def _sections(thing: Any) -> list[str]:
    if thing.docstring is None:
        return []
    return [_section(section) for section in thing.docstring.parsed]


def _section(section: Any) -> str:
    kind, value = section.kind.value, section.value
    if kind == "text":
        return _code_fenced(str(value))
    if kind in {"parameters", "attributes", "other parameters"}:
        rows = [[f"`{item.name}`", _one_line(item.description)] for item in value]
        return table(["argument" if kind != "attributes" else "attribute", ""], rows, "ll")
    if kind == "raises":
        rows = [[f"`{item.annotation}`", _one_line(item.description)] for item in value]
        return table(["raises", "when"], rows, "ll")
    if kind in {"returns", "yields"}:
        return f"**{kind.capitalize()}** " + " ".join(_one_line(item.description) for item in value)
    if kind == "examples":
        return "\n\n".join(f"```pycon\n{text}\n```" if str(of.value) == "examples" else str(text) for of, text in value)
    if kind == "admonition":
        return f"**{section.title}** {_one_line(value.contents)}"
    raise ValueError(f"a docstring has a section of kind {kind!r}, which the API pages do not show yet")


def _one_line(text: str) -> str:
    return " ".join(str(text).split())


def _code_fenced(text: str) -> str:
    """Return a docstring's text with its indented blocks as fences of Python code."""
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        indented = line.startswith(INDENTED)
        if indented and not in_code and (not lines or not lines[-1].strip()):
            lines.append("```python")
            in_code = True
        elif in_code and not indented and line.strip():
            while not lines[-1].strip():
                lines.pop()
            lines += ["```", ""]
            in_code = False
        lines.append(line[len(INDENTED) :] if in_code else line)
    return "\n".join([*lines, "```"] if in_code else lines)


def _members(name: str, thing: Any) -> list[str]:
    fields = [
        [f"`{each.name}`", f"`{each.annotation}`" if each.annotation else "", _first_line(each)]
        for each in _own(thing)
        if each.is_attribute
    ]
    methods = [each for each in _own(thing) if each.is_function]
    parts = [table(["field", "type", ""], fields, "lll")] if fields else []
    for method in methods:
        parts += [f"### {name}.{method.name}", f"```python\n{_call(method.name, method)}\n```", *_sections(method)]
    return parts


def _own(thing: Any) -> list[Any]:
    members = [each.final_target if each.is_alias else each for each in thing.all_members.values()]
    return [
        each
        for each in members
        if not each.name.startswith("_") and each.docstring and each.path.startswith("amc_agents")
    ]
