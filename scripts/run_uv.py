"""Runs uv with pip's configuration, which uv does not read: `python scripts/run_uv.py pip install PACKAGE`.

Indexes, find-links, certificates, proxy and timeout come from pip's configuration files and from the PIP_ variables. They go to
uv by its environment, because addresses may hold passwords and the words of a command are visible to everybody on the machine.
Variables of uv that are set already stay as they are.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""Settings of pip, and the variable of uv that says the same. uv separates several values as pip does, but for find-links."""


def pip_settings() -> dict[str, str]:
    """Pip's settings by name; the environment wins over the settings of `pip install`, and these over the global ones."""
    printed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True).stdout
    settings: dict[str, str] = {}
    for scope in ("global.", "install.", ":env:."):
        for line in printed.splitlines():
            if line.startswith(scope):
                name, _, value = line.removeprefix(scope).partition("=")
                settings[name] = " ".join(ast.literal_eval(value).split())
    return settings


def environment_of_uv(settings: dict[str, str]) -> dict[str, str]:
    """The variables that make uv look where pip looks, with the best version of all indexes, as pip takes it."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    variables |= {VARIABLES[name]: value for name, value in settings.items() if name in VARIABLES and value}
    if "UV_FIND_LINKS" in variables:
        variables["UV_FIND_LINKS"] = variables["UV_FIND_LINKS"].replace(" ", ",")
    return variables


def main() -> None:
    """Becomes uv."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv") or sys.exit("there is no uv")
    settings = pip_settings()
    words = sys.argv[1:]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        words.append("--no-index")
    os.execve(uv, [uv, *words], environment_of_uv(settings) | dict(os.environ))


if __name__ == "__main__":
    main()
