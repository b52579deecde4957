"""The page's sections on a construction tell in numbers what was read, certified and run."""

import re

import numpy as np
import pytest
import torch
import xarray as xr

from oplens.construction import FunctionTable, build_bits, build_depth2, build_fourier, build_lookup, verify
from oplens.construction.drawing import draw_real, draw_table
from oplens.construction.filters import ExponentialSum, FiniteKernel
from oplens.construction.formulas import formula
from oplens.construction.real_functions import MeasuredError, sup_error
from oplens.construction.ssm import build_ssm
from oplens.construction.ssm_drawing import draw_ssm
from oplens.construction.ssm_verification import verify_ssm
from oplens.figures.style import significant
from oplens.report import render
from oplens.report.blocks import Limits
from oplens.report.construction import construction_section


def tree(build=build_lookup, length=5, spoil=None, dtypes=("float64", "float16"), examples=None):
    table = FunctionTable.from_family("parity", 2, length)
    model, certificate = build(table)
    if spoil is not None:
        with torch.no_grad():
            spoil(model)
    return draw_table(model, table, [(certificate, verify(model, table, dtypes))], examples)


@pytest.fixture(scope="module")
def lookup():
    return tree()


@pytest.fixture(scope="module")
def fourier():
    f = formula("abs(x1 - x2)")
    model, certificate = build_fourier(f, 2, 3, ("l1", 1.0))
    found = sup_error(model, f, points=300)
    return draw_real(model, f, certificate, found, name="abs(x1 - x2)"), certificate, found


def test_numbers_are_read_back_within_a_bound_and_symbols_exactly(lookup, fourier):
    (symbols, _), (numbers, _) = (construction_section(found, Limits()) for found in (lookup, fourier[0]))
    assert symbols.pictures[0].caption.endswith("Claim: exact.")
    assert symbols.findings[0].endswith("are those of the input.")
    assert numbers.pictures[0].caption.endswith("Claim: bound.")
    allowed = significant(float(fourier[0]["construction_states"].attrs["tolerance"]))
    assert f"are those of the input, within {allowed}, the bound" in numbers.findings[0]


def test_what_was_read_is_counted(lookup):
    working, proof = construction_section(lookup, Limits())
    # Parity of five bits: 5 symbols, then 4 of 2, then 2 of 3 and the whole.
    read = 4 * (5 + 2 * 4 + 3 * 2 + 5)
    assert working.findings[0].startswith(f"All {read} symbols that the answers to 4 inputs are made of were read back")
    assert working.findings[1].startswith(
        "3 of 3 layers look at other positions; in the last layer 2 hidden units fire"
    )
    assert "one gate per possible string" in working.findings[2]
    assert [picture.id for picture in working.pictures] == ["construction-flow", "construction-attention"]
    assert proof.findings[1] == "Run: all 32 inputs in 4 passes (float64, float16): no output is wrong."
    assert proof.findings[0].startswith("Certified, claim exact: the function's value at every input")
    share = re.search(r"([\d,]+) weights are not 0, ([\d.]+) % of the ([\d,]+) places", proof.findings[-1])
    few, part, all_ = (float(number.replace(",", "")) for number in share.groups())
    assert (few, all_) == (float(lookup["construction"].sparse), float(lookup["construction"].dense))
    assert part == pytest.approx(100 * few / all_, abs=0.6)


def test_inputs_are_switched_and_fewer_on_smaller_pages(lookup):
    working, _ = construction_section(lookup, Limits())
    names = ["".join(row) for row in lookup["construction_states"].text.values]
    assert list(working.switch.choices[0].options.values()) == names
    assert {picture.switch for picture in working.pictures} == {working.switch.id}
    assert set(working.pictures[0].variants) == {"0", "1", "2", "3"}
    smaller, _ = construction_section(lookup, Limits(cases=6))
    assert set(smaller.pictures[0].variants) == {"0", "1"}
    alone, _ = construction_section(tree(examples=[[1, 0, 1, 1, 0]]), Limits())
    assert alone.switch is None
    assert "the answers to one input are made of" in alone.findings[0]


def test_a_broken_model_is_told_first():
    def spoil(model):
        model.block(1).attention.output.weight.zero_()

    working, proof = construction_section(tree(build_bits, spoil=spoil), Limits())
    assert working.findings[0].startswith("The model does NOT do what it was built for")
    assert working.findings[0].endswith("first after layer 2.")
    assert re.search(r"\d+ outputs are WRONG", proof.findings[1])
    assert "(wrong answer)" in next(iter(working.switch.choices[0].options.values()))


def test_tables_hold_sizes_and_passes(lookup):
    _, proof = construction_section(lookup, Limits())
    sizes, runs = proof.tables
    ds = lookup["construction"]
    assert [row[2] for row in sizes.rows] == [f"{int(v):,}" for v in ds.hidden_units]
    assert [row[4] for row in sizes.rows] == [f"{int(v):,}" for v in ds.nonzeros]
    assert [row[3] for row in sizes.rows] == ["2", "2", "2"]
    assert [row[:4] for row in runs.rows] == [
        ["float64", "as built", "32", "0"],
        ["float64", "shuffled 1", "32", "0"],
        ["float16", "as built", "32", "0"],
        ["float16", "shuffled 1", "32", "0"],
    ]
    assert [picture.id for picture in proof.pictures] == ["construction-margins", "construction-weights"]
    assert proof.notes[0].startswith("Given: IEEE arithmetic")


