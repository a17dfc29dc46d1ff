"""Traces in the layout of ReTool-SFT: what is learned of them."""

import json
from pathlib import Path

import pytest

import agentic.retool.config
from agentic.retool.prompts import INTERPRETED
from agentic.retool.traces import demonstration_of, problem_of, read_traces
from vime.errors import ConfigError
from vime.model.load_tokenizer import load_tokenizer

PROMPT = """\
Use code.

*user question:*
Answer the following Math Problem and box it

What is 6 times 7 ?

Remember to place the final answer in it"""
RESPONSE = "<code>\nprint(6 * 7)\n</code>\n<interpreter>\n42\n</interpreter>\n\n\\boxed{42}"
MESSAGES = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": RESPONSE}]


def test_everything_is_learned_but_the_prompt_and_what_programs_print(tmp_path: Path):
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps({"messages": MESSAGES}) + "\n")
    (problem, response), *others = read_traces(str(file))
    assert problem == problem_of(PROMPT) == "What is 6 times 7 ?" and not others
    tokenizer = load_tokenizer(Path(agentic.retool.config.__file__).parent / "tiny/actor")
    found = demonstration_of(problem, response, tokenizer=tokenizer)
    parts = {learned: [i for i, mask in zip(found.token_ids, found.loss_mask) if mask == learned] for learned in (0, 1)}
    assert tokenizer.decode(parts[1]) == "<code>\nprint(6 * 7)\n</code>\\boxed{42}<|im_end|>"
    assert tokenizer.decode(parts[0]).endswith(INTERPRETED.format(output="42")) and "6 * 7" not in tokenizer.decode(parts[0])


def test_a_file_of_another_layout_is_refused(tmp_path: Path):
    file = tmp_path / "other.jsonl"
    file.write_text(json.dumps({"messages": MESSAGES[:1]}) + "\n")
    with pytest.raises(ConfigError, match="layout of ReTool-SFT"):
        read_traces(str(file))
