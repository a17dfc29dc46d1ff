"""The rehearsal of several agents on one problem: every role, solutions that are missing, and judgments that name none."""

from collections.abc import Iterable

from agentic.multi_agent.config import MultiAgentConfig, Role
from vime.config import PromptStyle, RunConfig
from vime.rehearsal.script import Asked, Rehearsal, Row, ScriptedReply
from vime.thinking import CLOSE

ACTS = ("right", "wrong", "no_solution", "no_judgment", "judgment_beyond", "selector_cut", "one_cut")
STARTS = {Role.rewriter: "### Task: write a solution", Role.selector: "Judgment: IDX"}
"""Words of the prompts that distinguish the roles; a solver's prompt is the problem."""


class MultiAgentRehearsal(Rehearsal):
    """Prepared problems, and a script of seven acts."""

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """The training problems and those of the evaluation as they are prepared."""
        train = [
            {"prompt": [{"role": "user", "content": f"What is {n} + 5?"}], "reward_model": {"ground_truth": str(n + 5)}}
            for n in (2, 3)
        ]
        return {
            "dapo_math_17k.jsonl": train,
            "aime_2024.jsonl": [{"problem": f"What is {n} times 2024?", "answer": str(n * 2024)} for n in (2, 3)],
        }

    def reply(self, asked: Asked) -> ScriptedReply | None:
        """The reply of each role, by the act of the rollout."""
        method = MultiAgentConfig.of(self.config)
        if method.prompt_style is PromptStyle.tiny:
            return None  # its model can play
        act, gold = self.act(asked, ACTS), self.gold_of(asked.prompt)
        role = next((role for role, words in STARTS.items() if words in asked.prompt), Role.solver)
        thinking = f"I think.\n{CLOSE}\n" if self.config.model.thinks else ""
        if role is Role.selector:
            judgments = {"no_judgment": "I cannot choose.", "judgment_beyond": "Judgment: 99"}
            return ScriptedReply(text=thinking + judgments.get(act, "They agree.\nJudgment: 1"), cut=act == "selector_cut")
        if act == "no_solution" or (act == "one_cut" and asked.turn == 0):
            return ScriptedReply(text="I think and think", cut=True)
        answer = "0" if act == "wrong" or asked.turn == 1 else gold
        return ScriptedReply(text=f"{thinking}The answer is \\boxed{{{answer}}}")

    def expected(self) -> dict[str, list[str]]:
        """The roles that are played, the models that play them, and the stop reasons."""
        method = MultiAgentConfig.of(self.config)
        roles = [role.value for role in method.calls()]
        return {"role": roles, "reply": ["complete", "cut"], "stop reason": ["answered", "malformed", "token_limit"]}

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """The roles that replied, and whether their replies were cut off."""
        for about in (sample["metadata"] for sample in rollout["samples"]):
            yield "role", about["role"]
            yield "reply", "cut" if about["cut"] else "complete"
