"""vLLM's own server with a tiny model, for its chat route and as the engine behind a gateway."""

import socket
import sys
from pathlib import Path

from bench_rows import ROOT

from gateway_bench.sides import Process, Targets, wait_for

CHECKPOINT = ROOT / "agentic" / "toolorchestra" / "tiny" / "orchestrator"
MAX_MODEL_LEN = 4096
TOOL_PARSER = "hermes"


class VllmServer(Process):
    """`vllm serve` as this project starts it, with the parser of tool calls that the gateway uses as well."""

    name = "vLLM's chat route"

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = ["--model", str(CHECKPOINT), "--served-model-name", "actor", "--host", "127.0.0.1", "--port", str(port)]
        words += ["--max-model-len", str(MAX_MODEL_LEN), "--gpu-memory-utilization", "0.04", "--enable-prefix-caching"]
        words += ["--enable-auto-tool-choice", "--tool-call-parser", TOOL_PARSER, "--dtype", "float32"]
        command = [sys.executable, "-m", "vime.serving.vllm_server", *words]
        super().__init__(command, folder / "vllm.log")
        wait_for(f"{self.url}/health", self)

    def open(self, count: int) -> Targets:
        """It knows no sessions."""
        return [{"url": f"{self.url}/v1", "key": "none"}] * count

    def close(self) -> dict[str, float]:
        """Nothing is kept."""
        return {}
