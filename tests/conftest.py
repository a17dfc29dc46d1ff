"""Parts that tests share: small random checkpoints, a local Ray, and real vLLM servers that live as long as the session.

A test is slow if it uses one of the real parts below; modules that start whole programs say so by the same mark. Slow tests come
after the others, and those that share Ray and servers last: until then these would take time and memory from whole runs.
`make test` gives the slow tests to several workers. One of them takes all tests that are marked as `in_turn`, those with Ray or
servers, and begins with them, because together they take longest; the others take the other modules, each as a whole.

No test sees a GPU but those that are marked as `gpu`, and these only if nothing else is chosen, as by `make test-gpu`: the others
are about the CPU, where ranks are forks and share a device.
"""

import asyncio
import gc
import hashlib
import os
import pickle
import sys
import uuid
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from vime.cluster.accelerators import GPU_BUILD, installed_build

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # every core has a worker: threads would only spin in wait of each other

VOCAB_SIZE = 320
MAX_POSITIONS = 1024
SECRET = "of-the-servers-of-untied"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

REAL_PARTS = ["world", "ray_cluster", "served"]
"""Fixtures with a trainer, Ray or servers, in the order in which their tests run."""


def pytest_configure(config: pytest.Config) -> None:
    """Hides the GPUs from tests that do not ask for them. What collecting makes is no garbage soon, so no one looks for it."""
    if not asks_for_gpus(config.getoption("markexpr") or ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not config.getoption("collectonly"):
        import torch

        if not torch.cuda.is_available():
            raise pytest.UsageError("PyTorch sees no CUDA device, and the tests marked gpu are about nothing else")
    gc.disable()


def asks_for_gpus(expression: str) -> bool:
    """Returns True if an expression of marks (pytest's `-m`) chooses tests that are marked as `gpu`, and no others."""
    if not expression:
        return False
    compiled = Expression.compile(expression)

    def chooses(marks: set[str]) -> bool:
        return compiled.evaluate(lambda name, **_: name in marks)

    others: list[set[str]] = [{*names} for size in range(4) for names in combinations(("slow", "in_turn", "long"), size)]
    return not any(map(chooses, others)) and any(chooses({*marks, "gpu"}) for marks in others)


def pytest_collection_finish() -> None:
    """Freezes the objects of collecting, which live to the end: scanning them repeatedly would be a tenth of the tests' cost."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is slow or in turn, groups it and puts it in its order; tests that are equal in this stay in theirs."""
    is_grouped = bool(config.getoption("loadgroup", False))  # in a worker of xdist
    place: dict[pytest.Item, tuple[bool, int]] = {}
    for item in items:
        used = [name for name in REAL_PARTS if name in getattr(item, "fixturenames", ())]
        if used or item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.slow)
        if {"ray_cluster", "served"} & set(used):
            item.add_marker(pytest.mark.in_turn)
        in_turn = item.get_closest_marker("in_turn") is not None
        if in_turn and item.get_closest_marker("gpu") is None and installed_build() == GPU_BUILD:
            item.add_marker(
                pytest.mark.skip(reason="the servers of the GPU build do not run on a CPU; those of VIME_SETUP=cpu do")
            )
        if is_grouped:  # as xdist 3.8.0 does for its mark `xdist_group`, but by an attribute that pytest 9.2.0 no longer has
            item._id = item.id.parse(f"{item.nodeid}@{'in_turn' if in_turn else item.id.path}")
        kind = REAL_PARTS.index(used[-1]) + 2 if used else int(item.get_closest_marker("slow") is not None)
        place[item] = is_grouped and not in_turn, kind
    assert all("@" in item.nodeid for item in items) or not is_grouped, "pytest has another attribute for this"
    items.sort(key=lambda item: place[item])


@pytest.fixture(scope="session", autouse=True)
def composed_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hydra composes each choice of our own options once for all workers: the values of a command line are applied to a copy.

    Composing is three quarters of what `compose_run` takes, and most tests choose the same few options. Words of Hydra's own,
    `hydra.searchpath` among them, may name files that a test wrote, so those are composed every time, as is what fails.
    """
    from vime.preflight import overrides as module

    compose, base = module.compose, tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "composed"
    folder.mkdir(exist_ok=True)

    def compose_once(name: str, *, overrides: list[str], return_hydra_config: bool) -> Any:
        assert name == "config" and return_hydra_config, (name, return_hydra_config)
        if any("hydra" in word for word in overrides):
            return compose(name, overrides=overrides, return_hydra_config=True)
        file = folder / hashlib.sha256("\n".join(overrides).encode()).hexdigest()
        if not file.exists():
            unfinished = file.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(pickle.dumps(compose(name, overrides=overrides, return_hydra_config=True)))
            unfinished.replace(file)
        tree = pickle.loads(file.read_bytes())
        tree.hydra.runtime.cwd = os.getcwd()
        return tree

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "compose", compose_once)
        yield


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random two-layer checkpoints with a byte-level tokenizer: `untied` is Qwen3-shaped, `tied` Qwen2.5-shaped."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: save_checkpoint(folder / name, tied=name == "tied") for name in ("untied", "tied")}


@pytest.fixture(scope="session")
def two_key_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint like `untied`, with two key-value heads, so that two tensor-parallel ranks can share it."""
    return save_checkpoint(tmp_path_factory.mktemp("checkpoints") / "two_keys", tied=False, num_key_value_heads=2)


