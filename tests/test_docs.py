"""Tables of the documentation that point at tests: what they point at must exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEFINITION = re.compile(r'^\[([^\]]+)\]: (\S+) "([^"]+)"$', re.MULTILINE)


def definitions():
    return DEFINITION.findall((ROOT / "docs" / "peers.md").read_text(encoding="utf-8"))


def names_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize(("label", "target", "test"), definitions())
def test_every_cell_names_a_test_that_exists(label, target, test):
    path = (ROOT / "docs" / target).resolve()
    assert path.is_relative_to(ROOT / "tests"), label
    assert test in names_in(path), f"{label}: {target} has no {test}"


def test_every_row_of_the_comparison_is_proved_or_says_no():
    text = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    known = {label for label, _, _ in definitions()}
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| |")]
    assert len(rows) > 20
    for row in rows:
        ours = row.split("|")[2].strip()
        if ours == "oplens":
            continue
        labels = re.findall(r"\]\[([^\]]+)\]", ours)
        assert labels or ours.split()[0].rstrip(",:") == "no", row
        assert set(labels) <= known, row
