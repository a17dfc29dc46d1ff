"""Resolves, installs and imports the GPU build, and configures its servers, on any machine: no GPU and no driver is needed.

    make gpu-build-check
    python tools/gpu_build_check.py [--folder outputs/gpu_build] [--python PATH] [--markdown PATH] [--json PATH]

1. The constraints of every promised version of Python resolve to themselves.
2. The build of `--python` (this interpreter's version) is installed into an environment below `--folder` (about 10 GB).
3. Everything that trainer and servers import is imported there without a driver.
4. vLLM configures the servers of every model of `conf/model` on every cluster with GPUs, as if it saw eight H100
   (`tools/pretended_h100.py`), and the result must be what a run needs.

Ends with 1 if a line of the page is not as it should be.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_rows import ROOT, command

sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT))
from constraints import INDEX_ALONE, PYTHONS, file_of, pins, resolve

from vime.files.provenance import commit

MODULES = (
    "torch",
    "megatron.core",
    "ray",
    "hydra",
    "vime.run",
    "vime.trainer.engine",
    "vllm.entrypoints.openai.api_server",
    "vime.inside_vllm.vllm_server",
    "vime.inside_vllm.transfer",
    "vllm.v1.worker.gpu_worker",
    "vllm_router",
    "faiss",
)
"""Modules that the processes of a run import; each is tried in a process of its own."""
NEEDS_DRIVER = ("vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch", "vllm.cumem_allocator")
"""vLLM's extensions that link to the driver's library; if they cannot be imported without it, this is not a problem here."""
CLUSTERS = ("one_gpu", "one_node", "two_nodes")
METHOD = "memagent"
DRIVER = "libcuda.so.1"
SYMBOLS = (
    *("cuCtxGetCurrent", "cuCtxSetCurrent", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuGetErrorString"),
    *("cuGetProcAddress_v2", "cuMemAddressFree", "cuMemAddressReserve", "cuMemCreate", "cuMemGetAllocationGranularity"),
    *("cuMemMap", "cuMemRelease", "cuMemSetAccess", "cuMemUnmap", "cuPointerGetAttribute", "cuTensorMapEncodeTiled"),
)
"""Functions of the driver to which vLLM's extension for sleeping servers links; each answers that there is no device."""
NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""
Row = dict[str, Any]


@dataclass(kw_only=True, slots=True)
class Findings:
    """The lines of the page. Example: `Findings(imports={"torch": ""})`; an empty text means no problem."""

    resolved: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The number of packages, and the problem, by version of Python."""
    installed: Row = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    servers: list[Row] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Everything that is not as it should be."""
        found = [f"Python {python}: {reason}" for python, (_, reason) in self.resolved.items() if reason]
        found += [f"import {name}: {reason}" for name, reason in self.imports.items() if reason and name not in NEEDS_DRIVER]
        return found + [f"{row['case']}: {reason}" for row in self.servers for reason in unwanted(row)]


def resolved(python: str, folder: Path) -> tuple[int, str]:
    """The number of packages to which the constraints of a version of Python resolve, and the problem if they do not."""
    file, written = file_of("gpu", python), folder / f"resolved-{python}.txt"
    try:
        resolve("gpu", python, file=written, within=file)
    except subprocess.CalledProcessError as error:
        return 0, error.stderr.strip().splitlines()[-1]
    found, wanted = pins(written), pins(file)
    different = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    return len(found), f"resolves otherwise: {', '.join(different)}" if different else ""


def install(python: str, folder: Path) -> Path:
    """Makes the environment, or brings it up to date, and returns its interpreter."""
    interpreter = folder / "environment" / "bin" / "python"
    if not interpreter.exists():
        subprocess.run([python, "-m", "venv", str(interpreter.parents[1])], check=True)
    version = subprocess.check_output(
        [str(interpreter), "-c", 'import sys; print("%d.%d" % sys.version_info[:2])'], text=True
    ).strip()
    words = ["install", "--python", str(interpreter), "-r", "pyproject.toml", "--extra", "gpu", "--extra", "dev"]
    program = [sys.executable, str(ROOT / "scripts" / "run_uv.py"), "pip", *words, "--constraint", str(file_of("gpu", version))]
    subprocess.run(program, cwd=ROOT, env=os.environ | INDEX_ALONE, check=True)
    return interpreter


