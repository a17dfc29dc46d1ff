"""Tasks of inspect for a bridge: their solver asks the session of the seat, their scorer is the reward; runs in inspect's Python.

inspect evaluates one task of a process at a time, so that each process has one episode, and there are several of them.
"""

import importlib
import os
import sys
import tempfile

os.environ["INSPECT_DISPLAY"] = "none"

import inspect_ai  # pyright: ignore[reportMissingImports]
from inspect_ai.model import GenerateConfig, get_model  # pyright: ignore[reportMissingImports]
from inspect_ai.scorer import value_to_float  # pyright: ignore[reportMissingImports]

ENDS = {"token": "token_limit", "context": "token_limit", "message": "turn_limit", "turn": "turn_limit", "time": "time_limit"}
"""Limits of inspect by the end of an episode that they are."""

NO_GRADER = "; a scorer asks a grader: name one, method.settings.roles={grader: PROVIDER/MODEL}, and its key in variables"


class InspectTask:
    """The samples of a task, for example `InspectTask("arithmetic.py@sums", arguments={"digits": 2})`."""

    at_once = 1

    def __init__(self, task, arguments=None, score=None, roles=None):
        """`task` is `FILE.py@NAME` or `MODULE@NAME`, `arguments` are its own; the reward is the first score, or `score`.

        `roles` names the models of a task's other roles, as inspect names them: `{"grader": "openai/gpt-5-mini"}`. A scorer
        that asks a grader has none otherwise: inspect would take the model that is trained, which would judge itself.
        """
        path, _, name = task.partition("@")
        if path.endswith(".py"):
            sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
            path = os.path.basename(path)[: -len(".py")]
        self.task = getattr(importlib.import_module(path), name)(**(arguments or {}))
        self.score = score
        self.roles = {"grader": "none/none", **(roles or {})}

    def rows(self, seed):
        """The samples, in the order of the data set."""
        for number, sample in enumerate(self.task.dataset):
            asked = sample.input if isinstance(sample.input, str) else sample.input[-1].text
            yield {"question": asked, "answer": sample.target, "sample": number + 1 if sample.id is None else sample.id}

    async def run(self, row, seats):
        """One sample. An error of the task is raised: it is no result of the agent."""
        seat = seats["agent"]
        model = get_model(
            f"openai-api/vime/{seat.model}",
            base_url=seat.base_url,
            api_key=seat.api_key,
            memoize=False,
            config=GenerateConfig(max_tokens=seat.max_tokens, max_retries=0),
        )
        with tempfile.TemporaryDirectory() as folder:
            (log,) = await inspect_ai.eval_async(
                self.task,
                model=model,
                model_roles=dict(self.roles),
                sample_id=[row["sample"]],
                epochs=1,
                log_dir=folder,
                log_level="error",
                fail_on_error=True,
            )
            if log.status != "success":
                said = log.error.message if log.error else f"inspect ended with the status {log.status}"
                raise RuntimeError(f"{said}{NO_GRADER if 'No model specified' in said else ''}")
            (sample,) = log.samples  # which are read only now
        if not sample.scores:
            raise RuntimeError("the task has no scorer, which would be the reward")
        scores = {name: float(value_to_float()(score.value)) for name, score in sample.scores.items()}
        end = ENDS.get(sample.limit.type) if sample.limit else None
        return {"rewards": scores[self.score or next(iter(scores))], "metrics": scores, "end": end}
