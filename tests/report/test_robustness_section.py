"""The page's section on noise says the numbers, where linearity ends and whether the paper's formula holds, without proving too much."""

import numpy as np
import xarray as xr

from oplens.report.blocks import Limits
from oplens.report.robustness import example, robustness_section


def sweep(claim="measured", attrs=None, **changes):
    sigma = np.array([0.001, 0.01, 0.1])
    lines = {
        "deviation": [0.0021, 0.021, 0.3],
        "deviation_low": [0.0018, 0.018, 0.2],
        "deviation_high": [0.0024, 0.024, 0.4],
        "first_order": [0.002, 0.02, 0.2],
        "first_order_bound": [0.003, 0.03, 0.3],
        "remainder": [1e-6, 1e-4, 1e-2],
        "paper_claim": [2.0, 20.0, 200.0],
    }
    scalars = {
        "slope": 2.1,
        "slope_low": 1.8,
        "slope_high": 2.4,
        "first_order_slope": 2.5,
        "jacobian_norm": 3.0,
        "jacobian_norm_error": 0.25,
        "linear_until": 0.05,
        "remainder_order": 1.99,
        "lipschitz": 1200.0,
        "output_spread": 0.5,
        "n_parameters": 27000,
    }
    variables = {name: ("sigma", values) for name, values in lines.items()}
    variables |= {name: ((), value) for name, value in scalars.items()}
    variables |= {name: (variables[name][0], value) for name, value in changes.items()}
    ds = xr.Dataset(variables, coords={"sigma": sigma})
    ds["first_order_slope"].attrs["claim"] = claim
    known = {"noise": "absolute", "draws": 16, "level": 0.95, "n_answers": 8, "linear_limit": 0.1}
    return ds.assign_attrs({**known, "lipschitz_source": "measured", **(attrs or {})})


def findings(*args, **changes):
    (section,) = robustness_section(sweep(*args, **changes), Limits())
    return section.findings


def test_words_tell_the_numbers():
    found = findings()
    assert found[0] == (
        "Noise of σ = 0.01 on every weight moves an answer by 0.0210 on average (0.0180 to 0.0240), 4.2 % of how widely the answers "
        "differ."
    )
    assert found[1] == (
        "Up to σ = 0.05 the first order tells the movement to 10 %: per unit of noise it is 2.10 as measured (1.80 to 2.40), 2.00 to first "
        "order on the same draws. What it misses grows as σ to the power 1.99."
    )
    assert found[2].startswith("The Jacobian's norm, 3.00 (± 0.250), bounds the first order")
    assert found[2].endswith("1.20 times as large.")
    assert "P = 27,000, L = 1,200, the largest gain by the input that was found" in found[3]
    assert "states 20.0 there, 952 times what was measured: far too high here" in found[3]
    assert (
        "2.00 times what was measured: no bound in general all the same" in findings(paper_claim=[0.004, 0.042, 0.4])[3]
    )
    assert "moves it by 0.80" in found[4]


def test_exact_means_are_told():
    assert "draws; its mean over all noise is exactly 2.50." in findings("exact")[1]
    assert "The Jacobian's norm, 3.00, bounds" in findings(jacobian_norm_error=0.0)[2]


def test_relative_noise_and_one_answer():
    found = findings(attrs={"noise": "relative", "n_answers": 1}, output_spread=0.0)
    assert found[0] == (
        "Noise of 1 % of each weight tensor's size moves the answer by 0.0210 on average (0.0180 to 0.0240)."
    )
    assert found[1].startswith("Up to 5 % the first order")
    assert "(Theorem 2: σ‖θ‖ L for relative noise, P" in found[3]
    assert findings(attrs={"noise": "relative"}, linear_until=0.0)[1].startswith("Already at 0.1 %, the smallest")
    (section,) = robustness_section(sweep(attrs={"noise": "relative"}), Limits())
    assert "root mean square" in section.notes[0]


def test_where_linearity_ends_or_does_not():
    assert example(sweep()) == 1
    never = findings(linear_until=0.0, slope=np.nan)
    assert never[1].startswith("Already at σ = 0.001, the smallest noise tried, the first order misses more than 10 %")
    assert never[0].startswith("Noise of σ = 0.001")
    always = findings(linear_until=np.inf, remainder_order=np.nan)
    assert always[1].startswith("In the whole sweep, up to σ = 0.1, the first order")
    assert "power" not in always[1]


def test_the_papers_formula_is_contradicted_only_where_it_is():
    low = [1e-3, 1e-2, 1e-1]
    given = findings(paper_claim=low, attrs={"lipschitz_source": "given"})
    assert (
        "as given) states 0.0100 there, 2.10 times less than what was measured: the formula is contradicted."
        in given[3]
    )
    assert "if L is the true constant, the formula is contradicted" in findings(paper_claim=low)[3]
    assert "states 0 there, less than what was measured" in findings(paper_claim=[0.0] * 3)[3]
    assert "though within the interval" in findings(paper_claim=[0.0, 0.0195, 0.1])[3]
    (unknown,) = findings(lipschitz=np.nan, paper_claim=[np.nan] * 3)[3:]
    assert "was not evaluated" in unknown


def test_nothing_moves():
    still = {name: [0.0] * 3 for name in ("deviation", "deviation_low", "deviation_high", "first_order", "remainder")}
    found = findings(**still, first_order_slope=0.0, jacobian_norm=0.0, linear_until=0.0)
    assert found[0].startswith("Noise of σ = 0.001 on every weight moves an answer by 0 on average")
    assert not any("Jacobian's norm" in finding for finding in found)
    assert "more than what was measured" in found[2]


def test_the_table_holds_every_scale_and_no_group_no_section():
    ds = sweep()
    (section,) = robustness_section(xr.DataTree.from_dict({"/": xr.Dataset(), "/robustness": ds}), Limits())
    (table,) = section.tables
    assert table.rows[2] == ["0.1", "0.300", "0.200", "0.300", "0.0100", "200"]
    assert len(table.rows) == 3
    assert all(len(row) == len(table.header) for row in table.rows)
    assert "8 answers and 16 draws" in section.pictures[0].caption
    assert robustness_section(xr.DataTree.from_dict({"waves": xr.Dataset()}), Limits()) == []
