"""Proves that every field of the configuration is read, as the field of that class, by something that acts on it.

    python tools/check_fields.py

It copies the sources, makes every field a property that type checkers call deprecated, and lets pyright find the readers:
because pyright knows the types, `config.trainer.lr` counts for `TrainerConfig.lr` alone, and an attribute of the same name
elsewhere counts for nothing. Members of configuration classes pass it on: a field that only a property reads is read where the
property is. Rules, plans and estimates only check or print a value, so they count only for the fields of `CHECKED_ONLY`.
"""

import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("vime", "agentic")
NOT_READERS = ("vime/preflight/", "vime/memory/")
"""Checking or printing a value is not using it."""
CHECKED_ONLY = {
    *("ClusterConfig.gpu_memory_gib", "ClusterConfig.num_server_gpus"),
    *("AgentFlowConfig.trained_roles_allowed", "CorrectionConfig.allow_none"),
}
"""Properties of a machine, given so that the plan and the checks can be made without it (placement follows `num_replicas`), and
fields that only allow something that is refused otherwise."""
INTERPOLATED = {
    "RolesConfig.coder": "${method.roles.coder}",
    "HarborConfig.tasks": "${method.tasks}",
    "HarborConfig.skip_refused": "${method.skip_refused}",
}
"""Fields that only files in `conf/` read, with the text that reads them."""
MARK = "vime reads"


def config_files(root: Path) -> list[Path]:
    """The modules whose dataclasses are the configuration; `ranges.py` has the types of their numbers."""
    settings = [file for file in sorted((root / "vime" / "config").glob("*.py")) if file.name != "ranges.py"]
    return [*settings, *sorted((root / "agentic").rglob("config.py"))]


def dataclasses_of(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """The dataclasses of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list):
            yield node


def marked(config: ast.ClassDef, statement: ast.stmt) -> list[ast.stmt]:
    """A statement of a class body, whose reads pyright will report; a field can still be set."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        name, kind = statement.target.id, ast.unparse(statement.annotation)
        text = (
            f"@property\n@typing_extensions.deprecated('{MARK} {config.name}.{name}')\ndef {name}(self) -> {kind}: ...\n"
            f"@{name}.setter\ndef {name}(self, value: {kind}) -> None: ..."
        )
        return ast.parse(text).body
    if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("__"):
        decorator = ast.parse(f"typing_extensions.deprecated('{MARK} {config.name}.{statement.name}')", mode="eval").body
        statement.decorator_list.append(decorator)
    return [statement]


def mark(file: Path) -> None:
    """Rewrites a module of the configuration so that pyright reports all reads of its classes' members."""
    tree = ast.parse(file.read_text())
    for config in dataclasses_of(tree):
        config.body = [new for old in config.body for new in marked(config, old)]
    tree.body.insert(1 if ast.get_docstring(tree) else 0, ast.parse("import typing_extensions").body[0])
    file.write_text(ast.unparse(tree))


def reads(root: Path, folder: Path) -> Iterator[tuple[str, int, str]]:
    """File, line and `Class.member` of every read of a member in the sources of `root`; `folder` takes the copy."""
    for source in SOURCES:
        for file in sorted((root / source).rglob("*.py")):
            copy = folder / file.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(file.read_text())
    for file in config_files(folder):
        mark(file)
    settings = {"include": SOURCES, "venvPath": str(ROOT), "venv": ".venv", "typeCheckingMode": "off", "reportDeprecated": True}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--project", str(folder), "--outputjson"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    for report in json.loads(printed)["generalDiagnostics"]:
        if MARK in report["message"]:
            member = report["message"].rpartition(f"{MARK} ")[2].split()[0]
            yield Path(report["file"]).relative_to(folder).as_posix(), report["range"]["start"]["line"] + 1, member


def members_by_line(file: Path) -> dict[int, str]:
    """`Class.method` by line, for the methods of a configuration module's dataclasses."""
    found: dict[int, str] = {}
    for config in dataclasses_of(ast.parse(file.read_text())):
        for function in config.body:
            if isinstance(function, ast.FunctionDef):
                first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
                lines = range(first, (function.end_lineno or first) + 1)
                found |= dict.fromkeys(lines, f"{config.name}.{function.name}")
    return found


def used(found: Iterable[tuple[str, int, str]], inside: dict[str, dict[int, str]]) -> tuple[set[str], set[str]]:
    """Members that acting code reads, directly or through another such member; and members that are only checked."""
    acted, checked, passed_on = set(), set(), set()
    for file, line, member in found:
        if file in inside and line in inside[file]:
            passed_on.add((inside[file][line], member))
        elif file in inside:
            checked.add(member)
        else:
            (checked if file.startswith(NOT_READERS) else acted).add(member)
    size = -1
    while size < len(acted):
        size = len(acted)
        acted |= {member for reader, member in passed_on if reader in acted}
    return acted, checked


def fields_and_bases(root: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The fields and the base classes of every dataclass of the configuration."""
    fields, bases = {}, {}
    for file in config_files(root):
        for config in dataclasses_of(ast.parse(file.read_text())):
            targets = [line.target for line in config.body if isinstance(line, ast.AnnAssign)]
            fields[config.name] = [target.id for target in targets if isinstance(target, ast.Name)]
            bases[config.name] = [base.id for base in config.bases if isinstance(base, ast.Name)]
    return fields, bases


def unread(root: Path) -> list[str]:
    """`Class.field` of all fields that nothing acts on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        found = list(reads(root, folder))
        inside = {file.relative_to(folder).as_posix(): members_by_line(file) for file in config_files(folder)}
    acted, checked = used(found, inside)
    fields, bases = fields_and_bases(root)
    recipes = "".join(file.read_text() for file in (root / "conf").rglob("*.yaml"))

    def is_read(config: str, field: str) -> bool:
        member = f"{config}.{field}"
        inherited = any(is_read(base, field) for base in bases.get(config, ()) if field in fields.get(base, ()))
        interpolated = member in INTERPOLATED and INTERPOLATED[member] in recipes
        return member in acted or (member in CHECKED_ONLY and member in checked) or interpolated or inherited

    return [f"{config}.{field}" for config, names in fields.items() for field in names if not is_read(config, field)]


def main() -> None:
    """Ends with an error that names the fields."""
    if missing := unread(ROOT):
        sys.exit("Nothing acts on these fields of the configuration: use or remove them.\n  " + "\n  ".join(missing))


if __name__ == "__main__":
    main()
