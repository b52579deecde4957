"""The page's section on smaller models says how few waves are enough, and never calls luck at one size enough."""

import numpy as np
import xarray as xr

from oplens.report.blocks import Limits
from oplens.report.reduction import reduction_section, smallest_as_good


def curve(accuracy, model_accuracy=0.9, agreement=None, skips=0):
    n = len(accuracy)
    variables = {
        "accuracy": ("n_waves", accuracy),
        "agreement": ("n_waves", agreement or accuracy),
        "margin_r2": ("n_waves", np.linspace(-1, 1, n)),
        "n_parameters": ("n_waves", [10 * 2**k for k in range(n)]),
        "n_features": ("n_waves", [k + 1 for k in range(n)]),
        "n_skips": ("n_waves", [skips] * n),
        "model_accuracy": ((), model_accuracy),
        "model_parameters": ((), 8898),
        "importance": ("rank", [1.0, 0.5]),
        "frequency": ("rank", [20.0, 15.0], {"units": "Hz"}),
        "decay_time": ("rank", [1.0, 2.0], {"units": "s"}),
    }
    coords = {"n_waves": [2**k for k in range(n)], "rank": [1, 2], "member": ("rank", ["a", "b"])}
    return xr.Dataset(variables, coords=coords, attrs={"total_waves": 2 ** (n - 1)})


def findings(ds):
    (section,) = reduction_section(ds, Limits())
    return section.findings


def test_the_smallest_size_that_larger_ones_confirm():
    assert smallest_as_good(curve([0.5, 0.9, 0.7, 0.89, 0.9])) == 3
    assert smallest_as_good(curve([0.5, 0.88, 0.88, 0.89, 0.9])) == 1
    assert smallest_as_good(curve([0.5, 0.6, 0.7, 0.8, 0.9])) is None, "the full model is no smaller one"
    unlabelled = curve([0] * 5, agreement=[0.5, 0.97, 0.98, 1.0, 1.0]).drop_vars(["accuracy", "model_accuracy"])
    assert smallest_as_good(unlabelled) == 2


def test_words_tell_the_numbers():
    found = findings(curve([0.5, 0.7, 0.89, 0.9, 0.9], agreement=[0.5, 0.6, 0.75, 0.99, 1.0], skips=1))
    assert found[0] == (
        "4 of 16 waves (40 of 8,898 parameters) are enough: the smaller model decides 89 % of the cases correctly, the full one 90 %; "
        "both decide alike in 75 %."
    )
    assert found[1].startswith("1 of its 3 hidden features keeps no wave")
    assert found[-1] == "The 2 most important waves have these frequencies: 20.0, 15.0 Hz."
    assert findings(curve([0.9, 0.9]))[0].startswith("1 of 2 waves (10 of 8,898 parameters) is enough")
    assert "No smaller model" in findings(curve([0.1, 0.9]))[0]
    unlabelled = curve([0] * 3, agreement=[0.5, 0.99, 1.0]).drop_vars(["accuracy", "model_accuracy"])
    assert findings(unlabelled)[0].endswith("decides 99 % of the cases as the full one does.")


def test_the_table_holds_every_size_and_the_full_model():
    ds = curve([0.5, 0.7, 0.9])
    (section,) = reduction_section(xr.DataTree.from_dict({"/": xr.Dataset(), "/reduction": ds}), Limits())
    (table,) = section.tables
    assert table.rows[1] == ["2", "20", "2", "70.0 %", "70.0 %", "0.000"]
    assert table.rows[-1] == ["full model", "8,898", "", "90.0 %", "100.0 %", "1.000"]
    assert all(len(row) == len(table.header) for row in table.rows)
    unlabelled = ds.drop_vars(["accuracy", "model_accuracy"])
    (section,) = reduction_section(unlabelled, Limits())
    assert len(section.tables[0].rows) == 3
    assert all(len(row) == len(section.tables[0].header) for row in section.tables[0].rows)


def test_small_pages_and_no_group():
    ds = curve([0.5, 0.9, 0.9])
    assert [len(reduction_section(ds, limits)[0].pictures) for limits in (Limits(), Limits(variants=1))] == [2, 1]
    assert reduction_section(xr.DataTree.from_dict({"waves": xr.Dataset()}), Limits()) == []


def test_refitted_decoders_are_told_apart():
    ds = curve([0.5, 0.6, 0.7, 0.9, 0.9])
    assert "Dashed" not in reduction_section(ds, Limits())[0].pictures[0].caption
    refitted = {
        "accuracy": [0.5, 0.89, 0.9, 0.9, 0.9],
        "agreement": [0.5, 0.8, 0.9, 0.95, 1.0],
        "margin_r2": [0.1, 0.5, 0.9, 1.0, 1.0],
    }
    ds["n_skips"] = ("n_waves", [0, 1, 0, 0, 0])
    both = ds.assign({f"refitted_{name}": ("n_waves", values) for name, values in refitted.items()})
    (section,) = reduction_section(both, Limits())
    assert "Dashed" in section.pictures[0].caption
    assert section.findings[0].startswith("8 of 16 waves")
    assert section.findings[1] == (
        "With the decoder fitted anew on training cases, 2 are enough: the smaller model decides 89 % of the cases correctly, the full "
        "one 90 %; both decide alike in 80 %."
    )
    assert section.findings[2].startswith("1 of its 2 hidden features keeps no wave"), "of the model named last"
    (table,) = section.tables
    assert table.rows[1] == ["2", "20", "2", "60.0 %", "60.0 %", "−0.500", "89.0 %", "80.0 %", "0.500"]
    assert all(len(row) == len(table.header) for row in table.rows)
    worse = both.assign(refitted_accuracy=("n_waves", [0.5, 0.5, 0.5, 0.9, 0.9]))
    assert not any("fitted anew" in finding for finding in findings(worse))
    only = both.assign(accuracy=("n_waves", [0.1, 0.1, 0.1, 0.1, 0.9]))
    assert "No smaller model" in findings(only)[0]
    assert "2 are enough" in findings(only)[1]
