"""The number of servers that is asked of a run while it trains: a file in its folder, which the run reads every second.

vime servers outputs/latest 3         # or python -m vime.run servers outputs/latest 3
"""

from pathlib import Path

from vime.errors import ConfigError, Problem
from vime.files.jsonl import write_text
from vime.report.run_directory import CONFIG, is_written, read_config

FILE = "num_servers"
"""The file of a run folder; it stays, so that a run that is resumed has as many servers again."""
KEY = "servers"


def ask_for_servers(words: list[str]) -> str:
    """Writes the number of servers that `vime servers RUN NUMBER` asks for; returns a text about it for the user.

    Raises `ConfigError` if there is no such run, if it is not under way, or if it cannot have as many.
    """
    if len(words) != 2 or not words[1].isdecimal():
        raise _problem(" ".join(words), "needs the folder of a run and a number: vime servers outputs/latest 3")
    folder, number = Path(words[0]), int(words[1])
    if not (folder / CONFIG).is_file():
        raise _problem(words[0], f"is no folder of a run: there is no {CONFIG}")
    serving = read_config(folder)["serving"]
    at_start = (serving.get("elastic") or {}).get("num_at_start")
    most = next((model["num_replicas"] for model in serving["models"].values() if model["trained"]), 0)
    if at_start is None:
        raise _problem(words[0], "its number of servers is fixed: start a run with serving.elastic.num_at_start=NUMBER")
    if not 1 <= number <= most:
        raise _problem(words[1], f"must be from 1 to {most}, the serving.models.actor.num_replicas of the run")
    if is_written(folder) is False:
        raise _problem(words[0], "the run has ended: resume=true goes on with it")
    write_text(folder / FILE, f"{number}\n")
    return f"{folder} is asked for {number} server{'s' * (number != 1)}; its console says when they are there\n"


class WantedServers:
    """The number that was asked of one run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._seen = 0

    def news(self) -> int | None:
        """The number, if it was asked for since the last call; None otherwise, and where the file has none."""
        try:
            changed = self._file.stat().st_mtime_ns
            if changed == self._seen:
                return None
            text = self._file.read_text(encoding="utf-8").strip()
        except OSError:
            return None
        self._seen = changed
        return int(text) if text.isdecimal() else None


def _problem(value: str, remedy: str) -> ConfigError:
    return ConfigError([Problem(key=KEY, value=value, remedy=remedy)])
