"""The settings of classification; importing this module registers `schema/method/classification` with Hydra."""

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig, RunConfig
from vime.config.ranges import Count
from vime.errors import Problem

TEXT = "{text}"


@dataclass(kw_only=True, slots=True)
class ClassificationConfig(MethodConfig):
    """One completion of a few tokens, without a chat template, which any pretrained model can give."""

    name: str = "classification"
    generate: str = "agentic.classification.generate.generate"
    reward: str | None = "agentic.classification.reward.reward"
    eval_log: str | None = "agentic.classification.eval_log.eval_log"
    single_turn: str = "agentic.classification.generate.generate"
    rehearsal: str | None = "agentic.classification.rehearsal.ClassificationRehearsal"
    template: str = "{text}\nLabel:"
    """The prompt, in which `{text}` is replaced by the text of an item; the completion follows it directly."""
    labels: list[str] = field(default_factory=list)
    """Names of the classes, as the answers of the data have them."""
    max_tokens: Count = 4
    """Most tokens of a completion."""
    stop: list[str] = field(default_factory=lambda: ["\n"])
    """A completion ends with one of these texts."""

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that there are classes to choose from, and that the prompt holds the text."""
        found: list[Problem] = []
        if len(set(self.labels)) < 2:
            remedy = "name at least two classes, such as method.labels=[negative,positive]"
            found.append(Problem(key="method.labels", value=self.labels, remedy=remedy))
        if TEXT not in self.template:
            remedy = f"write {TEXT} where the text of an item is to stand"
            found.append(Problem(key="method.template", value=self.template, remedy=remedy))
        return found


ConfigStore.instance().store(group="schema/method", name="classification", node=ClassificationConfig)
