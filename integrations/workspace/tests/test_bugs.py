from itertools import islice

import pytest
from amc_agents_workspace import DEFECTS, MODULES, Mutation, generate_bugs, mutations
from amc_agents_workspace.bugs import check, original, suite_of

from amc_agents.errors import ConfigurationError


def changed(source):
    return {mutation.apply(source).strip() for mutation in mutations(source)}


def test_each_kind_of_mutation_changes_a_part_of_a_line():
    assert changed("a < b") == {"a <= b", "a > b"}
    assert changed("(a + b) * (c - d)") == {"(a - b) * (c - d)", "(a + b) + (c - d)", "(a + b) * (c + d)"}
    assert changed("a <= b == c") == {"a < b == c", "a >= b == c", "a <= b != c"}
    assert changed("a and b or c") == {"a or b or c", "a and b and c"}
    assert changed("not x") == {"x"}
    assert changed("x[7] if True else 0") == {
        "x[6] if True else 0",
        "x[8] if True else 0",
        "x[7] if False else 0",
        "x[7] if True else 1",
    }
    assert changed("min(a)") == {"max(a)"}
    assert changed("any(a not in b)") == {"all(a not in b)", "any(a in b)"}
    assert changed('"1 < 2"  # 3 + 4') == set()


def test_a_mutation_keeps_the_other_lines():
    assert Mutation(line=2, first=4, last=5, text="9").apply("a = 1\nb = 2\nc = 3\n") == "a = 1\nb = 9\nc = 3\n"


@pytest.mark.parametrize("module", [name for names in MODULES.values() for name in names])
def test_the_suite_of_the_original_pass_and_there_is_much_to_break(module):
    report = check(module, original(module))
    assert report.success
    assert len(report.errors) == suite_of(module).count("\ndef test_")
    assert len(mutations(original(module))) >= 15


def test_bugs_differ_fail_and_can_be_generated_again():
    bugs = list(generate_bugs(12, "train"))
    assert len({task.payload.source for task in bugs}) == len({task.id for task in bugs}) == 12
    assert {task.payload.module for task in bugs} <= set(MODULES["train"])
    assert [*generate_bugs(3, "train", 5)] == bugs[5:8]
    for task in islice(bugs, 4):
        bug = task.payload
        report = check(bug.module, bug.source)
        assert not report.success
        assert str(report) in task.instruction
        assert DEFECTS[0] <= len({defect.line for defect in bug.defects}) <= DEFECTS[1]
        source = original(bug.module)
        for defect in bug.defects:
            assert not check(bug.module, defect.apply(source)).success, "each defect alone makes a test fail"
        pairs = zip(bug.source.split("\n"), source.split("\n"), strict=True)
        wrong = {number for number, (line, right) in enumerate(pairs, 1) if line != right}
        assert wrong == {defect.line for defect in bug.defects}


def test_the_splits_share_no_module():
    assert not set(MODULES["train"]) & set(MODULES["test"])
    with pytest.raises(ConfigurationError, match="train, test"):
        list(generate_bugs(1, "other"))
