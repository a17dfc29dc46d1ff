"""vLLM's own server with a tiny model, for its chat route and as the engine behind a gateway."""

from pathlib import Path

from gateway_bench.sides import Process, Targets, free_port, wait_for
from vime.preflight.compose import compose_run
from vime.serving.flags import server_arguments, server_command

TOOL_PARSER = "hermes"


class VllmServer(Process):
    """`vllm serve` as this project starts it, with the parser of tool calls that the gateway uses as well."""

    name = "vLLM's chat route"

    def __init__(self, folder: Path) -> None:
        config, port = compose_run(["+method=toolorchestra"]).config, free_port()
        arguments = server_arguments(config, "actor", config.serving.models["actor"], number=0)
        arguments |= {"host": "127.0.0.1", "port": port, "enable_auto_tool_choice": True, "tool_call_parser": TOOL_PARSER}
        self.tokenizer, self.max_model_len = str(arguments["model"]), int(arguments["max_model_len"])
        self.url = f"http://127.0.0.1:{port}"
        log = folder / "vllm.log"
        super().__init__(server_command(arguments), log, answers=False, VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
        wait_for(f"{self.url}/health", self)

    def open(self, count: int) -> Targets:
        """Targets without sessions, which vLLM does not have."""
        return [{"url": f"{self.url}/v1", "key": "none"}] * count

    def close(self) -> dict[str, float]:
        """Returns no counts, because nothing is kept."""
        return {}
