"""Environments with reset and step in the forms of several libraries, over a scripted model."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.environments.test_play import played
from vime.data.dataset import to_prompt
from vime.environments.environment import load_environment, rows
from vime.errors import ConfigError
from vime.types import StopReason

HERE = __file__


class Stairs:
    """A walk up three stairs; each step up gives 0.5, and `jump` falls off. It has the form of one library."""

    def __init__(self, form: str = "gymnasium", **about: Any) -> None:
        self.form, self.height, self.closed = form, 0, False
        if form == "numbered":
            self.action_space = SimpleNamespace(n=2)
        self.about = about

    def reset(self, seed: int | None = None) -> Any:
        self.height = 0
        return "You stand below." if self.form == "old" else ("You stand below.", {"seed": seed})

    def step(self, action: Any) -> Any:
        up = action in ("up", 1)
        self.height += up
        seen, reward, over = f"height {self.height}", 0.5 * up, self.height >= 3
        if self.form == "messages":
            return {
                "observations": [{"role": "user", "content": seen}],
                "reward": reward,
                "done": over,
                "metadata": {"won": over},
            }
        if self.form == "old":
            return seen, reward, over, {"won": over}
        if self.form == "dictionary":
            return {"text": seen, "height": self.height}, reward, over, False, {"won": over}
        return seen, reward, over, action == "jump", {"won": over}

    def close(self) -> None:
        self.closed = True


class Messages:
    """The stairs of a library in which `init` takes the place of `reset`, and observations are messages."""

    def __init__(self) -> None:
        self._stairs = Stairs("messages")
        self.step = self._stairs.step

    def init(self, prompt: Any) -> Any:
        return [*prompt, {"role": "user", "content": "You stand below."}], {}


def make(**about: Any) -> Any:
    return Messages() if about.get("form") == "messages" else Stairs(**about)


def rows_of_prompts(num_items: int, seed: int) -> Any:
    return [
        {"prompt": [{"role": "user", "content": f"Stairs {n}."}], "reward_model": {"ground_truth": n}} for n in range(num_items)
    ]


class Broken(Stairs):
    made: ClassVar[list[Any]] = []

    def reset(self, seed: int | None = None) -> Any:
        self.made.append(self)
        raise OSError("no stairs")


def make_of_a_row(row: Any) -> Stairs:
    return Stairs("old", seed=row["seed"])


@pytest.mark.parametrize(
    ("form", "replies", "settings"),
    [
        ("gymnasium", ["up"] * 3, {}),
        ("old", ["I go <up>"] * 3, {"action": "<(.*?)>"}),
        ("numbered", ["1"] * 3, {}),
        ("dictionary", ["up"] * 3, {"observation": "text"}),
        ("messages", ["up"] * 3, {}),
    ],
)
async def test_each_form_of_reset_and_step_is_played(byte_tokenizer: Any, form: str, replies: list[str], settings: Any):
    settings = {"make": f"{HERE}:make", "arguments": {"form": form}, "success": "won", "instruction": "Climb.", **settings}
    rollout = await played(byte_tokenizer, load_environment("gym_like", settings), replies)
    assert rollout.stop_reason is StopReason.ANSWERED and not rollout.error
    assert rollout.reward == 1.5 and rollout.metrics == {"won": 1.0}
    text = byte_tokenizer.decode(rollout.samples[0].tokens)
    assert "system\nClimb." in text and "height 2" in text
    assert rollout.samples[0].metadata["step_rewards"] == [0.5] * 3


async def test_rows_with_prompts_arrive_whole(byte_tokenizer: Any):
    settings = {"make": f"{HERE}:make", "arguments": {"form": "messages"}, "rows": f"{HERE}:rows_of_prompts"}
    (row,) = rows(1, 0, environment="gym_like", settings=settings)
    prompt = to_prompt(row, index=0, row_number=0, dataset="train")
    assert prompt.fields["reward_model"] == row["reward_model"]
    rollout = await played(byte_tokenizer, load_environment("gym_like", settings), ["up"] * 3, row=prompt.fields)
    assert row["prompt"][0]["content"] in byte_tokenizer.decode(rollout.samples[0].tokens)


async def test_an_environment_whose_reset_raises_is_closed(byte_tokenizer: Any):
    broken = load_environment("gym_like", {"make": f"{HERE}:Broken"})
    assert (await played(byte_tokenizer, broken, [])).stop_reason is StopReason.SANDBOX_CRASHED
    assert broken.make.made and all(each.closed for each in broken.make.made)


async def test_a_truncated_episode_ends_at_a_limit_and_wrong_actions_are_illegal(byte_tokenizer: Any):
    game = load_environment("gym_like", {"make": f"{HERE}:make", "action": r"up|jump"})
    rollout = await played(byte_tokenizer, game, ["hm", "up", "jump"])
    assert rollout.stop_reason is StopReason.TURN_LIMIT and rollout.reward == 0.5
    assert rollout.counts["illegal_moves"] == 1


async def test_a_base_model_writes_a_line_for_each_action(byte_tokenizer: Any):
    settings = {"make": f"{HERE}:make_of_a_row", "text": True, "instruction": "Climb."}
    rollout = await played(byte_tokenizer, load_environment("gym_like", settings), [" up\n"] * 3, row={"seed": 5})
    assert rollout.reward == 1.5
    assert byte_tokenizer.decode(rollout.samples[0].tokens).startswith(
        "Climb.\nYou stand below.\nAction: up\n\nheight 1\nAction: up\n"
    )


async def test_a_base_model_is_shown_its_place_again_after_an_illegal_action(byte_tokenizer: Any):
    settings = {"make": f"{HERE}:make", "arguments": {"form": "numbered"}, "text": True}
    rollout = await played(byte_tokenizer, load_environment("gym_like", settings), [" 7\n", *[" 1\n"] * 3])
    assert rollout.reward == 1.5
    text = byte_tokenizer.decode(rollout.samples[0].tokens)
    assert "Action: 7\n\nReply with the number of an action, from 0 to 1.\nYou stand below.\nAction: 1\n" in text


@pytest.mark.parametrize(
    ("settings", "key"), [({"make": "no.such"}, "make"), ({"make": f"{HERE}:make", "action": "("}, "action")]
)
def test_a_wrong_setting_is_a_problem(settings: Any, key: str):
    with pytest.raises(ConfigError) as raised:
        load_environment("gym_like", settings)
    assert raised.value.problems[0].key == f"method.settings.{key}"
