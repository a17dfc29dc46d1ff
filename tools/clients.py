"""Runs real clients against sessions, and audits that every sampled token is trained once, behind the prompt that was seen.

    make clients                     (or: python tools/clients.py [--served] [--only PATTERN] [--json PATH] [--markdown PATH])

Each client is a program in an environment of its own, which knows nothing but the address and the key of its model; its task has
several turns with tools and must end well. The model's replies follow a script (`client_cases.py`): by default without any
server, with `--served` on a real vLLM server, held to the script by vLLM's structured outputs. The exit code is 1 if a task did
not end well, a turn was not delivered, or an audit found something.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_rows import Result, circumstances
from client_audit import Audit, audit
from client_cases import CASES, Case
from client_engine import ScriptedModel
from fetch_qwen3_tokenizer import fetched

from vime.agent.command import run_command
from vime.chat.reply_reader import ReplyReader
from vime.errors import SampleError, ServerError, describe
from vime.gateway.gateway import Gateway
from vime.gateway.session import AgentSession
from vime.surroundings import settle
from vime.types import Sample, Turn

SECONDS = 240
NOTES = """\
- task: it ends well if the client says so, and answers or file are right.
- first prompt: tokens of the first request.
- spelled otherwise: turns whose tokens are not those that the tokenizer makes of their text; text that is tokenized again
  would be other tokens.
- forks by cause: thinking_dropped is the chat template's, which leaves earlier thoughts out once a new question is asked. The
  others are the client's own. smolagents writes calls and results anew as text; dspy, instructor and generateObject ask each
  question with a prompt of its own; crewAI makes a new prompt for each task; opencode asks for a title, and Claude Code starts
  a helper; Codex makes its history short; OpenAI's structured output is asked for twice with the same prompt (retry).
- audit: "every token once" says that each turn was delivered, and that each of its tokens is trained in exactly one sequence,
  with its logprob, behind the prompt that the engine saw.
- engine vLLM: a real server samples the tokens, of a model that knows nothing; vLLM's structured outputs hold it to the text of
  the script. So requests, streams and tokens are real, the choice of words is not.
"""
MakeModel = Callable[[Case, Path], ScriptedModel]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The outcome of one client. Example: `Verdict(case="Codex", versions="@openai/codex 0.169.0", protocol="Responses", …)`."""

    case: str
    versions: str
    protocol: str
    engine: str
    turns: int
    respelled: int
    """Turns whose tokens are not those that the tokenizer makes of their text."""
    first_prompt: int
    """Tokens of the first prompt."""
    retries: int
    audit: Audit
    problem: str
    """The reason why its task did not end well; "" if it did."""

    @property
    def is_good(self) -> bool:
        """True if the task ended well, and every token is where it should be."""
        return not self.problem and not self.audit.problems and not self.audit.num_not_delivered


@asynccontextmanager
async def scripted_engine() -> AsyncIterator[MakeModel]:
    """Models that sample nothing."""
    from vime.model.load_tokenizer import load_tokenizer

    tokenizer = load_tokenizer(fetched())
    yield lambda case, folder: ScriptedModel(tokenizer, case.script, folder=folder, max_model_len=case.max_model_len)


def _engine(served: bool) -> AbstractAsyncContextManager[MakeModel]:
    if not served:
        return scripted_engine()
    from client_server import served_engine

    return served_engine()


async def try_case(case: Case, gateway: Gateway, make_model: MakeModel, *, engine: str, here: bool) -> Verdict:
    """Runs one client in an empty folder and audits its session."""
    with tempfile.TemporaryDirectory(prefix="vime-client-") as name:
        folder = Path(name)
        model = make_model(case, folder)
        reader = ReplyReader(model.tokenizer, tool_parser="hermes", reasoning_parser="qwen3")
        session = AgentSession(model=model.served(), reader=reader, constrains=case.constrains, refuses=case.refuses)
        gateway.open(session)
        command = case.command(session, folder, here=here)
        try:
            end = await asyncio.wait_for(run_command(command), SECONDS)
            problem = case.problem(end, folder)
        except TimeoutError:
            problem = f"it did not end within {SECONDS} s"
    gateway.close(session)
    try:
        found = audit(session, session.samples(Sample()), model.asked)
    except (SampleError, ServerError) as error:
        found = Audit(problems=[describe(error)])
    return Verdict(
        case=case.name,
        versions=case.versions(here=here),
        protocol=case.protocol,
        engine=engine,
        turns=len(model.asked),
        respelled=sum(is_respelled(model, turn) for _, turn in model.asked),
        first_prompt=len(model.asked[0][0]) if model.asked else 0,
        retries=session.counts["retries"],
        audit=found,
        problem=problem,
    )


