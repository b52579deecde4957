"""Maps show the weights of a head as they are stored, blank where a causal model cannot look, and tokens letter by letter."""

import json

import numpy as np
import pytest

from oplens.errors import ArgumentError
from oplens.figures.attention_maps import SHADES, attention_map, causal, token_text
from synthetic_measurements import attention, attention_maps, numbers

HOSTILE = '</script><img src=x onerror=alert(1)>%{x}<b>"&'


def maps(tokens=14, **more):
    return attention_maps(attention(3, 4), tokens, **more)


def trace(ds, rank=0):
    (found,) = json.loads(attention_map(ds, rank).to_json())["data"]
    return found


def test_weights_are_drawn_and_the_future_is_blank():
    ds = maps()
    for rank in (0, 3):
        z = numbers(trace(ds, rank)["z"])
        weight = ds.weight.values[rank]
        future = np.triu(np.ones(z.shape, bool), 1)
        assert np.isnan(z[future]).all()
        np.testing.assert_array_equal(z[~future], weight[~future])
    assert causal(ds)


def test_a_weight_of_zero_that_a_head_was_free_to_give_is_not_blank():
    ds = maps()
    ds["weight"].values[2, 5, 1] = 0
    assert numbers(trace(ds, 2)["z"])[5, 1] == 0


def test_an_encoder_looks_ahead_and_nothing_is_blank():
    ds = maps(causal=False)
    assert not causal(ds)
    np.testing.assert_array_equal(numbers(trace(ds, 1)["z"]), ds.weight.values[1])


def test_maps_are_found_by_their_rank_whatever_the_order_of_dimensions():
    ds = maps()
    turned = ds.transpose("token_2", "token", "rank").isel(rank=[2, 0])
    np.testing.assert_array_equal(numbers(trace(turned, 0)["z"]), numbers(trace(ds, 0)["z"]))
    with pytest.raises(ArgumentError, match=r"rank=1\): this result holds ranks 2, 0"):
        attention_map(turned, 1)


def test_all_maps_have_one_scale_whose_shades_go_by_the_square_root():
    found = [trace(maps(), rank) for rank in range(4)]
    assert {(t["zmin"], t["zmax"]) for t in found} == {(0, 1)}
    assert all(t["colorscale"] == found[0]["colorscale"] for t in found)
    for k, (at, shade) in enumerate(found[0]["colorscale"]):
        assert shade == SHADES[k]
        assert np.sqrt(at) == pytest.approx(k / (len(SHADES) - 1))


def test_rows_look_and_columns_are_looked_at():
    found = trace(maps())
    assert found["x"] == found["y"]
    assert found["y"][1] == "1 ␣upon"
    assert found["hovertemplate"].index("%{y}") < found["hovertemplate"].index("looks at <b>%{x}")


def test_equal_tokens_keep_their_own_rows():
    names = trace(maps(texts=("the", "the", "a")))["y"]
    assert len(set(names)) == 14
    assert [name.split(" ", 1)[1] for name in names[:4]] == ["the", "the", "a", "the"]


def test_labels_of_many_tokens_are_thinned_and_those_of_few_are_all_there():
    for tokens, most in ((14, 14), (64, 22), (22, 22), (23, 12)):
        axis = attention_map(maps(tokens), 0).layout.xaxis
        names = trace(maps(tokens))["x"]
        assert len(axis.tickvals) <= most
        assert len(axis.tickvals) > most / 2
        assert [names.index(value) for value in axis.tickvals] == list(range(0, tokens, round(tokens / most)))
        assert axis.tickvals[0] == names[0]


def test_tokens_are_shown_letter_by_letter():
    ds = maps(texts=(HOSTILE, "\u202eabc", "", " ", "\t\x07", "e\u0301", "\u0301e"))
    text = json.dumps(json.loads(attention_map(ds, 0).to_json()), ensure_ascii=False)
    assert "<img" not in text
    assert "\u202e" not in text
    labels = attention_map(ds, 0).layout.yaxis.ticktext
    assert labels[:7] == ("&lt;/script…", "\\u202eabc", "∅", "␣", "⇥\\x07", "e\u0301", "◌\u0301e")


@pytest.mark.parametrize(
    ("token", "limit", "shown"),
    [
        ("a b\n", None, "a␣b↵"),
        ("\r\xa0\u200b\U000e0001", None, "␍\\xa0\\u200b\\U000e0001"),
        ("extraordinary", 6, "extra…"),
        ("sixsix", 6, "sixsix"),
        ("日本語日本語", 6, "日本…"),
        ("日本語", 6, "日本語"),
        (7, None, "7"),
    ],
)
def test_what_cannot_be_seen_is_made_visible_and_wide_letters_count_twice(token, limit, shown):
    assert token_text(token, limit) == shown


def test_maps_of_one_case_line_up_and_have_room_for_their_longest_label():
    short, long = (attention_map(maps(texts=texts), 0).layout.margin for texts in (("a",), ("a", "exorbitantly")))
    assert {attention_map(maps(), rank).layout.margin.l for rank in range(4)} == {
        attention_map(maps(), 0).layout.margin.b
    }
    assert short.l < long.l < 80


def test_without_texts_positions_are_the_labels():
    ds = maps(5).drop_vars("text")
    assert attention_map(ds, 0).layout.xaxis.ticktext == ("0", "1", "2", "3", "4")
