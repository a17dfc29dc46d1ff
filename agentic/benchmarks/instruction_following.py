"""IFEval (arXiv 2311.07911): 541 prompts with instructions that a program can check.

`strict` is 1 if the reply follows all of its instructions. `lenient` is the paper's loose accuracy, which also takes the reply
without asterisks and without its first or last line. `instructions` and `instructions_loose` are the shares of a prompt's
instructions that were followed; the paper's accuracy by instruction is their mean weighted by the number of instructions.
"""

from importlib import import_module
from itertools import product

from agentic.benchmarks.instruction_kinds import KINDS, LANGDETECT
from agentic.benchmarks.published import Item, PublishedBenchmark, Source, outcome, text_of
from vime.environments.environment import Outcome, Reply, required
from vime.rollout.context import Context
from vime.thinking import after_thinking
from vime.types import Message


class IfEval(PublishedBenchmark):
    """IFEval; it needs the package langdetect."""

    source = Source(
        files=("ifeval.jsonl", "ifeval_input_data.jsonl", "input_data.jsonl"),
        hub="google/IFEval@966cd89545d6b6acfd7638bc708b98261ca58e84/ifeval_input_data.jsonl",
        get="take instruction_following_eval/data/input_data.jsonl of github.com/google-research/google-research as ifeval.jsonl",
    )

    def __init__(self, *, folder: str = "data", hub: bool = False) -> None:
        """Raises ConfigError if langdetect is not installed."""
        super().__init__(folder=folder, hub=hub)
        try:
            import_module("langdetect")
        except ImportError as error:
            raise required("IFEval, whose instructions name languages", LANGDETECT, error) from error

    def asked(self, item: Item) -> list[Message]:
        """The prompt as it is. Raises ValueError if an instruction is of a kind that the paper has not."""
        if unknown := set(item["instruction_id_list"]) - set(KINDS):
            raise ValueError(f"unknown instructions: {', '.join(sorted(unknown))}")
        return [{"role": "user", "content": text_of(item, "prompt")}]

    async def score(self, reply: Reply, item: Item, context: Context) -> Outcome:
        """Checks all instructions."""
        said = after_thinking(reply.text, thinks=context.config.model.thinks)
        if said != reply.text:
            said = said.lstrip()  # the blank lines behind a thinking are no paragraph of the reply
        strict, loose = followed([said], item), followed(loosened(said), item)
        shares = {"instructions": sum(strict) / len(strict), "instructions_loose": sum(loose) / len(loose)}
        return outcome(float(all(strict)), float(all(loose)), **shares)


def followed(replies: list[str], item: Item) -> list[bool]:
    """For each instruction of an item, True if one of the replies follows it; an empty reply follows none."""
    found: list[bool] = []
    for kind, given in zip(item["instruction_id_list"], item["kwargs"], strict=True):
        arguments = {name: value for name, value in given.items() if value is not None}
        found.append(any(reply.strip() and KINDS[kind](reply, **arguments) for reply in replies))
    return found


def loosened(reply: str) -> list[str]:
    """The eight variants of a reply: with and without its first line, its last line and its asterisks."""
    lines = reply.split("\n")
    cuts = [reply, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [cut.replace("*", "") if bare else cut for cut, bare in product(cuts, (False, True))]
