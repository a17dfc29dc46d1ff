"""The settings of Harbor's tasks; importing this module registers `schema/method/harbor` with Hydra."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.config_store import ConfigStore

from agentic.coding.config import CodingLimits
from vime.config import Credit, MethodConfig, Mode, PromptStyle, RunConfig
from vime.errors import Problem
from vime.types import Prompt

ROWS = "agentic.harbor.rows.rows"


@dataclass(kw_only=True, slots=True)
class HarborConfig(MethodConfig):
    """The coding agent on tasks in Harbor's layout, whose own tests give the reward."""

    name: str = "harbor"
    generate: str = "agentic.harbor.generate.generate"
    reward: str | None = "agentic.harbor.generate.reward"
    eval_log: str | None = "agentic.coding.eval_log.eval_log"
    rehearsal: str | None = "agentic.harbor.rehearsal.HarborRehearsal"
    single_turn: str = "agentic.harbor.generate.generate"
    credit: Credit = Credit.share
    tasks: str = ""
    """Folder with the tasks to train on; every folder below it that has a task.toml is one."""
    skip_refused: bool = False
    """True if tasks that a workspace cannot carry out are left out; otherwise each of them is an error."""
    host_variables: list[str] = field(default_factory=list)
    """Names of this machine's variables that tasks may read as ${NAME}; agents see their values, and so do rollouts."""
    prompt_style: PromptStyle = PromptStyle.full
    """Set of prompts: full for real models, tiny for the model of the coding agent's laptop task."""
    limits: CodingLimits = field(default_factory=CodingLimits)
    """Limits of one rollout; a task's own limit of the agent's time counts if it is lower."""

    def identities(self, prompt: Prompt) -> list[str]:
        """The words of the instruction."""
        return [" ".join(prompt.question.lower().split())]

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that the context has room for a turn, and that workspaces can carry out every task.

        A plan, which may be for another machine, reads the tasks if they are here; before a run their packages are installed.
        """
        context, turn = self.limits.context_tokens, self.limits.turn_tokens
        reason = f"a conversation of method.limits.context_tokens={context} and a reply of method.limits.turn_tokens={turn}"
        found = self.context_problems(config, num_tokens=context + turn, reason=reason)
        if config.mode is not Mode.plan:
            from vime.agent.workspace import workspace_problem

            problem = workspace_problem()
            found += [Problem(key="method.name", value=self.name, remedy=problem)] if problem else []
        return [*found, *(problem for key, folder in _folders(config) for problem in self._task_problems(config, key, folder))]

    def _task_problems(self, config: RunConfig, key: str, folder: str) -> Iterable[Problem]:
        from agentic.harbor.rows import folder_problems, read_tasks, say_left_out

        is_plan = config.mode is Mode.plan
        if is_plan and not Path(folder).expanduser().is_dir():
            return
        cache, readable = config.workspace.cache_folder, self.host_variables
        tasks, refused = read_tasks(folder, installs=not is_plan, cache_folder=cache, host_variables=readable)
        if is_plan and self.skip_refused:
            say_left_out(folder, tasks, refused)  # otherwise the rows do, when they are read
        yield from folder_problems(key, folder, tasks, refused, skip_refused=self.skip_refused)
        if tasks:
            seconds, name = max((min(self.limits.seconds, task.agent_limit) + task.tests_seconds, task.name) for task in tasks)
            if seconds > config.workspace.life_seconds:
                remedy = f"the agent and the tests of {name} may take {seconds:g} seconds: use more than that"
                yield Problem(key="workspace.life_seconds", value=config.workspace.life_seconds, remedy=remedy)


def _folders(config: RunConfig) -> Iterable[tuple[str, str]]:
    """The folders of tasks that the run reads, with their keys."""
    datasets = {"data.train": config.data.train}
    datasets |= {f"data.evaluation.{number}": dataset for number, dataset in enumerate(config.data.evaluation)}
    for key, dataset in datasets.items():
        if dataset.generator == ROWS:
            yield f"{key}.generator_args.folder", str(dataset.generator_args.get("folder") or "")


ConfigStore.instance().store(group="schema/method", name="harbor", node=HarborConfig)