def environment(**more: str) -> dict[str, str]:
    """The variables of a program in the environment of the GPU build; it imports vime from this checkout."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | more


def installed(interpreter: Path) -> Row:
    """The versions that decide: Python, torch and its CUDA, vLLM, Megatron-core."""
    names = ("torch", "vllm", "megatron-core", "cuda-python", "cuda-bindings")
    script = "import json, sys, torch; from importlib.metadata import version; "
    script += "found = {'Python': sys.version.split()[0], 'CUDA': torch.version.cuda}; "
    script += f"print(json.dumps(found | {{name: version(name) for name in {names}}}))"
    printed = subprocess.check_output([str(interpreter), "-W", "ignore", "-c", script], text=True, env=environment())
    return json.loads(printed.splitlines()[-1])


def imported(interpreter: Path, module: str) -> str:
    """The last line of the error that an import raised; empty if it raised nothing."""
    program = [str(interpreter), "-W", "ignore", "-c", f"import {module}"]
    ran = subprocess.run(program, capture_output=True, text=True, env=environment(VLLM_LOGGING_LEVEL="ERROR"))
    return "" if ran.returncode == 0 else ran.stderr.strip().splitlines()[-1]


def without_functions(folder: Path) -> Path:
    """Compiles a driver's library each of whose functions answers that there is no device; returns its folder."""
    source = folder / "driver.c"
    source.write_text("".join(f"int {name}() {{ return {NO_DEVICE}; }}\n" for name in SYMBOLS))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / DRIVER), str(source)], check=True)
    return folder


def server_cases(folder: Path) -> list[Row]:
    """The command line of the first server of every model of `conf/model` on every cluster on which a plan accepts it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from vime.preflight.compose import CONF, compose_run
    from vime.preflight.validation import find_problems
    from vime.rehearsal.random_model import architecture, tokenizer_of
    from vime.serving.flags import server_arguments, to_flags

    cases: list[Row] = []
    for name in sorted(file.stem for file in (CONF / "model").glob("*.yaml")):
        for cluster in CLUSTERS:
            config = compose_run([f"+method={METHOD}", f"model={name}", f"cluster={cluster}", "mode=plan"]).config
            if find_problems(config):
                continue
            served = config.serving.models["actor"]
            if served.checkpoint is None and not Path(str(config.model.checkpoint)).is_dir():
                local = folder / "models" / name
                tokenizer, _ = tokenizer_of(config.model)
                made = architecture(config.model, tokenizer)
                made.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[made.model_type]]
                made.save_pretrained(local)
                tokenizer.save_pretrained(local)
                config = replace(config, model=replace(config.model, checkpoint=str(local)))
            arguments = server_arguments(config, "actor", served, number=0, awaits_weights=True)
            flags = to_flags(arguments | {"host": "127.0.0.1", "port": 8000})
            expected = {"sleeps": config.cluster.colocated, "tensor_parallel_size": served.tensor_parallel_size}
            cases.append({"case": f"{name} on {cluster}", "flags": flags, "expected": expected})
    return cases


def configured_servers(interpreter: Path, folder: Path) -> list[Row]:
    """The servers' configurations as vLLM makes them on the pretended machine."""
    cases = server_cases(folder)
    asked, answered = folder / "cases.jsonl", folder / "rows.jsonl"
    asked.write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")
    program = [str(interpreter), "-W", "ignore", str(ROOT / "tools" / "pretended_h100.py"), str(asked), str(answered)]
    libraries = os.pathsep.join(filter(None, [str(without_functions(folder)), os.environ.get("LD_LIBRARY_PATH")]))
    subprocess.run(program, check=True, cwd=ROOT, env=environment(LD_LIBRARY_PATH=libraries))
    rows = [json.loads(line) for line in answered.read_text(encoding="utf-8").splitlines()]
    return [row | {"expected": case["expected"]} for case, row in zip(cases, rows, strict=True)]


