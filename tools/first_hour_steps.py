"""The steps of `first_hour.py`: their programs on a GPU machine and in a rehearsal, and what only a card can answer."""

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
    """A step that is tried separately: a part for the machine, the parts of its rehearsal, and what these leave open.

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


def trained(
    model: str,
    checkpoint: str,
    prompts: int,
    *,
    title: str,
    cards: int = 1,
    minutes: float,
    to_fetch: float,
    rehearsed: bool,
) -> tuple[Step, Step]:
    """Two steps: the checkpoint comes into the cache of Hugging Face, so that the run neither waits for it nor fails by it; then
    the run, with the words of a user. Its plan is always rehearsed, the run itself where `rehearsed` says so."""
    fetched = Step(
        name=f"fetch_{model}",
        real=Part(
            title=f"{checkpoint} is in the cache of Hugging Face",
            command=(PYTHON, "-c", FETCH, checkpoint),
            minutes=to_fetch,
        ),
        needs=("set-up",),
        cards=cards,
        left_to_a_card="nothing of a card, but a network: the download",
    )
    cluster = "one_gpu" if cards == 1 else "one_node"
    command = (*RUN, *SHORT, f"model={model}", f"cluster={cluster}", f"rollout.num_prompts={prompts}")
    rehearsal = [Part(title="the plan is accepted", command=(*command, "mode=plan"), minutes=3, shows="at most .* of its")]
    if rehearsed:
        title_of_rehearsal = "the same words on a random small model, on the CPU"
        rehearsal += [Part(title=title_of_rehearsal, command=(*command, "rehearse=true", FOLDER), minutes=15, shows=STEP_LINES)]
    run = Step(
        name=model,
        real=Part(title=f"two steps of MemAgent with {title}", command=(*command, FOLDER), minutes=minutes, shows=STEP_LINES),
        needs=("cards", fetched.name),
        cards=cards,
        rehearsal=tuple(rehearsal),
        left_to_a_card="the run: kernels, NCCL, vLLM's graphs, the memory that is really taken, speed",
    )
    return fetched, run


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
    *trained(
        "qwen2.5-1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct",
        8,
        title="Qwen2.5-1.5B on one card",
        minutes=30,
        to_fetch=15,
        rehearsed=True,
    ),
    *trained(
        "qwen2.5-7b",
        "Qwen/Qwen2.5-7B-Instruct",
        16,
        title="Qwen2.5-7B on eight cards",
        cards=8,
        minutes=40,
        to_fetch=20,
        rehearsed=False,
    ),
    *trained(
        "qwen3-30b-a3b",
        "Qwen/Qwen3-30B-A3B",
        8,
        title="Qwen3-30B-A3B, experts over eight cards",
        cards=8,
        minutes=60,
        to_fetch=40,
        rehearsed=True,
    ),
    *trained(
        "qwen2.5-32b",
        "Qwen/Qwen2.5-32B-Instruct",
        8,
        title="Qwen2.5-32B on eight cards",
        cards=8,
        minutes=60,
        to_fetch=40,
        rehearsed=False,
    ),
)
