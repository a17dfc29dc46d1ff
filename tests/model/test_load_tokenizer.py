"""The tokenizer of a checkpoint is that of `AutoTokenizer`, and neither PyTorch nor all models are imported for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from vime.model.load_tokenizer import load_tokenizer

SHIPPED = sorted((Path(__file__).parents[2] / "agentic").glob("*/tiny/*/tokenizer_config.json"))
TEXT = "früh 😀 <|im_start|>user\n<tool_call> 12345\n\n  Halin<|im_end|>"


@pytest.mark.slow
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.parent.name)
def test_it_is_what_transformers_would_choose(file: Path):
    from transformers import AutoTokenizer

    own, chosen = load_tokenizer(file.parent), AutoTokenizer.from_pretrained(file.parent)
    assert type(own) is type(chosen) and own.chat_template == chosen.chat_template
    assert own.encode(TEXT) == chosen.encode(TEXT) and own.all_special_ids == chosen.all_special_ids


@pytest.mark.slow
def test_a_class_that_is_not_known_is_left_to_transformers(tmp_path: Path):
    load_tokenizer(SHIPPED[0].parent).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(file.read_text().replace("Qwen2Tokenizer", "PreTrainedTokenizerFast"))
    assert type(load_tokenizer(tmp_path)).__name__ != "Qwen2Tokenizer"


def test_a_rollout_worker_starts_without_pytorch():
    program = (
        "import sys; from vime.model.load_tokenizer import load_tokenizer; import vime.workers.ray_worker, vime.workers.served; "
        f"load_tokenizer({str(SHIPPED[0].parent)!r}).apply_chat_template([{{'role': 'user', 'content': 'x'}}], tokenize=False); "
        "print(sorted({'torch', 'sklearn', 'vllm'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert finished.stdout.strip() == "[]", finished.stdout + finished.stderr
