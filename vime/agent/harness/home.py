"""A home folder inside a working folder, so that an agent reads no settings of the user and leaves nothing elsewhere."""

from pathlib import Path

HOME = ".agent_home"


def make_home(folder: Path) -> Path:
    """Creates the home folder in a working folder; git does not see it."""
    home = folder.absolute() / HOME
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    (home / ".gitignore").write_text("*\n")
    return home


def home_variables(home: Path) -> dict[str, str]:
    """The variables by which programs find a home and write temporary files there."""
    return {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
    }
