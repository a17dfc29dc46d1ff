"""The division of generated data by hash."""

from vime.data.split import EVALUATION_SHARE, split_of


def test_every_subject_has_one_split_and_about_a_fifth_are_evaluated():
    subjects = [f"subject {number}" for number in range(5000)]
    splits = [split_of(subject) for subject in subjects]
    assert splits == [split_of(subject) for subject in subjects]
    assert abs(splits.count("eval") / len(splits) - EVALUATION_SHARE) < 0.03


def test_the_split_of_the_shipped_tasks_does_not_change():
    """The shipped weights were trained without the subjects of the evaluation, so another hash would leak them."""
    found = {name: split_of(name) for name in ("lamps in Ashford", "price of lamps in Corwick", "Corwick", "0123")}
    assert found == {"lamps in Ashford": "train", "price of lamps in Corwick": "train", "Corwick": "eval", "0123": "eval"}
