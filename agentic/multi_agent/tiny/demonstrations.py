"""Generated traces of all roles for the supervised training of the tiny model, right only part of the time.

A solver walks through any door and says at the end what it has found, by which door. A rewriter that reads that a solver has
found the sought thing takes the same way, otherwise a door that no solver has tried. The selector looks for the thing in the
solutions and names the one that has found it. The last part of the training adds bad habits: losing the way, taking over any
solution or none, and naming any solution. A batch depends on seed and step.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from agentic.multi_agent.prompts import TINY
from agentic.multi_agent.tiny.task import DOORS, STEP, Maze, sample_maze
from vime.tiny.demonstration import Exchange, encode_exchange, filled
from vime.types import Sample

HABIT_PROGRESS = 0.8
"""The progress at which the last part begins."""
NUM_SOLVERS, NUM_REWRITERS = 4, 3
WALK = "\\boxed{{ {way} }}\nI found {found}"
FOUND = "{thing} by {door}"
TAKE, TRY = "Take {found}", "Try {door}"
JUDGMENT = "Found {found}:{index}\nJudgment:{index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The share of right ones of each decision of a trace. Shares(walks=0.7, rewrites=0.4, selects=0.4)"""

    walks: float
    rewrites: float
    selects: float


SKILL = Shares(walks=0.98, rewrites=0.98, selects=0.98)
HABITS = Shares(walks=0.6, rewrites=0.4, selects=0.35)


def walk(maze: Maze, door: str, rng: random.Random, *, is_right: bool) -> str:
    """The solution of a solver that walks through a door, or loses the way behind it."""
    way = list(maze.ways[door])
    if not is_right:
        other = rng.choice([name for name in DOORS if name != door])
        step = rng.randrange(1, len(way))
        way[step:] = maze.ways[other][step:]
    return WALK.format(way=STEP.join(way), found=FOUND.format(thing=way[-1], door=door))


def found_by(solutions: Sequence[str], maze: Maze) -> list[int]:
    """Positions of the solutions that say they have found the thing."""
    return [index for index, solution in enumerate(solutions) if f" {maze.thing} by " in solution]


def solve(maze: Maze, rng: random.Random, *, shares: Shares) -> str:
    """The reply of a solver."""
    return walk(maze, rng.choice(DOORS), rng, is_right=rng.random() < shares.walks)


def rewrite(maze: Maze, solutions: Sequence[str], rng: random.Random, *, shares: Shares) -> str:
    """The reply of a rewriter: which way it takes, and where it has led."""
    found, doors = found_by(solutions, maze), [door_of(solution) for solution in solutions]
    is_right = rng.random() < shares.rewrites
    untried = [door for door in DOORS if door not in doors]
    if found and is_right:
        door = doors[rng.choice(found)]
        plan = TAKE.format(found=FOUND.format(thing=maze.thing, door=door))
    else:
        door = rng.choice((untried or DOORS) if is_right else DOORS)
        plan = TRY.format(door=door)
    return f"{plan}\n{walk(maze, door, rng, is_right=rng.random() < shares.walks)}"


def select(maze: Maze, solutions: Sequence[str], rng: random.Random, *, shares: Shares) -> str:
    """The reply of the selector: the result of the named solution, and its number."""
    found = found_by(solutions, maze)
    is_right = found and rng.random() < shares.selects
    index = rng.choice(found if is_right else range(len(solutions)))
    return JUDGMENT.format(found=solutions[index].rpartition("I found ")[2], index=index + 1)


def door_of(solution: str) -> str:
    """The door that a solution says it has taken."""
    return solution.rpartition(" by ")[2]


def sample_exchanges(rng: random.Random, *, shares: Shares) -> list[Exchange]:
    """One call of each role on one maze."""
    maze = sample_maze(rng, split="train")
    solved = [solve(maze, rng, shares=shares) for _ in range(NUM_SOLVERS)]
    rewritten = [rewrite(maze, solved, rng, shares=shares) for _ in range(NUM_REWRITERS)]
    return [
        Exchange(prompt=TINY.prompt("solver", maze.text, []), reply=solved[0]),
        Exchange(prompt=TINY.prompt("rewriter", maze.text, solved), reply=rewritten[0]),
        Exchange(
            prompt=TINY.prompt("selector", maze.text, rewritten),
            reply=select(maze, rewritten, rng, shares=shares),
        ),
    ]


def texts() -> list[str]:
    """Texts that the model reads and writes, from which the vocabulary is made."""
    rng = random.Random("vocabulary")
    found = [exchange for _ in range(1000) for exchange in sample_exchanges(rng, shares=HABITS)]
    return [exchange.prompt + exchange.reply for exchange in found]


def demonstrations(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the batch of one step of num_steps, about num_tokens tokens."""
    rng = random.Random(f"multi_agent/{seed}/{step}")
    shares = HABITS if step / num_steps >= HABIT_PROGRESS else SKILL
    return filled(
        lambda: [encode_exchange(exchange, tokenizer=tokenizer) for exchange in sample_exchanges(rng, shares=shares)],
        num_tokens=num_tokens,
    )
