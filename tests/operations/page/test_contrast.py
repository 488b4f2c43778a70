"""The colours of the page against WCAG 2.1: 4.5 for text, 3 for marks that carry a meaning."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = files("amc_agents.operations.page").joinpath("page.css").read_text(encoding="utf-8")
_SCHEMES = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
LIGHT, DARK = (dict(re.findall(r"--(\w[\w-]*): (#[0-9a-f]{6});", block)) for block in _SCHEMES[:2])


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_and_marks_can_be_told_from_the_paper(scheme):
    for name in ("ink", "muted", "accent", "good", "bad", "s1", "s2", "s3", "s4", "s5", "s6"):
        assert contrast(scheme[name], scheme["paper"]) >= 4.5, name
        assert contrast(scheme[name], scheme["raised"]) >= 4.5, name
    assert contrast(scheme["dot-edge"], scheme["paper"]) >= 3


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_values_rise_in_contrast_so_that_they_can_be_told_without_hue(scheme):
    rising = [contrast(scheme[f"v{number}"], scheme["paper"]) for number in range(6)]
    assert rising == sorted(rising)
    assert rising[-1] > 3 * rising[0]


def test_both_schemes_define_the_same_colours():
    assert LIGHT.keys() == DARK.keys()
