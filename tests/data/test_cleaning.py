"""Cleaning of values; the cleaning of whole data sets is tested with the program that does it."""

from vime.data.cleaning import without_nulls


def test_nulls_go_at_any_depth_and_data_stay():
    assert without_nulls({"a": None, "b": {"c": None, "d": 0}, "e": [None, {"f": None}], "g": False}) == {
        "b": {"d": 0},
        "e": [None, {}],
        "g": False,
    }
