"""The section on certificates says its numbers first, and they are those of the result."""

import re

import numpy as np
import xarray as xr

from oplens.report.blocks import Limits
from oplens.report.certificates import certificate_section
from synthetic_certificates import certificates


def down(value):
    """Three digits of a number between 0.001 and 0.1, cut off."""
    digits = 4 if value >= 0.01 else 5
    return f"{int(value * 10**digits) / 10**digits:g}"


def tree_of(ds, order=2, units="as in the data", cases=(101, 139, 120)):
    signal = (("case", "channel", "time"), np.zeros((len(cases), 2, 3)), {"units": units})
    inputs = xr.Dataset({"signal": signal}, coords={"case": list(cases)})
    waves = xr.Dataset({"share": ("case", [0.0])}, attrs={"order": order})
    return xr.DataTree.from_dict({"/certificates": ds, "/inputs": inputs, "/waves": waves})


def test_without_the_group_there_is_no_section():
    assert certificate_section(xr.DataTree.from_dict({"/": xr.Dataset()}), Limits()) == []


def test_the_first_finding_is_the_largest_box_that_holds_for_half():
    ds = certificates()
    (section,) = certificate_section(tree_of(ds), Limits())
    share = ds.robust_fraction.values
    assert share[2] >= 0.5 > share[3]
    robust = f"Robustness: {100 * share[2]:.0f} % of the 40 decisions cannot be flipped by any change of at most 0.02 standard deviations"
    assert section.findings[0].startswith(
        f"{robust} (0.04 to 0.1 in the units of the data), in every channel and step at once."
    )
    assert f"hold to {down(np.median(ds.robust_radius))} standard deviations" in section.findings[1]
    finite = np.isfinite(ds.flipped_radius.values)
    ratio = np.median(ds.flipped_radius.values[finite] / ds.robust_radius.values[finite])
    assert f"at {ratio:.3g} times the certified size (median of 39)" in section.findings[1]
    wrong = (ds.label != ds.predicted).values
    right, bad = (down(np.median(ds.robust_radius.values[keep])) for keep in (~wrong, wrong))
    assert section.findings[2] == f"Right decisions hold to {right}, wrong ones to {bad} standard deviations (medians)."


def test_truncation_is_said_of_the_pages_own_order():
    ds = certificates()
    fractions = ds.certified_fraction.values
    for order, k in ((2, 1), (8, 2)):
        (section,) = certificate_section(tree_of(ds, order), Limits())
        radius = max(r for r, f in zip(ds.radius.values, fractions[k], strict=True) if f >= 0.5)
        share = 100 * fractions[k][list(ds.radius.values).index(radius)]
        if radius > 0:
            expected = (
                f"Truncation, another question: the operator cut after orders 1 to {order} (Hermite polynomials) decides as the model does "
                f"everywhere in the box of {radius:g} standard deviations for {share:.0f} % of the cases, and at the cases themselves for "
                f"{100 * fractions[k][0]:.0f} %."
            )
        else:
            expected = (
                f"Truncation, another question: the operator cut after orders 1 to {order} (Hermite polynomials) decides as the model does "
                f"at the cases themselves for {share:.0f} % of them, and in no larger box for half."
            )
        assert section.findings[-1] == expected
    assert max(r for r, f in zip(ds.radius.values, fractions[2], strict=True) if f >= 0.5) > 0


def test_an_order_that_was_not_asked_gives_way_to_the_lowest_that_holds():
    ds = certificates()
    (section,) = certificate_section(tree_of(ds, order=3), Limits())
    lowest = next(
        k for k, row in zip(ds.order.values, ds.certified_fraction.values, strict=True) if (row[1:] >= 0.5).any()
    )
    assert f"orders 1 to {lowest} (" in section.findings[-1]


def test_where_no_radius_asked_for_holds_for_half_the_median_itself_is_said():
    for asked in ([3], [0], [0, 3]):
        ds = certificates().isel(radius=asked)
        robust, *_, truncation = certificate_section(ds, Limits())[0].findings
        half = np.median(ds.robust_radius)
        (shown,) = re.findall(
            r"Robustness: 50 % of the 40 decisions cannot .* at most (\S+) standard deviations", robust
        )
        assert half - 1e-4 < float(shown) <= half
        if asked == [3]:
            assert truncation.endswith("decides as the model does in none of these boxes for half of the cases.")
        else:
            share = 100 * float(ds.certified_fraction[1, 0])
            beyond = "" if asked == [0] else ", and in no larger box for half"
            assert truncation.endswith(f"at the cases themselves for {share:.0f} % of them{beyond}.")


def test_one_decision_is_spoken_of_as_one():
    findings = certificate_section(certificates().isel(case=[30]), Limits())[0].findings
    assert findings[0].startswith("Robustness: the one decision cannot be flipped")
    assert findings[1].startswith("It holds to ")
    assert "median" not in " ".join(findings)


def test_units_of_the_data_are_named_once_where_radii_count_them():
    (section,) = certificate_section(certificates(units="as in the data"), Limits())
    assert "at most 0.02 in the units of the data, in every channel" in section.findings[0]
    (section,) = certificate_section(tree_of(certificates(), units="µV"), Limits())
    assert "0.02 standard deviations (0.04 to 0.1 µV), in every channel" in section.findings[0]


def test_tables_hold_the_fractions_and_the_chosen_cases():
    ds = certificates()
    (section,) = certificate_section(tree_of(ds), Limits())
    fractions, cases = section.tables
    assert fractions.header == ["radius", "robust", "order 1", "orders 1–2", "orders 1–8"]
    for k, row in enumerate(fractions.rows):
        shares = [ds.robust_fraction.values[k], *ds.certified_fraction.values[:, k]]
        assert (
            row == [f"{ds.radius.values[k]:.3g}" if k else "0.00", *(f"{100 * s:.0f} %" for s in shares)]
            or row[0] == "0"
        )
    assert cases.header == ["case", "decided", "labelled", "certified to", "flipped at", "order at 0.02"]
    assert [row[0] for row in cases.rows] == ["case 101", "case 139", "case 120"]
    for row in cases.rows:
        case = int(row[0].split()[1])
        one = ds.sel(case=case)
        order = int(one.certified_order.sel(radius=0.02))
        assert row[1:] == [
            str(one.predicted.values),
            str(one.label.values),
            down(float(one.robust_radius)),
            f"{float(one.flipped_radius):.3g}",
            str(order) if order else "none",
        ]
    (shorter,) = certificate_section(tree_of(ds), Limits(cases=2))
    assert len(shorter.tables[1].rows) == 2
    (never,) = certificate_section(tree_of(ds, cases=(105,)), Limits())
    assert never.tables[1].rows[0][4] == "not found"


def test_without_chosen_cases_the_strongest_and_the_weakest_stand_there():
    ds = certificates(labelled=False)
    (section,) = certificate_section(ds, Limits())
    assert [row[0] for row in section.tables[1].rows] == ["case 139", "case 100"]
    assert "labelled" not in section.tables[1].header
    assert not any("Right decisions" in finding for finding in section.findings)


def test_notes_say_the_set_what_is_not_claimed_and_what_is_known_of_all_inputs():
    (section,) = certificate_section(certificates(), Limits())
    limits, of, everything = section.notes
    assert "does not say that a decision is right" in limits
    assert of == "The set of inputs: box around each case."
    assert everything == "For all inputs together nothing is known."
    (bare,) = certificate_section(certificates().drop_attrs(), Limits())
    assert len(bare.notes) == 1
