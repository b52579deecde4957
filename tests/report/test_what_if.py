"""The what-if section and the terminal's lines say the numbers of their Datasets, and nothing where there is nothing to say."""

import re

import numpy as np
import pytest
import torch
import xarray as xr

from oplens import S4D, S4DConfig, expand
from oplens.errors import ArgumentError
from oplens.explanation import Channels, Waves
from oplens.explanation.interventions.ablation import ablate
from oplens.explanation.interventions.changes import what_if_groups
from oplens.explanation.interventions.steering import steer
from oplens.report.blocks import Limits
from oplens.report.what_if import what_if_lines, what_if_section
from oplens.results import read_results, write_results


@pytest.fixture(scope="module")
def op():
    torch.manual_seed(0)
    config = S4DConfig(
        2, 2, 4, 8, dt_min=0.05, dt_max=0.4, channels=("C3", "Cz"), classes=("left", "right"), sampling_rate=50.0
    )
    model = S4D(config).double()
    X = np.random.default_rng(0).normal(size=(9, 2, 40))
    with torch.no_grad():
        model.decoder.weight *= 3
        model.decoder.bias -= model(torch.from_numpy(X).transpose(1, 2)).mean(0)
    return expand(model, X)


@pytest.fixture(scope="module")
def data(op):
    return op.training.X.astype(float)


@pytest.fixture(scope="module")
def steered(op, data):
    return steer(op, data)


def tree(**groups):
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), **{f"/{k}": ds for k, ds in groups.items()}})


def test_files_without_the_groups_have_no_such_section(steered):
    assert what_if_section(tree(waves=steered), Limits()) == []


def test_findings_say_sizes_bounds_and_what_the_operator_does_alone(steered):
    (section,) = what_if_section(steered, Limits())
    said = " ".join(section.findings)
    norm, bound = (float(np.median(steered[name])) for name in ("norm", "norm_lower_bound"))
    assert f"median norm {norm:.3g} " in said
    assert "flip 9 of 9 decisions" in said
    assert f"none below {bound:.3g} (median)" in said
    assert f"{int(steered.first_flipped.sum())} of 9 flip" in said
    gap = float(abs(steered.first_predicted_target - steered.first_achieved_target).median())
    assert f"misses the model's by {gap:.3g}" in said
    share = 100 * steered.channel_energy.mean("case")
    assert f"{float(share.max()):.0f} % in {steered.channel.values[int(share.values.argmax())]}" in said


def test_cases_are_told_in_a_table_and_drawn_by_choice(steered):
    (section,) = what_if_section(tree(**what_if_groups(steered, [4, 1, 7])), Limits(cases=2))
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["4", "1"]
    row = steered.isel(case=4)
    assert table.rows[0][1] == f"{row.predicted.item()}\u00a0→\u00a0{row.to.item()}"
    assert table.rows[0][2] == f"{float(row.norm):.3g}"
    assert table.rows[0][6] == f"{float(row.start_target):+.2f}".replace("-", "−")
    assert "reached" not in table.header
    overlay = section.pictures[0]
    assert list(overlay.variants) == ["4", "1"]
    assert overlay.switch == section.switch.id
    numbers_only = what_if_section(tree(what_if=what_if_groups(steered, [0])["what_if"]), Limits())[0]
    assert numbers_only.switch is None
    assert len(numbers_only.pictures) == len(section.pictures) - 1


def test_one_drawn_case_needs_no_question(steered):
    (section,) = what_if_section(tree(**what_if_groups(steered, [3])), Limits())
    assert section.switch is None
    assert list(section.pictures[0].variants) == [""]


def test_a_file_says_what_the_result_said(steered, op, data, tmp_path):
    groups = {**what_if_groups(steered, [0, 2]), "ablation_waves": ablate(op, data, ["left"] * 9)}
    sections = what_if_section(tree(**groups), Limits())
    read = what_if_section(read_results(write_results(tree(**groups), tmp_path / "r.nc")), Limits())
    assert [s.findings for s in sections] == [s.findings for s in read]
    assert [s.tables for s in sections] == [s.tables for s in read]
    np.testing.assert_allclose(groups["what_if_cases"].delta, steered.delta.isel(case=[0, 2]), atol=1e-5)
    assert groups["what_if_cases"].delta.dtype == np.float32
    assert "signal" not in groups["what_if"]


def test_groups_of_unknown_cases_are_refused(steered):
    with pytest.raises(ArgumentError, match="no case 12"):
        what_if_groups(steered, [0, 12])


