"""Licences of everything that the core and its extras install, read from the SBOM, and which of them are refused.

- Permissive licences are accepted.
- The Mozilla Public License is accepted: it concerns its own files, which are installed unchanged.
- The LGPL is accepted for the packages in `OPTIONAL_LGPL`: an extra installs them, and nothing else imports them.
- Everything else is refused, unknown licences included.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from license_expression import ExpressionError, get_spdx_licensing

PERMISSIVE = frozenset(
    "0BSD Apache-2.0 Apache-2.0-WITH-LLVM-exception BSD-2-Clause BSD-3-Clause BSL-1.0 CC0-1.0 CNRI-Python HPND ISC MIT "
    "MIT-0 MIT-CMU PSF-2.0 Python-2.0 Unicode-3.0 Unlicense Zlib".split()
)
FILE_COPYLEFT = frozenset({"MPL-2.0"})
LGPL = frozenset({"LGPL-3.0", "LGPL-3.0-only", "LGPL-3.0-or-later"})
OPTIONAL_LGPL = frozenset({"psycopg", "psycopg-binary", "psycopg-pool"})
NAMES = {
    "Apache": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "BSD-3-Clause License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0",
}
"""Names and classifiers that packages use instead of an SPDX identifier."""
READ = {
    # The bill of materials has no licence for these versions. The terms in `licenses/LICENSE` of the installed
    # `.dist-info` are word for word those in requests (Apache-2.0) and urllib3 (MIT). sqlite-vec installs no licence
    # file: its metadata say "MIT License, Apache License, Version 2.0", which is read as both.
    "sqlite-vec 0.1.9": "Apache-2.0 AND MIT",
    "tiktoken 0.14.0": "MIT",
    "transformers 5.23.0": "Apache-2.0",
}
"""Licences that were looked up by hand, by package and version: another version must be looked up again."""


class Licence(NamedTuple):
    """Licence of an installed package."""

    package: str
    version: str
    expression: str
    """SPDX expression; "" if it is unknown."""
    accepted: bool


def licences(sbom: Path) -> list[Licence]:
    """Read the licences of all components of a CycloneDX file in JSON, sorted by package."""
    components = json.loads(sbom.read_text())["components"]
    found = []
    for component in components:
        name, version = component["name"], component["version"]
        expression = expression_of(component) or READ.get(f"{name.lower()} {version}", "")
        found.append(Licence(name, version, expression, accepted(name, expression)))
    return sorted(found, key=lambda licence: licence.package.lower())


def accepted(package: str, expression: str) -> bool:
    """Tell whether the project may depend on a package under a licence.

    >>> accepted("any", "MIT OR GPL-3.0-only"), accepted("any", "MIT AND GPL-3.0-only"), accepted("any", "")
    (True, False, False)
    """
    allowed = PERMISSIVE | FILE_COPYLEFT | (LGPL if package.lower() in OPTIONAL_LGPL else frozenset())
    try:
        parsed = get_spdx_licensing().parse(expression) if expression else None
    except ExpressionError:
        return False
    return parsed is not None and _holds(parsed, allowed)


def expression_of(component: dict[str, Any]) -> str:
    """Return the SPDX expression of a component, "" if it names none. Several licences are joined with AND."""
    stated = component.get("licenses", [])
    expressions = [entry["expression"] for entry in stated if "expression" in entry]
    identifiers = [entry["license"].get("id") for entry in stated if "license" in entry]
    names = [entry["license"].get("name", "") for entry in stated if "license" in entry]
    known = [NAMES.get(name.split(" :: ")[-1]) for name in names]
    # An SPDX statement is more precise than the classifiers beside it.
    best = expressions or [known for known in identifiers if known] or [name for name in known if name]
    return " AND ".join(dict.fromkeys(best))


def table(found: list[Licence]) -> str:
    """Format the licences as a Markdown table."""
    rows = [f"| {each.package} | {each.version} | {each.expression or 'unknown'} |" for each in found]
    return "\n".join(["| package | version | licence |", "|---|---|---|", *rows])


def refusals(found: list[Licence]) -> Iterator[str]:
    """Yield a sentence for each package that the project may not depend on."""
    for each in found:
        if not each.accepted:
            stated = each.expression or "no licence that is known here"
            remedy = "replace it, or name it in release/licences.py with the reason"
            yield f"{each.package} {each.version} has {stated}: {remedy}"


def _holds(expression: Any, allowed: frozenset[str]) -> bool:
    if not expression.args:
        return str(expression).replace(" ", "-") in allowed
    parts = (_holds(part, allowed) for part in expression.args)
    return any(parts) if type(expression).__name__ == "OR" else all(parts)