def test_a_dtype_that_is_not_certified_is_named(lookup):
    worse = lookup.copy(deep=True)
    margins = worse["construction_margins"].to_dataset()
    margins["delivered"].values[2] = 1.0
    worse["construction_margins"] = xr.DataTree(margins)
    _, proof = construction_section(worse, Limits())
    assert "Not certified in float16: the weights deliver less than exactness needs there." in proof.findings


def test_reals_tell_bound_and_error(fourier):
    results, certificate, found = fourier
    working, proof = construction_section(results, Limits())
    assert "read back" in working.findings[0]
    assert "numbers" in working.findings[0]
    assert [picture.id for picture in working.pictures] == ["construction-flow", "construction-terms"]
    assert next(iter(working.switch.choices[0].options.values())).endswith("(largest error found)")
    assert (
        f"The largest error found at {found.evaluations:,} points is {found.value:.3g}, {certificate.error_bound / found.value:.2g} times below "
        f"the bound of {certificate.error_bound:.3g}." in proof.findings
    )
    assert [picture.id for picture in proof.pictures] == [
        "construction-errors",
        "construction-weights",
        "construction-section",
        "construction-surface",
    ]
    assert proof.pictures[2].switch == proof.switch.id
    assert len(proof.tables) == 3
    assert results.attrs["headline"].startswith("abs(x1 - x2) is computed in 2 layers within")


def test_an_error_above_the_bound_is_shouted():
    f = formula("x1")
    model, certificate = build_fourier(f, 1, 2, ("max", 1.0))
    _, proof = construction_section(draw_real(model, f, certificate, MeasuredError(9.0, (0.5,), 3)), Limits())
    assert any("is 9, ABOVE the bound" in finding for finding in proof.findings)


def test_without_attention_there_is_no_map_of_it():
    working, _ = construction_section(tree(length=1), Limits())
    assert [picture.id for picture in working.pictures] == ["construction-flow"]
    working, _ = construction_section(tree(build_depth2, 3), Limits())
    assert "what they then fetch" not in working.pictures[1].caption
    assert "1 of 2 layers looks" in working.findings[1]


def test_other_results_have_no_such_section(two_class):
    assert construction_section(two_class, Limits()) == []


def test_a_certificate_alone_is_shown_without_a_run(lookup):
    certificate = xr.DataTree.from_dict(
        {"/": xr.Dataset(attrs={"title": "t"}), "/construction": lookup["construction"].to_dataset()}
    )
    (proof,) = construction_section(certificate, Limits())
    assert [picture.id for picture in proof.pictures] == ["construction-weights"]
    assert proof.findings[0].startswith("Certified")


def test_the_page_holds_both_sections(lookup, tmp_path):
    page = render(lookup, tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'id="construction"' in page
    assert 'id="construction-proof"' in page


def test_a_filter_is_told_by_its_kernels_and_signals():
    """Weights in float32 have a larger bound of their own, so their errors are not held against that of float64."""
    kernel = ExponentialSum.butterworth(4, 0.2)
    model, certificate = build_ssm(kernel)
    found = verify_ssm(model, kernel, dtypes=["float64", "float32"], length=64)
    results = draw_ssm(model, kernel, None, 0.0, certificate, found, "low-pass")
    working, proof = construction_section(results, Limits())
    assert [picture.id for picture in working.pictures] == [
        "construction-kernel",
        "construction-gain",
        "construction-waves",
    ]
    assert working.findings[0] == "One filter of 2 decaying waves."
    assert [picture.id for picture in proof.pictures] == ["construction-errors", "construction-section"]
    assert [len(table.rows) for table in proof.tables] == [12]
    largest = max(check.largest_error for check in found.checks if check.dtype == "float64")
    assert largest < certificate.error_bound < max(check.largest_error for check in found.checks)
    assert f"The largest error found on 6 signals is {significant(largest)}, " in proof.findings[1]
    assert "ABOVE" not in " ".join(proof.findings)
    assert proof.pictures[0].variants[""].data[0].x[-1] == pytest.approx(largest, rel=1e-6)
    assert proof.findings[-1].endswith("of the dense model; it has 1 feature.")
    assert ".." not in proof.findings[0]


def test_an_error_that_attains_its_bound_is_no_number_of_times_below():
    kernel = FiniteKernel.matched(np.sin(np.arange(20.0)))
    model, certificate = build_ssm(kernel, n_modes=3)
    results = draw_ssm(model, kernel, None, 0.0, certificate, verify_ssm(model, kernel, length=64), "matched")
    _, proof = construction_section(results, Limits())
    assert "which all but attains the bound of" in proof.findings[1]
