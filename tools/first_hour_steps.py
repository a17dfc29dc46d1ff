"""The steps of `first_hour.py`: what each runs on a GPU machine, what it runs in a rehearsal, and what is left to a card."""

from dataclasses import dataclass, field

PYTHON = ".venv/bin/python"
RUN = (PYTHON, "-m", "vime.run", "+method=memagent")
SHORT = (
    "trainer.num_steps=2",
    "trainer.warmup_steps=1",
    "rollout.num_samples_per_prompt=16",
    "evaluation.rows=[]",
)
"""Two steps of few prompts with the lengths of the paper, without an evaluation."""
IMPORTS = "import torch, megatron.core, ray, hydra, vime.run, vllm.entrypoints.openai.api_server; print('everything imports')"
FETCH = "import sys; from vime.model.architecture import checkpoint_folder; print(checkpoint_folder(sys.argv[1]))"
FOLDER = "output_dir={folder}"
"""The part's own folder, beside its log; checkpoints and models in it are removed when the part has ended."""
STEP_LINES = r"^step \d+/\d+ \|"
NUM_CARDS_OF_A_NODE = 8


@dataclass(frozen=True, kw_only=True)
class Part:
    """A command with its time limit.

    Example: `Part(title="the plan", command=("make", "setup"), minutes=5)`.
    """

    title: str
    command: tuple[str, ...]
    minutes: float
    shows: str = r"\S"
    """A regular expression; the last lines of the log that match are quoted when the part has passed."""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is tried by itself: a part for the machine, the parts of its rehearsal, and what these leave open.

    Example: `Step(name="tests", real=Part(…), needs=("cards",), rehearsal=(), left_to_a_card="the tests themselves")`.
    """

    name: str
    real: Part
    needs: tuple[str, ...] = ()
    """Steps that must have passed."""
    cards: int = 1
    """Cards without which the step is skipped."""
    rehearsal: tuple[Part, ...] = ()
    left_to_a_card: str


def fetched(name: str, checkpoint: str, minutes: float, *, cards: int = 1) -> Step:
    """A step that brings a checkpoint into the cache of Hugging Face, so that a run neither waits for it nor fails by it."""
    title = f"{checkpoint} is in the cache of Hugging Face"
    return Step(
        name=f"fetch_{name}",
        real=Part(title=title, command=(PYTHON, "-c", FETCH, checkpoint), minutes=minutes),
        needs=("set-up",),
        cards=cards,
        left_to_a_card="nothing of a card, but a network: the download",
    )


def trained(name: str, words: tuple[str, ...], minutes: float, *, title: str, cards: int, rehearsed: bool) -> Step:
    """A step that trains with the words of a user; its plan is always rehearsed, the run itself where `rehearsed` says so."""
    command = (*RUN, *SHORT, *words)
    rehearsal = [Part(title="the plan is accepted", command=(*command, "mode=plan"), minutes=3, shows="at most .* of its")]
    if rehearsed:
        title_of_rehearsal = "the same words on a random small model, on the CPU"
        rehearsal += [Part(title=title_of_rehearsal, command=(*command, "rehearse=true", FOLDER), minutes=15, shows=STEP_LINES)]
    return Step(
        name=name,
        real=Part(title=title, command=(*command, FOLDER), minutes=minutes, shows=STEP_LINES),
        needs=("cards", f"fetch_{name}"),
        cards=cards,
        rehearsal=tuple(rehearsal),
        left_to_a_card="the run: kernels, NCCL, vLLM's graphs, the memory that is really taken, speed",
    )


SMALLEST = ("--sizes", "tiny", "--precisions", "float32", "--cases", "equal", "--samples", "4", "--repeats", "1")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
STEPS = (
    Step(
        name="set-up",
        real=Part(
            title="the GPU build is installed and everything imports",
            command=("make", "setup"),
            minutes=40,
        ),
        cards=0,
        rehearsal=(
            Part(
                title="the installed build imports",
                command=(PYTHON, "-W", "ignore", "-c", IMPORTS),
                minutes=5,
                shows="everything imports",
            ),
            Part(
                title="stand-ins for an old driver, none, no headers and Python 3.10 only; the constraints fit pyproject.toml",
                command=(PYTHON, "-m", "pytest", "-q", "-m", "not slow", "tests/scripts"),
                minutes=5,
                shows=r"\d+ passed",
            ),
        ),
        left_to_a_card="that NVIDIA's driver loads what was installed (make gpu-build-check installs the GPU build without one)",
    ),
    Step(
        name="cards",
        real=Part(
            title="PyTorch sees every card that the driver has, each multiplies matrices, and NCCL adds over all of them",
            command=(PYTHON, "tools/gpu_cards.py", "--device", "cuda"),
            minutes=5,
        ),
        needs=("set-up",),
        rehearsal=(
            Part(
                title="two processes in the place of cards, with gloo",
                command=(PYTHON, "tools/gpu_cards.py", "--device", "cpu"),
                minutes=3,
            ),
        ),
        left_to_a_card="driver, NCCL, the rates",
    ),
    Step(
        name="gpu_check",
        real=Part(
            title="the trainer's results, memory and speed on one card",
            command=(PYTHON, "tools/gpu_check.py", "--device", "cuda"),
            minutes=12,
            shows="findings are as they should be",
            environment=OFFLINE,
        ),
        needs=("cards",),
        rehearsal=(
            Part(
                title="the same checks at tiny size, on the CPU",
                command=(PYTHON, "tools/gpu_check.py", "--device", "cpu"),
                minutes=10,
                shows="findings are as they should be",
                environment=OFFLINE,
            ),
            Part(
                title="the trainer on a CUDA device that is not there: all layouts, and the peaks at true size beside the plans",
                command=(PYTHON, "-m", "pytest", "-q", "tests/cuda"),
                minutes=40,
                shows=r"\d+ passed",
            ),
        ),
        left_to_a_card="numbers of CUDA kernels, the allocator's fragments, speed",
    ),
    Step(
        name="tests",
        real=Part(
            title="make test-gpu: weights by ipc and nccl, bfloat16, turns on a card, prefill and decode apart",
            command=(PYTHON, "-m", "pytest", "-m", "gpu"),
            minutes=25,
            shows=r"\d+ (passed|skipped)",
            environment=OFFLINE,
        ),
        needs=("cards",),
        rehearsal=(
            Part(
                title="the tests are found and import",
                command=(PYTHON, "-m", "pytest", "-q", "-m", "gpu", "--collect-only"),
                minutes=5,
                shows="tests? collected|/.* tests",
            ),
        ),
        left_to_a_card="all of these tests",
    ),
    Step(
        name="tiny",
        real=Part(
            title="a whole run of the tiny model: trainer and server in turns on one card",
            command=(*RUN, "cluster=one_gpu", "trainer.num_steps=4", "evaluation.num_runs=1", FOLDER),
            minutes=15,
            shows=STEP_LINES,
            environment=OFFLINE,
        ),
        needs=("cards",),
        rehearsal=(
            Part(
                title="the same run on the CPU, without its evaluation",
                command=(*RUN, "cluster=laptop", "trainer.num_steps=2", "evaluation.rows=[]", FOLDER),
                minutes=10,
                shows=STEP_LINES,
                environment=OFFLINE,
            ),
        ),
        left_to_a_card="sleep and wake, weights by ipc, bfloat16 logprobs of both sides",
    ),
    Step(
        name="speed",
        real=Part(
            title="the training step on Qwen2.5-7B's shapes beside the card's own rate",
            command=(PYTHON, "tools/bench_trainer.py", "--mfu"),
            minutes=10,
            shows="alone|TFLOP/s",
            environment=OFFLINE,
        ),
        needs=("cards",),
        rehearsal=(
            Part(
                title="the same program at tiny size, on the CPU",
                command=(PYTHON, "tools/bench_trainer.py", *SMALLEST),
                minutes=5,
                shows="products alone  ",
                environment=OFFLINE,
            ),
        ),
        left_to_a_card="the rate",
    ),
    fetched("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", 15),
    trained(
        "qwen2.5-1.5b",
        ("model=qwen2.5-1.5b", "cluster=one_gpu", "rollout.num_prompts=8"),
        30,
        title="two steps of MemAgent with Qwen2.5-1.5B on one card",
        cards=1,
        rehearsed=True,
    ),
    fetched("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", 20, cards=NUM_CARDS_OF_A_NODE),
    trained(
        "qwen2.5-7b",
        ("model=qwen2.5-7b", "cluster=one_node", "rollout.num_prompts=16"),
        40,
        title="two steps of MemAgent with Qwen2.5-7B on eight cards",
        cards=NUM_CARDS_OF_A_NODE,
        rehearsed=False,
    ),
    fetched("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 40, cards=NUM_CARDS_OF_A_NODE),
    trained(
        "qwen3-30b-a3b",
        ("model=qwen3-30b-a3b", "cluster=one_node", "rollout.num_prompts=8"),
        60,
        title="two steps of MemAgent with Qwen3-30B-A3B, experts over eight cards",
        cards=NUM_CARDS_OF_A_NODE,
        rehearsed=True,
    ),
    fetched("qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct", 40, cards=NUM_CARDS_OF_A_NODE),
    trained(
        "qwen2.5-32b",
        ("model=qwen2.5-32b", "cluster=one_node", "rollout.num_prompts=8"),
        60,
        title="two steps of MemAgent with Qwen2.5-32B on eight cards",
        cards=NUM_CARDS_OF_A_NODE,
        rehearsed=False,
    ),
)
