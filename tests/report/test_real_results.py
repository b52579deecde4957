"""Pages of results that the library itself computed: sections that invented results could let go missing."""

import re

import pytest
import torch

from oplens import S4D, Pairs, S4DConfig, Waves, assemble, expand, render
from oplens.data import noisy_sinusoids


def page_of(data, tmp_path, **options):
    torch.manual_seed(0)
    config = S4DConfig(
        d_input=1, n_classes=len(data.classes), d_model=3, d_state=6, classes=data.classes, sampling_rate=64.0
    )
    tree = assemble(expand(S4D(config), data), data, **options)
    return render(tree, tmp_path / "page.html").read_text(encoding="utf-8")


def section(page, title):
    (found,) = re.findall(rf"<section(?:(?!<section).)*?{re.escape(title)}.*?</section>", page, re.DOTALL)
    return found


def test_class_means_of_pairs_are_compared_between_the_two_classes(tmp_path):
    data = noisy_sinusoids(n_cases=24, n_timepoints=64, sampling_rate=64.0, seed=0)
    page = page_of(data, tmp_path)
    for title in ("Which waves act together?", "Which parts act together?"):
        text = section(page, title)
        assert "Difference between the classes" in text
        assert "Mean size, whatever the sign" in text
        assert "all of one class" not in text


def test_class_means_of_one_class_are_not_compared(tmp_path):
    data = noisy_sinusoids(n_cases=24, n_timepoints=64, sampling_rate=64.0, seed=0)
    torch.manual_seed(0)
    config = S4DConfig(d_input=1, n_classes=2, d_model=3, d_state=6, classes=data.classes, sampling_rate=64.0)
    op = expand(S4D(config), data)
    one = data.select(data.y == data.classes[0])
    tree = assemble(op, one, partitions=[Waves(), Pairs(Waves(), mean="class")])
    text = section(render(tree, tmp_path / "page.html").read_text(encoding="utf-8"), "Which waves act together?")
    assert "Difference between the classes" not in text
    assert "one class" in text


@pytest.mark.parametrize("n_classes", [2, 3])
def test_every_section_of_a_full_result_is_there(n_classes, tmp_path):
    frequencies = (5.0, 10.0, 20.0)[:n_classes]
    data = noisy_sinusoids(n_cases=30, n_timepoints=64, sampling_rate=64.0, frequencies=frequencies, seed=0)
    page = page_of(data, tmp_path)
    for title in (
        "How much of the model is a short sum?",
        "Where, and at which frequencies?",
        "When in the case?",
        "Which waves?",
        "Which waves act together?",
        "Which parts act together?",
        "Single decisions, term by term",
        "How to read this page",
    ):
        assert title in section(page, title)
