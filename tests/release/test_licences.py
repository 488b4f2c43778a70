"""Which licences of dependencies are refused. Needs the tools of `make release`."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("license_expression")

from release.licences import accepted, expression_of, licences, refusals, table

ACCEPTED = ["MIT", "MPL-2.0 AND (Apache-2.0 OR MIT)", "Apache-2.0 WITH LLVM-exception", "MIT OR GPL-3.0-only"]
REFUSED = ["", "GPL-3.0-only", "AGPL-3.0-only", "MIT AND GPL-2.0-only", "Own-Terms", "MIT ("]
STATED = [
    ([{"expression": "MIT OR ISC"}, {"license": {"name": "License :: OSI Approved :: MIT License"}}], "MIT OR ISC"),
    ([{"license": {"id": "MIT"}}, {"license": {"name": "declared license of 'a'"}}], "MIT"),
    ([{"license": {"name": "License :: OSI Approved :: BSD License"}}], "BSD-3-Clause"),
    ([{"license": {"id": "MIT"}}, {"license": {"id": "GPL-3.0-only"}}], "MIT AND GPL-3.0-only"),
    ([{"license": {"name": "Ask us"}}], ""),
    ([], ""),
]


@pytest.mark.parametrize("expression", ACCEPTED)
def test_permissive_and_file_copyleft_are_accepted(expression):
    assert accepted("any", expression)


@pytest.mark.parametrize("expression", REFUSED)
def test_copyleft_unknown_and_unreadable_are_refused(expression):
    assert not accepted("any", expression)


def test_the_lgpl_is_for_named_packages():
    assert accepted("psycopg", "LGPL-3.0-only")
    assert not accepted("any", "LGPL-3.0-only")


@pytest.mark.parametrize(("stated", "expression"), STATED)
def test_the_licence_of_a_component(stated, expression):
    assert expression_of({"licenses": stated}) == expression


def test_a_bill_of_materials_becomes_a_table_and_refusals(tmp_path):
    components = [
        {"name": "zeta", "version": "2", "licenses": [{"license": {"id": "GPL-3.0-only"}}]},
        {"name": "Alpha", "version": "1", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "silent", "version": "3"},
    ]
    path = tmp_path / "sbom.json"
    path.write_text(json.dumps({"components": components}))
    found = licences(path)
    rows = ["| Alpha | 1 | MIT |", "| silent | 3 | unknown |", "| zeta | 2 | GPL-3.0-only |"]
    assert table(found).splitlines()[2:] == rows
    assert [reason.split(":")[0] for reason in refusals(found)] == [
        "silent 3 has no licence that is known here",
        "zeta 2 has GPL-3.0-only",
    ]


@pytest.mark.parametrize(("version", "known"), [("5.23.0", True), ("5.24.0", False)])
def test_a_licence_that_was_looked_up_holds_for_that_version_only(tmp_path, version, known):
    path = tmp_path / "sbom.json"
    path.write_text(json.dumps({"components": [{"name": "transformers", "version": version}]}))
    assert [bool(each.expression) for each in licences(path)] == [known]