def is_respelled(model: ScriptedModel, turn: Turn) -> bool:
    """True if a tokenizer would make other tokens of a turn's text."""
    ids = list(turn.output_ids)
    return model.tokenizer.encode(model.tokenizer.decode(ids), add_special_tokens=False) != ids


def table(verdicts: list[Verdict]) -> str:
    """Markdown: one line per client."""
    names = ["client", "version", "protocol", "engine", "task", "first prompt", "turns", "spelled otherwise", "tool calls"]
    names += ["sequences", "trained tokens", "forks by cause", "audit"]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * 5}{'--:|' * 6}---|---|"]
    for verdict in verdicts:
        found = verdict.audit
        forks = ", ".join(f"{cause} {number}" for cause, number in sorted(found.forks.items())) or "none"
        task = "did not end well" if verdict.problem else "ended well"
        cells: list[object] = [verdict.case, verdict.versions, verdict.protocol, verdict.engine, task]
        cells += [f"{verdict.first_prompt:,}", verdict.turns, verdict.respelled, found.num_tool_calls]
        cells += [found.num_sequences, found.num_tokens, forks, "; ".join(found.problems) or "every token once"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


async def run(cases: list[Case], *, served: bool, here: bool, note: Callable[[Verdict], None]) -> None:
    """Runs clients one after another on one engine."""
    gateway = Gateway()
    await gateway.start()
    engine = "vLLM" if served else "scripted"
    async with _engine(served) as make_model:
        for case in cases:
            note(await try_case(case, gateway, make_model, engine=engine, here=here))
    await gateway.stop()


def read(path: Path) -> list[Verdict]:
    """The verdicts of an earlier run, from its `--json`."""
    return [Verdict(**{**found, "audit": Audit(**found["audit"])}) for found in json.loads(path.read_text())]


def write(verdicts: list[Verdict], page: Result, options: argparse.Namespace) -> None:
    """Writes the files that the options name."""
    if options.json:
        options.json.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1, ensure_ascii=False) + "\n")
    if options.markdown:
        facts = "\n".join(f"- {fact}" for fact in circumstances(page))
        options.markdown.write_text(f"# {page.title}\n\n{facts}\n\n{table(verdicts)}\n{NOTES}")


def main() -> int:
    """Builds the environments that are missing and tries the clients; results are written after each."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression over names and protocols of the clients")
    parser.add_argument("--here", action="store_true", help="run the scripts in this interpreter's environment")
    parser.add_argument("--served", action="store_true", help="also run them on a real vLLM server")
    parser.add_argument("--beside", type=Path, metavar="JSON", help="with --served: a run without a server, already done")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    page = Result(title="Real clients")
    chosen = [case for case in CASES if re.search(options.only, f"{case.name} {case.protocol}")]
    for case in chosen:
        if case.program is not None:
            case.program.installed()
        elif case.environment is not None and not options.here:
            case.environment.build()
    verdicts = read(options.beside) if options.beside else []

    def note(verdict: Verdict) -> None:
        verdicts.append(verdict)
        sys.stderr.write(f"{'good' if verdict.is_good else 'BAD '} {verdict}\n")
        write(verdicts, page, options)

    for served in [False] * (not options.beside) + [True] * options.served:
        asyncio.run(run(chosen, served=served, here=options.here, note=note))
    sys.stdout.write(table(verdicts))
    return 0 if all(verdict.is_good for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
