"""Writes `conf/SETTINGS.md`, the page of all settings and of the functions that users give, from the configuration itself.

    python tools/settings_page.py [--check]

With `--check` nothing is written; the program ends with 1 if the page is not the one that it would write.
"""

import argparse
import inspect
import re
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from vime.hooks import HOOKS, INSTANCES  # noqa: E402
from vime.preflight.documentation import Setting, settings  # noqa: E402

PAGE = ROOT / "conf" / "SETTINGS.md"
MODULES = re.compile(r"\b(?:\w+\.)+(?=\w)")
HEAD = """# All settings
Every key of the configuration with its default, its values and its meaning, as `python -m vime.run --help KEY` shows them; `NAME`
is the name of an entry. The last section has the functions that you may give. Written by `python tools/settings_page.py`.
"""


def page() -> str:
    """The page as Markdown: a section for each group of settings, and the hooks."""
    parts = [HEAD]
    groups = [list(members) for _, members in groupby(settings(), key=lambda setting: setting.key.split(".")[0])]
    parts.append(_section("The run", [members[0] for members in groups if len(members) == 1]))
    parts += [_section(members[0].key, members) for members in groups if len(members) > 1]
    hooks = [f"### `{key}`\n    {_signature(protocol)}\n\n{inspect.getdoc(protocol)}\n" for key, protocol in HOOKS.items()]
    return "\n".join([*parts, "## Hooks", "Each takes `module.function` or `path/to/file.py:function`.\n", *hooks])


def _section(group: str, members: list[Setting]) -> str:
    rows = [setting for setting in members if setting.default is not None]
    about = next((setting.text for setting in members if setting.key == group), "")
    table = [
        "| key | default | values | meaning |",
        "|---|---|---|---|",
        *(f"| `{one.key}` | {_cell(_code(one.default))} | {_cell(one.values)} | {_cell(one.text)} |" for one in rows),
    ]
    return "\n".join([f"## {group}", *([f"{about}\n"] if about else []), *table, ""])


def _signature(protocol: type) -> str:
    """The call of a hook. Example: `reward(context: Context, samples: list[Sample]) -> float | Reward`."""
    made = next((INSTANCES[key] for key, one in HOOKS.items() if one is protocol and key in INSTANCES), None)
    signature = inspect.signature(protocol.__call__)
    shown = signature.replace(parameters=list(signature.parameters.values())[1:])
    text = MODULES.sub("", f"{protocol.__name__}{shown}")
    return text if made is None else f"{text}, with a method batch"


def _code(default: str | None) -> str:
    return f"`{default}`" if default else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    """Writes or checks the page. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and end with 1 if the page is another")
    options = parser.parse_args()
    text = page()
    if not options.check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.stderr.write(f"{PAGE.relative_to(ROOT)} is not up to date: run python tools/settings_page.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
