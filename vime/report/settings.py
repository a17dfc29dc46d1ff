"""Settings of runs by their dotted names, and those in which runs differ."""

from typing import Any

WITHOUT_MEANING = {"output_dir", "resume"}


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
