"""Code that an upgrade of vLLM may break: outside of `inside_vllm`, two modules import it, and these names."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INSIDE = ROOT / "vime" / "inside_vllm"
IMPORTED = {
    "vime/vllm_parts.py": {
        "vllm.entrypoints.launchers.cli_args": {"make_arg_parser"},
        "vllm.entrypoints.openai.chat_completion.protocol": {"ChatCompletionRequest"},
        "vllm.parser.engine": {"streaming_parser_engine"},
        "vllm.parser.parser_manager": {"ParserManager"},
        "vllm.tokenizers.hf": {"get_cached_tokenizer"},
        "vllm.tool_parsers": {"ToolParserManager"},
        "vllm.utils.argparse_utils": {"FlexibleArgumentParser"},
    },
    "vime/weights/sender.py": {
        "vllm.distributed.utils": {"stateless_init_torch_distributed_process_group"},
        "vllm.distributed.weight_transfer.base": {"ParamMeta", "WeightSource"},
        "vllm.distributed.weight_transfer.clients": {"HTTPVLLMWeightSyncClient"},
        "vllm.distributed.weight_transfer.ipc_engine": {"IPCTrainerInitInfo", "IPCTrainerWeightTransferEngine"},
        "vllm.distributed.weight_transfer.nccl_common": {"NCCLWeightTransferInitInfo", "worker_init_payload"},
        "vllm.distributed.weight_transfer.nccl_engine": {"NCCLTrainerInitInfo", "NCCLTrainerWeightTransferEngine"},
    },
}


def imported_of_vllm(file: Path) -> dict[str, set[str]]:
    """Names that a file imports of vLLM, by module."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            found.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
        if isinstance(node, ast.Import):
            found |= {alias.name: set() for alias in node.names if alias.name.split(".")[0] == "vllm"}
    return found


def test_two_modules_import_vllm_outside_of_its_processes():
    files = [file for room in ("vime", "agentic") for file in (ROOT / room).rglob("*.py") if INSIDE not in file.parents]
    found = {str(file.relative_to(ROOT)): names for file in files if (names := imported_of_vllm(file))}
    assert found == IMPORTED


@pytest.mark.slow
def test_the_installed_vllm_has_every_name():
    wanted = [(module, name) for modules in IMPORTED.values() for module, names in modules.items() for name in names]
    inside = [names for file in INSIDE.rglob("*.py") for names in imported_of_vllm(file).items()]
    wanted += [(module, name) for module, names in inside for name in names]
    missing = []
    for module, name in wanted:
        if not hasattr(import_module(module), name):
            try:
                import_module(f"{module}.{name}")
            except ImportError:
                missing.append(f"{module}.{name}")
    assert not missing
