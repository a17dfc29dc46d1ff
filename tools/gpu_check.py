"""Checks of the trainer on a CUDA machine, with nothing but Python, PyTorch, transformers and a folder of wheels.

    python tools/gpu_check.py --wheels FOLDER [--json PATH]     # a machine with one CUDA device, at most eight minutes
    python tools/gpu_check.py --device cpu                      # the same at tiny size, as the tests do

Checks logits beside Hugging Face's for four families in float32 and bfloat16, the head beside float64, optimizer steps beside the
CPU's in float32, two runs of it bit for bit, checkpoints, offloading, activations and peak memory beside the plan's estimate,
the rate of Qwen2.5-7B's layers on equal and on MemAgent's lengths and of Qwen3-30B-A3B's, and all of Qwen2.5-7B and Qwen3-8B by
adapters. Needs Python 3.12, PyTorch 2.11 or later and transformers; no
Ray, vLLM, Hydra, OmegaConf or network. Two wheels are needed, megatron-core (2.6 MB) and psutil (0.2 MB), without which Megatron
writes no checkpoint:

    pip download megatron-core==0.16.1 psutil==7.2.2 --no-deps --python-version 3.12 --only-binary=:all: -d FOLDER

The device needs about 55 GiB for four layers and the vocabulary of Qwen2.5-7B with their optimizer. A check that fails does not
stop the others; the program ends with 1 if any failed, and the table says why.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
NAMES = ("logits", "head", "step", "repeat", "checkpoint", "offload", "activations", "peak", "speed", "adapters")
SECONDS = 480.0
"""Time after which no further check begins."""


def main() -> None:
    """Runs the chosen checks, writes the table, and ends with 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="folder of wheels to import from; without it they must be installed")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), help="checks to run (all)")
    parser.add_argument(
        "--json", type=Path, help="file for machine and findings; those of other checks on the same machine stay in it"
    )
    parser.add_argument("--markdown", type=Path, help="page of machine and findings")
    parser.add_argument("--one-step", nargs=3, metavar=("MODEL", "FILE", "RANK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the check `repeat` wants it, and cuBLAS reads it once
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.path[:0] = [str(TOOLS.parent), str(TOOLS)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if arguments.wheels:
            sys.path.insert(0, str(unpack(arguments.wheels, folder / "packages")))
        setting = prepare(arguments.device, folder)
        if arguments.one_step:
            model, file, rank = arguments.one_step
            write_step(setting, Path(model), Path(file), int(rank))
            return
        from gpu_checks.finding import read_json, table, write_json, write_markdown

        about = machine()
        known = read_json(arguments.json, about) if arguments.json and arguments.json.exists() else []
        findings = []
        for found in run(setting, arguments.only):
            findings += found
            again = {one.check for one in findings}
            kept = sorted([one for one in known if one.check not in again] + findings, key=lambda one: NAMES.index(one.check))
            if arguments.json:
                write_json(kept, about, arguments.json)
            if arguments.markdown:
                write_markdown(kept, about, arguments.markdown)
        sys.stdout.write(f"{about}\n{table(findings)}\n")
    num_failed = sum(not one.passed for one in findings)
    sys.stdout.write(f"{len(findings) - num_failed} of {len(findings)} findings are as they should be\n")
    sys.exit(1 if num_failed else 0)


def unpack(wheels: Path, target: Path) -> Path:
    """A folder with the contents of all wheels, to be imported from. Ends the program where there is none."""
    found = sorted(wheels.glob("*.whl"))
    if not found:
        sys.exit(f"{wheels} holds no wheels; see --help for what is needed")
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return target


def prepare(device: str, folder: Path) -> Any:
    """The device, and a world of one rank on it. Ends the program where CUDA is wanted and missing."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device; --device cpu runs the checks at tiny size")
    from vime.trainer import megatron_setup

    megatron_setup.set_up()
    from gpu_checks.setting import Setting

    from vime.config import TrainerConfig
    from vime.trainer import parallel

    parallel.initialize(TrainerConfig(), rank=0, seed=0)
    on_cuda = torch.cuda.is_available()
    return Setting(device=torch.device("cuda" if on_cuda else "cpu"), folder=folder, tiny=not on_cuda)


def run(setting: Any, names: list[str]) -> Iterator[list[Any]]:
    """The findings of each check; those of a check that raises end with the reason."""
    from gpu_checks import capacity, exactness
    from gpu_checks.finding import Finding, failed

    began = time.monotonic()
    for name in names:
        findings: list[Finding] = []
        started = time.monotonic()
        if started - began > SECONDS:
            yield [failed(name, f"not run: {SECONDS:.0f} s were over")]
            continue
        check = getattr(exactness if hasattr(exactness, name) else capacity, name)
        try:
            findings.extend(check(setting))
        except Exception as error:  # whatever breaks one check, the others are still worth their time
            sys.stderr.write(traceback.format_exc())
            findings.append(failed(name, f"{type(error).__name__}: {str(error)[:300]}"))
            exactness.release(setting)
        sys.stderr.write(f"{name}: {time.monotonic() - started:.0f} s\n")
        yield findings


def write_step(setting: Any, model: Path, file: Path, rank: int) -> None:
    """Writes metrics and weights after two updates on the CPU, for the comparison with a device."""
    import torch
    from gpu_checks.exactness import take_step

    metrics, changed = take_step(setting, model, rank)
    torch.save({"metrics": metrics, "weights": changed}, file)


def machine() -> dict[str, Any]:
    """The machine and the versions of the measurement."""
    import torch
    import transformers
    from megatron.core import __version__ as megatron

    on_cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if on_cuda else "CPU",
        "memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if on_cuda else None,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "megatron_core": megatron,
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF", "as it is"),
    }


if __name__ == "__main__":
    main()
