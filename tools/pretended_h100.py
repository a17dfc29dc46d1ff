"""The configuration that vLLM's GPU build makes of servers' command lines, on a machine with eight H100 that are not there.

    PYTHONPATH=. GPU_ENVIRONMENT/bin/python tools/pretended_h100.py CASES ROWS

`CASES` is a file of JSON lines, `{"case": "qwen2.5-7b on one_node", "flags": ["--model", …]}`; `ROWS` gets one line for each,
with the resulting configuration, or with the error. Nothing is loaded and no kernel runs: what NVIDIA's library (NVML) and
`torch.cuda` say of the machine is answered here, and the extension that reserves memory links to a driver without functions,
which must be on `LD_LIBRARY_PATH` (`tools/gpu_build_check.py` compiles it and starts this program).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

NAME = "NVIDIA H100 80GB HBM3"
CAPABILITY = (9, 0)
MEMORY_BYTES = 81_559 * 2**20
NUM_DEVICES = 8


def pretend() -> None:
    """Answers for NVML and `torch.cuda`, before vLLM looks for its platform."""
    import torch
    import vllm.third_party.pynvml as nvml

    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlDeviceGetCount = lambda: NUM_DEVICES
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: NUM_DEVICES
    torch.cuda.get_device_capability = lambda *_: CAPABILITY
    import vllm.platforms.cuda as cuda
    from vllm.platforms.interface import DeviceCapability

    answers: dict[str, Any] = {
        "device_count": lambda _: NUM_DEVICES,
        "get_device_capability": lambda _, device_id=0: DeviceCapability(*CAPABILITY),
        "get_device_name": lambda _, device_id=0: NAME,
        "get_device_total_memory": lambda _, device_id=0: MEMORY_BYTES,
        "get_device_uuid": lambda _, device_id=0: f"GPU-{device_id}",
        "_get_physical_device_name": lambda _, device_id=0: NAME,
        "is_fully_connected": lambda _, ids: True,
        "log_warnings": lambda _: None,
    }
    for platform in (cuda.NvmlCudaPlatform, cuda.CudaPlatformBase):
        for name, answer in answers.items():
            setattr(platform, name, classmethod(answer))


def configured(flags: list[str]) -> dict[str, Any]:
    """The parts of vLLM's configuration that decide how fast a server samples, from its command line."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    assert arguments is not None, flags
    validate_parsed_serve_args(arguments)
    engine = AsyncEngineArgs.from_cli_args(arguments)
    made = engine.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    scheduler, graphs, model, parallel = made.scheduler_config, made.compilation_config, made.model_config, made.parallel_config
    return {
        "v2_model_runner": bool(made.use_v2_model_runner),
        "asynchronous_scheduling": bool(scheduler.async_scheduling),
        "cuda_graphs": graphs.cudagraph_mode.name,
        "largest_graph": max(graphs.cudagraph_capture_sizes or [0]),
        "compilation": int(graphs.mode),
        "prefix_caching": bool(made.cache_config.enable_prefix_caching),
        "batched_tokens": scheduler.max_num_batched_tokens,
        "sequences": scheduler.max_num_seqs,
        "dtype": str(model.dtype).removeprefix("torch."),
        "logprobs": str(model.logprobs_mode),
        "sleeps": bool(model.enable_sleep_mode),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "executor": str(parallel.distributed_executor_backend),
    }


def main() -> None:
    """Writes a row for every case; the row of a failed case has its error."""
    cases, rows = map(Path, sys.argv[1:])
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_SERVER_DEV_MODE": "1"}
    pretend()
    from vllm.platforms import current_platform

    from vime.inside_vllm.plugin import register

    assert current_platform.is_cuda(), type(current_platform)
    register()
    with rows.open("w", encoding="utf-8") as file:
        for line in cases.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            try:
                row = configured(case["flags"])
            except (Exception, SystemExit) as error:  # of one case: the others still say what is configured
                row = {"error": f"{type(error).__name__}: {error}"[:500]}
            file.write(json.dumps({"case": case["case"]} | row) + "\n")


if __name__ == "__main__":
    main()