def save_checkpoint(folder: Path, *, tied: bool, num_key_value_heads: int = 1) -> Path:
    """Writes a random checkpoint with its tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": num_key_value_heads,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "initializer_range": 0.2,  # with the usual 0.02, so small a model says the same to everything
        "bos_token_id": None,
        "eos_token_id": 256,
        "pad_token_id": 257,
    }
    torch.manual_seed(0)
    if tied:
        Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True)).save_pretrained(folder)
    else:
        Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=32, tie_word_embeddings=False)).save_pretrained(folder)
    _save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray of this session's own."""
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")  # as a run does: Ray's 15 starves servers on a busy machine
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=128 * 2**20,
        _node_ip_address="127.0.0.1",
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def served(checkpoints: dict[str, Path], ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Real servers in float32, each with its trainer's stand-in.

    `tied` is one server; `untied` has two replicas behind a router and three more models: `reader`, a frozen server of `tied`
    that speculates, and `critic` and `judge`, which are the server of `tied` by its two addresses. What `untied` starts has a
    secret, as it would beyond the loopback.
    """
    from tests.served_stack import HuggingFaceTrainer, ServedStack
    from vime.serving.topology import Serving
    from vime.weights.policy import Policy

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent / "inside_vllm"), os.environ.get("PYTHONPATH", "")])
    os.environ["OPENAI_API_KEY"] = "none"
    running: dict[str, Any] = {}

    def start(name: str, config: Any, *, secret: str | None = None) -> None:
        policy = Policy()
        serving = Serving(config, tmp_path_factory.mktemp(name), uuid.uuid4().hex[:8], policy=policy, secret=secret)
        trainer = HuggingFaceTrainer(checkpoints[name], serving.payload_folder)
        running[name] = ServedStack(config, serving, trainer, policy)
        serving.start()

    start("tied", serving_config(checkpoints["tied"], engine_timeout_seconds=15.0))
    start("untied", four_models_config(checkpoints, running["tied"].endpoint.url), secret=SECRET)

    async def all_ready() -> None:
        await asyncio.gather(*[stack.serving.ready() for stack in running.values()])

    try:
        asyncio.run(all_ready())
        yield running
    finally:
        for stack in running.values():
            asyncio.run(stack.serving.stop())


@pytest.fixture(scope="session")
def make_serving_config() -> Any:
    """The function `serving_config`."""
    return serving_config


def serving_config(checkpoint: Path, *, num_replicas: int = 1, engine_timeout_seconds: float = 120.0, **vllm_args: Any) -> Any:
    """A run's configuration with one trained model on this machine's cores.

    With a short `engine_timeout_seconds` a busy machine looks like a hung engine.
    """
    from vime.config import ModelConfig, Precision, RunConfig, ServedModelConfig, ServingConfig, TrainerConfig

    actor = ServedModelConfig(
        trained=True,
        num_replicas=num_replicas,
        gpu_memory_utilization=0.01,
        max_num_seqs=64,
        vllm_args={"worker_extension_cls": "breakable_transfer.BreakableReport", **vllm_args},
    )
    return RunConfig(
        model=ModelConfig(checkpoint=str(checkpoint), vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_POSITIONS),
        trainer=TrainerConfig(precision=Precision.float32),
        serving=ServingConfig(
            models={"actor": actor},
            health_interval_seconds=0.5,
            health_failures=4,
            engine_timeout_seconds=engine_timeout_seconds,
            recovery_timeout_seconds=240.0,
        ),
    )


def four_models_config(checkpoints: dict[str, Path], url: str) -> Any:
    """`conf/experiment/memagent_four_models.yaml` with the test's checkpoints and a running server for others'."""
    from vime.preflight.compose import compose_run

    os.environ |= {"VIME_CRITIC_URL": url, "VIME_JUDGE_URL": f"{url}/v1", "VIME_JUDGE_MODEL": "actor"}
    config = compose_run(["+experiment=memagent_four_models"]).config
    small = serving_config(checkpoints["untied"], num_replicas=2)
    config.model, config.trainer = small.model, small.trainer
    models = small.serving.models | {name: config.serving.models[name] for name in ("reader", "critic", "judge")}
    models["reader"].checkpoint = models["critic"].checkpoint = str(checkpoints["tied"])
    models["reader"].max_model_len = models["critic"].max_model_len = MAX_POSITIONS
    models["reader"].gpu_memory_utilization = 0.01
    models["critic"].served_name = "actor"
    config.serving = small.serving
    config.serving.models = models
    return config


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


@pytest.fixture
def some_strands_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter in the place of the one with Strands, for tests that only compose its experiment."""
    monkeypatch.setenv("VIME_STRANDS_PYTHON", sys.executable)
