"""Settings of runs by their dotted names, and those in which runs differ."""

from typing import Any

WITHOUT_MEANING = {"output_dir", "resume"}
MAX_NAMING = 4
"""Maximum number of settings in the name of a sweep's run."""


def flatten(config: Any, prefix: str = "") -> dict[str, str]:
    """`{"trainer.lr": "1e-06", …}`: leaves by their dotted path, lists by position."""
    if isinstance(config, (dict, list)) and config:
        items = config.items() if isinstance(config, dict) else enumerate(config)
        return {name: text for key, value in items for name, text in flatten(value, f"{prefix}{key}.").items()}
    return {prefix[:-1]: str(config)}


def differences(settings: list[dict[str, str]]) -> dict[str, list[str]]:
    """Settings that are not the same in all runs, with `-` where a run lacks one; the folder of a run is not among them."""
    keys = dict.fromkeys(key for of_run in settings for key in of_run if key not in WITHOUT_MEANING)
    rows = {key: [of_run.get(key, "-") for of_run in settings] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def sweep_names(names: list[str], rows: dict[str, list[str]]) -> list[str]:
    """The names of runs, but runs of a sweep, whose folders are only numbers, by the settings in which they differ.

    `rows` is the result of `differences`. Example: `["sweep/0", "sweep/1"]` become `["lr=0.001", "lr=0.004"]`.
    """
    told = [
        ", ".join(f"{key.rpartition('.')[2]}={values[number]}" for key, values in rows.items()) for number in range(len(names))
    ]
    are_short = len(rows) <= MAX_NAMING and len(set(told)) == len(names)
    return told if are_short and all(name.rpartition("/")[2].isdigit() for name in names) else names
