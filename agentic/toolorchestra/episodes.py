"""Makes the episode of a row: a task of the built-in shop, or one of τ²-bench."""

from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.environment.customer import ModelCustomer, ScriptedCustomer
from agentic.toolorchestra.environment.episode import Episode, ShopEpisode
from agentic.toolorchestra.environment.tasks import Task
from vime.errors import ConfigError, Problem
from vime.rollout.context import Context
from vime.types import Sample

SHOP = "shop"


def is_function_calling(sample: Sample) -> bool:
    """True if a row is a conversation with a customer rather than a question."""
    return "task" in sample.metadata or sample.metadata.get("category") == "func_call"


def domain_of(sample: Sample) -> str:
    """The name of a row's domain, by which scores are grouped; `qa` for questions without one."""
    metadata = sample.metadata
    domain = metadata.get("domain") or str(metadata.get("eid") or "").partition("____")[0]
    return str(domain or (SHOP if "task" in metadata else "qa"))


def make_episode(context: Context, sample: Sample) -> Episode:
    """The episode of a row. Raises ConfigError for rows of other kinds: ToolScale publishes no databases to play its tasks on."""
    method, metadata = ToolOrchestraConfig.of(context.config), sample.metadata
    limits = method.limits
    max_steps = limits.evaluation_environment_steps if context.evaluation else limits.environment_steps
    if "task" in metadata:
        task = Task.from_dict(metadata["task"])
        customer = ScriptedCustomer(task)
        if method.customer is not None:
            customer = ModelCustomer(task, context.models[method.customer])
        return ShopEpisode(task, customer, max_steps=max_steps, max_errors=limits.environment_errors)
    if "domain" in metadata and "task_id" in metadata:
        return _tau2_episode(method, str(metadata["domain"]), str(metadata["task_id"]), max_steps=max_steps)
    remedy = (
        "this row has neither a task of the shop nor a domain and task_id of tau2, and ToolScale publishes no databases for its "
    )
    remedy += "tasks on: make the training file with `python -m agentic.toolorchestra.data … --only qa`"
    raise ConfigError([Problem(key="data.train", value=metadata.get("eid", ""), remedy=remedy)])


def _tau2_episode(method: ToolOrchestraConfig, domain: str, task_id: str, *, max_steps: int) -> Episode:
    from agentic.toolorchestra.tau2 import load_tasks
    from agentic.toolorchestra.tau2_episode import Tau2Episode

    task = next((task for task in load_tasks(domain) if str(task.id) == task_id), None)
    if task is None:
        raise ConfigError([Problem(key=f"tau2 {domain} task", value=task_id, remedy="there is no such task in this version")])
    judge = method.tau2_judge if method.tau2_judge.model else None
    max_errors = method.limits.environment_errors
    return Tau2Episode(domain, task, user=method.tau2_user, judge=judge, max_steps=max_steps, max_errors=max_errors)
