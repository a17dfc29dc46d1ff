"""Sampling of served models: the trained one as the run says, frozen ones by settings that have an effect."""

import pytest

from vime.evaluation.protocol import protocol_of
from vime.preflight.compose import compose_run
from vime.preflight.plan.models import serving
from vime.preflight.validation import find_problems

JUDGE = "serving.models.judge"
WORDS = ["+method=memagent", "mode=plan", f"+{JUDGE}.max_model_len=2048"]
WRONG = {
    "serving.models.actor.sampling.temperature": ["serving.models.actor.sampling.temperature=0.5"],
    "serving.models.actor.sampling.top_k": ["serving.models.actor.sampling.top_k=5"],
    "gateway.constraints": ["gateway.constraints=record"],
    "rollout.top_p": ["rollout.top_p=0.9", "rollout.num_logprobs=20"],
    "rollout.num_logprobs": ["rollout.top_k=20", "rollout.top_p=0.9", "rollout.num_logprobs=19"],
    "serving.models.actor.chat_template_args": ["+serving.models.actor.chat_template_args.enable_thinking=false"],
    f"{JUDGE}.sampling.temperature": [f"+{JUDGE}.sampling.temperature=-1"],
    f"{JUDGE}.sampling.top_p": [f"+{JUDGE}.sampling.top_p=0", f"+{JUDGE}.sampling.temperature=1"],
    f"{JUDGE}.sampling.top_k": [f"+{JUDGE}.sampling.top_k=20"],  # at temperature 0
    f"{JUDGE}.sampling.min_p": [f"+{JUDGE}.sampling.min_p=1.5", f"+{JUDGE}.sampling.temperature=1"],
    f"{JUDGE}.chat_template_args": [
        f"+{JUDGE}.api=chat",
        f"+{JUDGE}.urls=[http://host/v1]",
        f"+{JUDGE}.chat_template_args.enable_thinking=false",
    ],
}


@pytest.mark.parametrize("key", WRONG)
def test_sampling_that_cannot_be_is_refused_by_key(key: str) -> None:
    problems = find_problems(compose_run([*WORDS, *WRONG[key]]).config)
    assert [problem.key for problem in problems] == [key] and problems[0].remedy


def test_what_is_kept_in_training_must_be_recorded() -> None:
    words = ["rollout.top_k=20", "rollout.top_p=0.9", "rollout.num_logprobs=24"]
    config = compose_run([*WORDS, *words], check=find_problems).config
    (actor,) = [line for line in serving(config) if line.startswith("actor:")]
    assert "trained over the tokens that top-k 20 and top-p 0.9 keep" in actor
    (problem,) = find_problems(compose_run([*WORDS, "rollout.top_k=3"]).config)
    assert problem.key == "rollout.num_logprobs" and "at least rollout.top_k=3" in problem.remedy
    centered = [*WORDS, "algorithm=score_centering", "rollout.num_logprobs=0"]
    assert [problem.key for problem in find_problems(compose_run(centered).config)] == ["rollout.num_logprobs"]
    too_many = [*WORDS, "rollout.num_logprobs=1000", "model.vocab_size=512"]
    assert "rollout.num_logprobs" in {problem.key for problem in find_problems(compose_run(too_many).config)}


def test_the_plan_and_the_protocol_say_how_a_judge_is_sampled() -> None:
    words = [f"+{JUDGE}.chat_template_args.enable_thinking=false", f"+{JUDGE}.sampling.repetition_penalty=1.1"]
    config = compose_run([*WORDS, *words], check=find_problems).config
    lines = {line.split(":")[0]: line for line in serving(config)}
    assert lines["judge"].endswith("temperature 0 (greedy), repetition-penalty 1.1, enable_thinking=False")
    assert "temperature 1 in training" in lines["actor"]
    before = protocol_of(config, {})
    config.serving.models["judge"].sampling.temperature = 0.5
    assert protocol_of(config, {}) != before