def unwanted(row: Row) -> list[str]:
    """The parts of a server's configuration that a run does not want; it needs fast generation and logprobs of samples."""
    if "error" in row:
        return [row["error"]]
    wanted = {
        "v2_model_runner": True,
        "asynchronous_scheduling": True,
        "cuda_graphs": "FULL_AND_PIECEWISE",
        "prefix_caching": True,
        "dtype": "bfloat16",
        "logprobs": "processed_logprobs",
    }
    return [f"{key} is {row[key]}, not {value}" for key, value in (wanted | row["expected"]).items() if row[key] != value]


def page(findings: Findings, *, code: str) -> str:
    """The page in Markdown."""
    about = findings.installed
    lines = [
        "# The GPU build without a GPU",
        "",
        "Resolved, installed, imported and configured by `make gpu-build-check` on a machine without a GPU and without a driver.",
        "",
        f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {code}",
        f"- command: `{command()}`",
        "",
        "## Constraints",
        "| Python | packages | |",
        "|---|--:|---|",
        *(
            f"| {python} | {count} | {reason or 'resolve to themselves'} |"
            for python, (count, reason) in findings.resolved.items()
        ),
        "",
        f"Installed: {', '.join(f'{name} {value}' for name, value in about.items())}.",
        "",
        "## Imports without a driver",
        "| module | |",
        "|---|---|",
        *(f"| `{name}` | {describe(name, reason)} |" for name, reason in findings.imports.items()),
        "",
        "## Servers as vLLM configures them",
        "vLLM sees eight H100 that are not there; the command lines are those for the trained model of `+method=memagent`.",
        "",
        "| model and cluster | GPUs a server | runner | scheduling | CUDA graphs, up to | prefix cache | tokens a batch "
        "| sequences | sleeps | executor |",
        "|---|--:|---|---|---|---|--:|--:|---|---|",
        *(server_line(row) for row in findings.servers),
    ]
    problems = findings.problems()
    lines += (
        ["", "## Not as it should be", *(f"- {problem}" for problem in problems)]
        if problems
        else ["", "Everything is as it should be."]
    )
    return "\n".join(lines) + "\n"


def describe(name: str, reason: str) -> str:
    """A word about an import."""
    if not reason:
        return "imported"
    return f"needs a driver: `{reason[:120]}`" if name in NEEDS_DRIVER else f"**fails**: `{reason[:200]}`"


def server_line(row: Row) -> str:
    """One line of the table of servers."""
    if "error" in row:
        return f"| {row['case']} | **{row['error']}** |" + " |" * 8
    cells = [
        row["case"],
        row["tensor_parallel_size"],
        "V2" if row["v2_model_runner"] else "V1",
        "asynchronous" if row["asynchronous_scheduling"] else "synchronous",
        f"{row['cuda_graphs']}, {row['largest_graph']}",
        "on" if row["prefix_caching"] else "off",
        row["batched_tokens"],
        row["sequences"],
        "yes" if row["sleeps"] else "no",
        row["executor"],
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Runs the four parts, writes the page, and ends with 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "gpu_build", help="environment and intermediate files")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environment (this one)")
    parser.add_argument("--markdown", type=Path, help="write the page here, with date, commit, command and machine")
    parser.add_argument("--json", type=Path, help="write commit and findings here")
    arguments = parser.parse_args()
    head, *changes = commit().splitlines()
    changed = any(not line.startswith("??") for line in changes)
    code = f"commit {head[:10]}{' with uncommitted changes' if changed else ''}"
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    findings = Findings(resolved={python: resolved(python, folder) for python in PYTHONS})
    interpreter = install(arguments.python, folder)
    findings.installed = installed(interpreter)
    findings.imports = {module: imported(interpreter, module) for module in (*MODULES, *NEEDS_DRIVER)}
    findings.servers = configured_servers(interpreter, folder)
    text = page(findings, code=code)
    sys.stdout.write(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    if arguments.json:
        arguments.json.write_text(json.dumps({"code": code} | asdict(findings), indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if findings.problems() else 0)


if __name__ == "__main__":
    main()
