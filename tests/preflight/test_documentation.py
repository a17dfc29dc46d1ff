"""`--help KEY`: every setting is documented, alone and in whole sentences."""

import re
import subprocess
import sys

import pytest

from vime.errors import ConfigError
from vime.preflight.compose import CONF
from vime.preflight.documentation import Setting, settings, show_documentation


@pytest.fixture(scope="module")
def every() -> list[Setting]:
    return list(settings())


def test_every_setting_has_documentation_that_begins_and_ends_like_a_sentence(every: list[Setting]):
    texts = {(setting.key, setting.text): re.sub(r"^With \+method=\w+: ", "", setting.text) for setting in every}
    assert len(texts) > 280
    assert [key for key, text in texts.items() if not re.fullmatch(r"[`\d]?\w.*[.)]", text)] == []
    assert [key for key, text in texts.items() if re.match(r"(Of|By|The same|Like) ", text)] == []


def test_defaults_are_those_of_a_new_configuration(every: list[Setting]):
    found = {setting.key: setting.default for setting in every}
    assert (found["trainer.lr"], found["resume"], found["algorithm.dual_clip"]) == ("1e-06", "false", "null")
    assert (found["evaluation.rows"], found["trainer"]) == ("[single_turn,scaffold,trained]", None)


def test_a_topic_is_a_key_a_group_or_a_place_with_a_name_of_ones_own():
    assert show_documentation(["trainer.min_lr"]).startswith(
        "trainer.min_lr=0.0  (a number, at least 0)\n    Learning rate at the end"
    )
    group = show_documentation(["algorithm.correction"])
    assert group.count("algorithm.correction.") == 6 and "none, truncate, mask" in group
    named = show_documentation(["serving.models.judge.chat.max_retries", "data.evaluation.0.num_items"])
    assert "serving.models.NAME.chat.max_retries=5" in named and "(a whole number, at least 1, or null)" in named
    assert "With +method=memagent: " in show_documentation(["method.max_memory_tokens"])


def test_a_topic_that_is_no_key_gets_the_nearest_one():
    with pytest.raises(ConfigError, match=r"--help trainer\.lrr: there is no such setting; did you mean trainer\.lr"):
        show_documentation(["trainer.lrr", "seed"])


def test_the_program_shows_it_without_importing_torch():
    code = """
import sys, runpy
sys.argv[1:] = ["--help", "trainer.lr", "seed"]
try:
    runpy.run_module("vime.run", run_name="__main__")
except SystemExit as end:
    assert not end.code
assert not {"torch", "vllm", "ray"} & set(sys.modules), "slow import"
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CONF.parent, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "trainer.lr=1e-06  (a number, more than 0)" in shown.stdout and "seed=0" in shown.stdout