def test_what_is_out_of_reach_or_there_already_is_said(op, data):
    ds = steer(op, data, to="left", margin=1e4, refine=False)
    (section,) = what_if_section(ds, Limits())
    said = " ".join(section.findings)
    count = int((~ds.reachable).sum())
    assert ("no allowed change gets there" in said) == (count > 0)
    assert section.tables[0].header[-1] == "reached"
    already = steer(op, data, to="left")
    stay = int((already.predicted == "left").sum())
    assert f"; {stay} are there already." in what_if_section(already, Limits())[0].findings[0]
    blind = op.model.config.channels[0]
    still = already.isel(case=already.predicted.values == "left")
    (section,) = what_if_section(still, Limits())
    assert section.findings[0].startswith("No change that was found")
    assert section.pictures == []
    assert blind not in section.tables[0].rows[0]


def test_lines_tell_every_case_and_sum_up(steered):
    lines = what_if_lines(steered)
    assert len(lines) == 10
    for k in (0, 5):
        row = steered.isel(case=k)
        words = lines[k]
        assert words.startswith(f"case {k}: {row.predicted.item()} -> {row.to.item()}: norm {float(row.norm):.3g} ")
        largest = int(row.channel_energy.values.argmax())
        assert f"rms {float(row.rms[largest]):.3g} in data units in {row.channel.values[largest]}" in words
        assert f"{100 * float(row.channel_energy.max()):.0f} % in {row.channel.values[largest]}" in words
        band = int(row.band_energy.values.argmax())
        assert f"at {row.band.values[band]}" in words
        assert f"in time window {int(row.window_energy.values.argmax()) + 1} of 8" in words
        assert f"margin {float(row.start_target):+.2f}".replace("-", "−") in words
        assert "NOT reached" not in words
    assert "flip 9 of 9 decisions" in lines[-1]


def test_lines_of_cases_that_stay_and_of_changes_that_fail(op, data):
    already = what_if_lines(steer(op, data, to="left"))
    stay = [k for k, line in enumerate(already) if "decided so already" in line]
    logits = op.model(torch.from_numpy(data).transpose(1, 2)).numpy()
    assert stay == np.flatnonzero(logits.argmax(1) == 0).tolist()
    far = steer(op, data, to="left", margin=1e4, refine=False)
    lines = what_if_lines(far)
    assert all("NOT reached" in line for line in lines[:-1])
    blind = far.assign(norm=0 * far.norm, reached=~far.reached.copy(data=np.ones(9, bool)))
    moved = [line for line in what_if_lines(blind)[:-1] if "no allowed change moves it" in line]
    assert len(moved) == 9
    bounded = far.assign(reach=far.reach.copy(data=np.full(9, 2.5)))
    assert "(the operator reaches +2.50 at most)" in what_if_lines(bounded)[0]


def test_ablation_says_which_part_matters_and_how_well_it_was_foretold(op, data):
    y = ["left", "right", "left", "left", "right", "left", "right", "right", "left"]
    ds = ablate(op, data, y, by=Channels())
    (section,) = what_if_section(tree(ablation_channels=ds), Limits())
    change = abs(ds.actual_change).mean("case").values
    most = int(change.argmax())
    said = " ".join(section.findings)
    assert f"Without {ds.member.values[most]}," in said
    assert f"R² {round(float(ds.share_r2), 2):.2f}".replace("-", "−") in said
    assert f"order 2 with {round(float(ds.change_r2[-1]), 2):.2f}".replace("-", "−") in said
    assert re.search(rf"from {100 * float(ds.model_accuracy):.0f} % to {100 * float(ds.accuracy[most]):.0f} %", said)
    assert [row[0] for row in section.tables[0].rows] == [ds.member.values[k] for k in np.argsort(-change)]
    assert section.tables[0].rows[0][1] == f"{change.max():.3f}"
    halved = what_if_section(tree(ablation=ablate(op, data, by=Waves(), parts=3, keep=0.5)), Limits())[0]
    assert halved.findings[0].startswith("With 0.50 of feature")
    assert "accuracy" not in halved.tables[0].header


def test_percentages_keep_what_counts():
    from oplens.report.what_if import _percent

    assert [_percent(v) for v in (0.0, 1e-5, 0.012, 0.0996, 0.5)] == ["0 %", "<0.1 %", "1.2 %", "10 %", "50 %"]


def test_a_margin_just_past_the_other_side_does_not_read_as_undecided(steered):
    shown = steered.copy(deep=True)
    shown["start_target"][:] = -1.0
    shown["predicted_target"][:] = 0.1
    shown["achieved_target"][:] = [1e-6] * (shown.sizes["case"] - 1) + [0.5]
    lines = what_if_lines(shown)
    assert all(line.endswith("achieved just above 0") for line in lines[: shown.sizes["case"] - 1])
    assert lines[shown.sizes["case"] - 1].endswith("achieved +0.50")
