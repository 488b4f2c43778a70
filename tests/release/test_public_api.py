"""The listing of public names; tests/test_exports.py compares it with the code."""

from __future__ import annotations

from release.public_api import LISTING, RELEASED, changes, unnamed_changes

BEFORE = "m.kept(x)\nm.changed(x)\nclass m.Gone() <- Base\nm.Gone.method(self)\nm.LIMIT: int\n"
AFTER = "m.kept(x)\nm.changed(x, y)\nm.LIMIT: int\nm.new()\n"


def listed(tmp_path, changelog):
    (tmp_path / "release").mkdir()
    (tmp_path / LISTING).write_text(AFTER)
    (tmp_path / RELEASED).write_text(BEFORE)
    return unnamed_changes(tmp_path, changelog)


def test_changed_and_removed_names_are_changes_and_new_ones_are_not():
    assert changes(BEFORE, AFTER) == ["m.Gone", "m.Gone.method", "m.changed"]
    assert changes(AFTER, AFTER) == []


def test_the_changelog_must_name_each_change(tmp_path):
    changelog = "## [Unreleased]\n\n- `changed` takes y; `Gone` and its `method` are removed.\n\n## [0.1.0]\n"
    assert listed(tmp_path, changelog) == []


def test_older_sections_of_the_changelog_do_not_count(tmp_path):
    reasons = listed(tmp_path, "## [Unreleased]\n\n- `changed`.\n\n## [0.1.0]\n\n- `Gone`, `method`.\n")
    assert [reason.split()[0] for reason in reasons] == ["m.Gone", "m.Gone.method"]


def test_before_the_first_release_nothing_has_changed(tmp_path):
    assert unnamed_changes(tmp_path, "") == []
