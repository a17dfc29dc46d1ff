"""Teachers that cannot teach, and forms of a divergence without a gradient, are refused by key with the reason."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import agentic.memagent
from vime.algorithm.description import describe
from vime.config import (
    AlgorithmName,
    Baseline,
    CorrectionMode,
    CriticPlace,
    DistillationConfig,
    Divergence,
    ModelAPI,
    OldLogprobs,
    RunConfig,
    ServedModelConfig,
    TeacherConfig,
    TeacherPlace,
    TeacherTerm,
    TopKOf,
)
from vime.preflight.compose import compose_run
from vime.preflight.rules.critic import FILTER
from vime.preflight.rules.distillation import architectures, combinations, hints, teachers, unread, vocabularies
from vime.preflight.rules.numbers import value_at
from vime.preflight.rules.objective import essence
from vime.preflight.rules.rollout_settings import compared
from vime.preflight.validation import find_problems, problems_here

OWN = "algorithm.distillation"
LOSS = {f"{OWN}.term": TeacherTerm.loss, f"{OWN}.top_k": 20}
TINY = Path(agentic.memagent.__file__).parent / "tiny" / "actor"


def config_of(settings: dict[str, Any], *, teacher: ServedModelConfig | None = None) -> RunConfig:
    config = RunConfig()
    config.algorithm.name = AlgorithmName.on_policy_distillation
    config.algorithm.distillation = DistillationConfig(teachers={"solver": TeacherConfig()})
    config.serving.models["solver"] = teacher or ServedModelConfig(checkpoint=str(TINY), max_model_len=8193)
    config.model.checkpoint = str(TINY)
    for key, value in settings.items():
        path, _, name = key.rpartition(".")
        setattr(value_at(config, path) if path else config, name, value)
    return config


def keys(settings: dict[str, Any]) -> set[str]:
    config = config_of(settings)
    return {problem.key for rule in (teachers, combinations, unread) for problem in rule(config)}


@pytest.mark.parametrize(
    "wrong",
    [
        {f"{OWN}.top_k": 20},
        {f"{OWN}.term": TeacherTerm.advantage, f"{OWN}.divergence": Divergence.forward_kl},
        {f"{OWN}.term": TeacherTerm.advantage, f"{OWN}.divergence": Divergence.jensen_shannon},
        {f"{OWN}.term": TeacherTerm.loss, f"{OWN}.top_k": 0},
        {"rollout.temperature": 0.7},
        {"rollout.top_p": 0.9},
        {"rollout.top_k": 20},
        {"rollout.filter": FILTER},
        {"algorithm.kl_coefficient": 0.1},
        {"algorithm.entropy_coefficient": 0.1},
        {"algorithm.advantage": "mine.advantage"},
        {"algorithm.overlong_max_tokens": 100},
        {"algorithm.baseline": Baseline.leave_one_out},
        {f"{OWN}.mixture": 0.3},
        {**LOSS, "algorithm.loss": "mine.loss"},
        {**LOSS, "algorithm.dual_clip": 3.0},
        {**LOSS, "algorithm.old_logprobs": OldLogprobs.trainer},
        {**LOSS, "algorithm.correction.mode": CorrectionMode.truncate},
        {"algorithm.critic.place": CriticPlace.model},
        {"algorithm.object": "mine.py:Mine"},
        {"algorithm.score_centering": True},
    ],
)
def test_each_contradiction_is_refused_by_a_key_of_it(wrong: dict[str, Any]):
    assert not keys({})
    assert len(found := keys(wrong)) == 1 and found <= {*wrong, f"{OWN}.term"}


@pytest.mark.parametrize("divergence", Divergence)
def test_any_divergence_over_the_teachers_likeliest_tokens_may_be_a_loss(divergence: Divergence):
    assert not keys({**LOSS, f"{OWN}.divergence": divergence})


@pytest.mark.parametrize("wrong", [{f"{OWN}.top_k": 20}, {f"{OWN}.term": TeacherTerm.loss}])
def test_a_place_without_a_gradient_is_refused_with_the_reason_and_a_remedy(wrong: dict[str, Any]):
    (problem,) = combinations(config_of(wrong))
    assert "expected gradient" in problem.remedy and "use algorithm.distillation.term=" in problem.remedy


def test_rewards_beside_a_teacher_have_their_kl_and_their_groups():
    own = {f"{OWN}.reward_coefficient": 1.0, "algorithm.kl_coefficient": 0.1, "rollout.filter": FILTER}
    corrected = {"algorithm.old_logprobs": OldLogprobs.trainer, "algorithm.correction.mode": CorrectionMode.truncate}
    assert not keys(own | LOSS | corrected | {"algorithm.dual_clip": 3.0, "algorithm.whitening": True})
    assert not keys(corrected | {"algorithm.clip_high": 0.3}), "the teachers' advantage has a ratio, which is corrected"
    single = {"rollout.num_samples_per_prompt": 1}
    assert not compared(config_of(single)) and compared(config_of(single | own))


@pytest.mark.parametrize(
    ("teacher", "key"),
    [
        (ServedModelConfig(), "serving.models.solver.checkpoint"),
        (ServedModelConfig(urls=["http://here:8000"], max_model_len=9000), "serving.models.solver.checkpoint"),
        (ServedModelConfig(api=ModelAPI.chat, urls=["http://here:8000/v1"]), "serving.models.solver.api"),
        (ServedModelConfig(checkpoint=str(TINY), max_model_len=8192), "serving.models.solver.max_model_len"),
    ],
)
def test_a_teacher_that_cannot_score_is_refused(teacher: ServedModelConfig, key: str):
    assert [problem.key for problem in teachers(config_of({}, teacher=teacher))] == [key]


def test_a_teacher_is_a_served_model_and_not_the_student():
    config = config_of({f"{OWN}.teachers": {"nobody": TeacherConfig(), "actor": TeacherConfig()}})
    assert [problem.key for problem in teachers(config)] == [f"{OWN}.teachers.nobody", f"{OWN}.teachers.actor"]


def hint(row: Any, sample: Any) -> str:
    return "think"


def test_with_a_hint_the_student_or_what_it_began_as_may_be_the_teacher():
    own = {f"{OWN}.teachers": {"actor": TeacherConfig(hint=f"{__file__}:hint"), "start": TeacherConfig(hint=f"{__file__}:hint")}}
    config = config_of(own)
    config.serving.models["start"] = ServedModelConfig(max_model_len=9000)
    assert not teachers(config)
    (problem,) = teachers(config_of({f"{OWN}.teachers": {"actor": TeacherConfig(hint="no.such.function")}}))
    assert problem.key == f"{OWN}.teachers.actor.hint"


def test_a_hint_that_the_teachers_template_does_not_show_is_refused(tmp_path: Path):
    def problems(template: str, settings: dict[str, Any], **own: Any) -> list[str]:
        shutil.copytree(TINY, tmp_path / "other", dirs_exist_ok=True)
        (tmp_path / "other" / "chat_template.jinja").write_text(template)
        served = ServedModelConfig(checkpoint=str(tmp_path / "other"))
        about = {f"{OWN}.teachers": {"solver": TeacherConfig(hint=f"{__file__}:hint", **own)}, **settings}
        return [problem.key for problem in hints(config_of(about, teacher=served))]

    shows, hides = "{{ messages[0].content }}", "{{ messages[0].role }}"
    assert not hints(config_of({f"{OWN}.teachers": {"actor": TeacherConfig(hint=f"{__file__}:hint")}}))
    assert not problems(shows, {}) and problems(hides, {}) == [f"{OWN}.teachers.solver.hint"]
    own = {"place": TeacherPlace.trainer, "decay": 0.5}
    assert not problems(hides, {}, **own), "the student's own template shows it"
    assert problems(hides, {"model.checkpoint": str(tmp_path / "other")}, **own) == [f"{OWN}.teachers.solver.hint"]


def in_trainer(settings: dict[str, Any], **own: Any) -> RunConfig:
    config = config_of({f"{OWN}.teachers": {"self": TeacherConfig(place=TeacherPlace.trainer, **own)}, **settings})
    del config.serving.models["solver"]
    return config


@pytest.mark.parametrize(
    ("own", "setting"),
    [
        ({}, "place"),
        ({"decay": 0.9, "checkpoint": str(TINY)}, "place"),
        ({"decay": 0.9}, "decay"),
        ({"decay": 0.9, "hint": "no.such.function"}, "hint"),
    ],
)
def test_a_teacher_in_the_trainer_is_a_checkpoint_or_the_student_with_a_hint(own: dict[str, Any], setting: str):
    assert [problem.key for problem in teachers(in_trainer({}, **own))] == [f"{OWN}.teachers.self.{setting}"]


def test_a_teacher_in_the_trainer_needs_no_server_and_adapters_have_none_of_another_checkpoint():
    averaged = {"decay": 0.9, "hint": f"{__file__}:hint"}
    for own in (averaged, {"checkpoint": str(TINY)}, {"checkpoint": str(TINY), "hint": f"{__file__}:hint"}):
        config = in_trainer({}, **own)
        assert not [problem for rule in (teachers, combinations, vocabularies, architectures) for problem in rule(config)]
    assert not teachers(in_trainer({"trainer.lora.rank": 4}, **averaged))
    (problem,) = teachers(in_trainer({"trainer.lora.rank": 4}, checkpoint=str(TINY)))
    assert problem.key == f"{OWN}.teachers.self.checkpoint"


def test_the_students_likeliest_tokens_are_recorded_and_scored_in_the_trainer():
    own = {f"{OWN}.top_k_of": TopKOf.student}
    loss = own | {f"{OWN}.term": TeacherTerm.loss, f"{OWN}.top_k": 8}
    recorded = loss | {"rollout.num_logprobs": 8}
    assert [problem.key for problem in combinations(in_trainer(own, checkpoint=str(TINY)))] == [f"{OWN}.top_k_of"]
    assert [problem.key for problem in combinations(in_trainer(loss, checkpoint=str(TINY)))] == ["rollout.num_logprobs"]
    assert not combinations(in_trainer(recorded, checkpoint=str(TINY)))
    (problem,) = combinations(config_of(recorded))
    assert problem.key == f"{OWN}.top_k_of" and "place=trainer" in problem.remedy


def test_weights_in_the_trainer_are_not_those_of_a_server():
    config = config_of({f"{OWN}.teachers": {"solver": TeacherConfig(checkpoint=str(TINY), decay=0.5)}})
    assert [problem.key for problem in teachers(config)] == [f"{OWN}.teachers.solver.{name}" for name in ("checkpoint", "decay")]


def test_a_teacher_in_the_trainer_has_the_students_architecture_but_for_its_length(tmp_path: Path):
    def problems(**changed: Any) -> list[Any]:
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        shutil.copytree(TINY, tmp_path / "other")
        path = tmp_path / "other" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
        return architectures(in_trainer({}, checkpoint=str(tmp_path / "other")))

    assert not problems(max_position_embeddings=100_000)
    (problem,) = problems(num_hidden_layers=7)
    assert problem.key == f"{OWN}.teachers.self.checkpoint" and "num_layers" in problem.remedy and "7" in problem.remedy
    (problem,) = problems(model_type="unknown")
    assert problem.key == f"{OWN}.teachers.self.checkpoint"
    (problem,) = architectures(in_trainer({}, checkpoint=str(tmp_path / "nowhere")))
    assert problem.key == f"{OWN}.teachers.self.checkpoint" and "no such folder" in problem.remedy


def test_vocabularies_are_compared_by_the_tokenizers_and_not_by_names(tmp_path: Path):
    same, other = tmp_path / "another_name", tmp_path / "actor"
    for folder in (same, other):
        shutil.copytree(TINY, folder)
    raw = json.loads((other / "tokenizer.json").read_text())
    vocab = raw["model"]["vocab"]
    one, two = sorted(vocab, key=vocab.get)[40:42]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    (other / "tokenizer.json").write_text(json.dumps(raw))
    assert not vocabularies(config_of({}, teacher=ServedModelConfig(checkpoint=str(same))))
    (problem,) = vocabularies(config_of({}, teacher=ServedModelConfig(checkpoint=str(other))))
    assert problem.key == "serving.models.solver.checkpoint"
    assert repr(min(one, two)) in problem.remedy and "same tokenizer" in problem.remedy
    (problem,) = vocabularies(in_trainer({}, checkpoint=str(other)))
    assert problem.key == f"{OWN}.teachers.self.checkpoint" and not vocabularies(in_trainer({}, checkpoint=str(same)))


def test_a_name_says_if_there_are_teachers():
    assert not essence(config_of({})) and keys({f"{OWN}.teachers": {}}) == {f"{OWN}.teachers"}
    assert f"{OWN}.teachers" in {problem.key for problem in essence(config_of({"algorithm.name": AlgorithmName.grpo}))}
    assert not combinations(config_of({f"{OWN}.teachers": {}, f"{OWN}.top_k": 20})), "the missing teacher is reported alone"
    alone = config_of({f"{OWN}.teachers": {}, f"{OWN}.top_k": 20, "algorithm.name": AlgorithmName.grpo})
    assert {problem.key for problem in combinations(alone)} == {f"{OWN}.top_k"}


def test_a_run_with_a_teacher_is_complete_on_the_command_line():
    words = ["+method=memagent", "algorithm=on_policy_distillation", "+algorithm.distillation.teachers.solver={}"]
    words += [f"+serving.models.solver.checkpoint={TINY}", "+serving.models.solver.max_model_len=2049", "mode=plan"]
    assert not find_problems(compose_run(words).config)


@pytest.mark.parametrize("own", [f"checkpoint:{TINY}", f"decay:0.99,hint:{__name__}.hint"])
def test_so_is_one_with_a_teacher_in_the_trainer(own: str):
    words = ["+method=memagent", "algorithm=on_policy_distillation", "mode=plan"]
    config = compose_run([*words, f"+algorithm.distillation.teachers.self={{place:trainer,{own}}}"]).config
    assert not find_problems(config) and not problems_here(config)
    assert "self (" in describe(config.algorithm) and ", in the trainer" in describe(config.algorithm)
