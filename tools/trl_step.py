"""One side of the benchmark of whole steps: TRL's GRPOTrainer, under the Python of an environment that has TRL.

    /path/to/environment/bin/python tools/trl_step.py NUM_THREADS

`GRPOTrainer.train()` runs as its users call it, and waits after each optimizer step until it is asked for the next. The values of
a case's `trl`: `float32` has no gradient checkpointing and no mixed precision; `defaults` has what `GRPOConfig()` has: bfloat16
by autocast, gradient checkpointing; `bfloat16` has the first alone; `continuous` is `float32` with transformers' continuous
batching, for single turns; `vllm` with vLLM in the same process, which on the CPU ends at the first weight sync: vLLM 0.32 has
packed its linear layers by then (`'Parameter' object has no attribute 'weight_loader'`). An agent's tools go in as `tools=`, and
TRL's own loop calls them.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from side_turns import serve
from step_case import END_ID, SINGLE, StepCase, query_of, read_case, reward_of, search
from trainer_case import BATCH_SIZE, LR
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

MAX_COMPLETION_TOKENS = 3072
"""The most tokens of an agent, its tools' results included: more than any has."""
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"bf16": False, "gradient_checkpointing": False},
    "bfloat16": {"bf16": True, "gradient_checkpointing": False},
    "defaults": {},
    "continuous": {
        **{"bf16": False, "gradient_checkpointing": False, "use_transformers_continuous_batching": True},
        "transformers_continuous_batching_config": {"num_blocks": 128, "max_batch_tokens": 1024},  # else half of the memory
    },
    "vllm": {
        **{"bf16": False, "gradient_checkpointing": False, "use_vllm": True, "vllm_mode": "colocate"},
        **{"vllm_gpu_memory_utilization": 0.05, "vllm_max_model_length": 2048},
    },
}


class Script(transformers.LogitsProcessor):
    """Ends every reply where the case says, with a tool call if it is not the rollout's last."""

    def __init__(self, case: StepCase, tokenizer: Any) -> None:
        self._case, self._tokenizer = case, tokenizer
        self._forced = torch.empty(0, 0, dtype=torch.int64)
        self._position = 0
        self.turn = 0

    def begin(self, num_rows: int) -> None:
        """The next reply of all rollouts that have one left, in the order of the batch."""
        rows = [number for number, lengths in enumerate(self._case.replies) if len(lengths) > self.turn]
        assert len(rows) == num_rows, f"{num_rows} rollouts in turn {self.turn}, {len(rows)} have one"
        longest = max(self._case.replies[row][self.turn] for row in rows)
        self._forced = torch.full((num_rows, longest), -1)
        for place, row in enumerate(rows):
            length, end = self._case.replies[row][self.turn], self._end(row)
            self._forced[place, length - len(end) : length] = torch.tensor(end)
        self.turn, self._position = self.turn + 1, 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        forced = self._forced[:, self._position]
        self._position += 1
        rows = (forced >= 0).nonzero().squeeze(1)
        scores[rows] = -torch.inf
        scores[rows, forced[rows]] = 0.0
        return scores

    def _end(self, row: int) -> list[int]:
        if self.turn == len(self._case.replies[row]) - 1:
            return [END_ID]
        query = query_of(row, self.turn)
        call = f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call>'
        return [*self._tokenizer.encode(call, add_special_tokens=False), END_ID]


QWEN3: Any = transformers.Qwen3ForCausalLM  # whose mixins are typed for others


class Scripted(QWEN3):
    """A model that knows how long its generations took, and whose replies end by the script if there is one."""

    script: Script | None = None
    seconds = 0.0

    def generate(self, *arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        if self.script is not None:
            self.script.begin(len(named["input_ids"]))
            named["logits_processor"] = transformers.LogitsProcessorList([self.script])
        found = super().generate(*arguments, **named)
        self.seconds += time.perf_counter() - started
        return found

    def generate_batch(self, *arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        found = super().generate_batch(*arguments, **named)
        self.seconds += time.perf_counter() - started
        return found


class Turns(transformers.TrainerCallback):
    """Holds the training loop after each step until the next is wanted."""

    def __init__(self) -> None:
        self.wanted, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Waits until the first step is wanted."""
        self.wanted.acquire()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports that a step is done, and waits for the next."""
        self.done.release()
        self.wanted.acquire()
        control.should_training_stop = self.ended


class Loop:
    """`GRPOTrainer.train()` of a case in a thread, one step at a time."""

    def __init__(self, case: StepCase, folder: Path, num_threads: int) -> None:
        self._case, self._turns, self._error = case, Turns(), ""
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = Scripted.from_pretrained(folder, dtype=torch.float32)
        self._trainer = make_trainer(case, folder, self._model, tokenizer, self._turns)
        self._thread = threading.Thread(target=self._run, args=(num_threads,), daemon=True)
        self._thread.start()

    def step(self) -> dict[str, float]:
        """One optimizer step: seconds of `generation` in it, and how many `tokens` were sampled."""
        self._model.seconds = 0.0
        if self._model.script is not None:
            self._model.script.turn = 0
        self._turns.wanted.release()
        self._turns.done.acquire()
        if self._error:
            raise RuntimeError(self._error)
        metrics = self._trainer._metrics["train"]
        assert metrics["reward_std"][-1] > 0, "a batch without a signal"
        num_rollouts = self._case.num_prompts * self._case.num_samples
        return {"generation": self._model.seconds, "tokens": num_rollouts * metrics["completions/mean_length"][-1]}

    def close(self) -> None:
        """Ends the loop after its step."""
        self._turns.ended = True
        self._turns.wanted.release()
        self._thread.join()

    def _run(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)  # counts for this thread's work
        try:
            self._trainer.train()
        except BaseException as error:  # the thread's boundary: the other one waits for an answer
            self._error = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._turns.done.release()


def make_trainer(case: StepCase, folder: Path, model: Any, tokenizer: Any, turns: Turns) -> Any:
    """TRL's trainer of a case, whose batch is one optimizer step."""
    num_rollouts, is_single = case.num_prompts * case.num_samples, case.work == SINGLE
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=1_000_000,
        lr_scheduler_type="constant",
        learning_rate=LR,
        beta=0.0,
        shuffle_dataset=False,
        num_generations=case.num_samples,
        per_device_train_batch_size=min(BATCH_SIZE, num_rollouts),
        gradient_accumulation_steps=max(1, num_rollouts // BATCH_SIZE),
        max_completion_length=case.replies[0][0] if is_single else MAX_COMPLETION_TOKENS,
        disable_tqdm=True,
        logging_steps=1_000_000,  # keeps the metrics of a step
        **SETTINGS[case.trl],
    )
    if not is_single:
        from trl.chat_template_utils import qwen3_template  # pyright: ignore[reportMissingImports]

        tokenizer.response_template = qwen3_template
        model.script = Script(case, tokenizer)
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [reward_of(texts[-1]["content"]) for texts in completions],
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in case.prompts]),
        processing_class=tokenizer,
        tools=None if is_single else [search],
        callbacks=[turns],
    )


def main() -> None:
    """Serves turns; a new case ends the one before."""
    loops: list[Loop] = []

    def build(folder: Path) -> Callable[[], dict[str, float]]:
        if loops:
            loops.pop().close()
        loops.append(Loop(read_case(folder), folder, int(sys.argv[1])))
        return loops[0].step

    serve(build)


if __name__ == "__main__":
    main()
