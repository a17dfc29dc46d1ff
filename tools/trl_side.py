"""One side of the trainer's benchmark: TRL's GRPO training step, under the Python of an environment that has TRL.

    /path/to/environment/bin/python tools/trl_side.py NUM_THREADS

`GRPOTrainer.training_step` is called as its loop does, on a batch that is given instead of generated; like its own, this one is
padded to its longest prompt and response before it is cut into micro-batches. In bfloat16 TRL keeps float32 weights and casts.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from side_turns import serve
from trainer_case import BATCH_SIZE, LR, Case, padded_batches, read_case
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]


class GivenBatches(GRPOTrainer):
    """Trains on inputs as they are."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return generation_batch


def build(case: Case, folder: Path, num_threads: int) -> Callable[[], None]:
    """Micro-batches through `training_step`, then clipping and the optimizer that TRL makes."""
    torch.set_num_threads(num_threads)
    inputs = _inputs(case)
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=len(inputs),
        num_generations=BATCH_SIZE,
        learning_rate=LR,
        beta=0.0,
        bf16=case.precision == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        max_completion_length=max(len(sequence["response"]) for sequence in case.sequences),
        report_to=[],
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trainer: Any = GivenBatches(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "none"}] * BATCH_SIZE),
        processing_class=_tokenizer(),
    )
    trainer.create_optimizer()
    model, optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    trainer.current_gradient_accumulation_steps = len(inputs)

    def step() -> None:
        for batch in inputs:
            trainer.training_step(model, batch, None)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        assert 0 < norm < float("inf"), f"gradient norm {norm}"
        optimizer.step()
        model.zero_grad()

    return step


def _inputs(case: Case) -> list[dict[str, torch.Tensor]]:
    """Prompts filled up on the left, responses on the right, all to the longest of the whole batch."""
    prompt_width, response_width = (max(len(sequence[part]) for sequence in case.sequences) for part in ("prompt", "response"))
    found = []
    for batch in padded_batches(case):
        prompts, prompt_mask = torch.zeros(2, len(batch), prompt_width, dtype=torch.int64).unbind()
        responses, response_mask = torch.zeros(2, len(batch), response_width, dtype=torch.int64).unbind()
        for row, sequence in enumerate(batch):
            prompt, response = sequence["prompt"], sequence["response"]
            prompts[row, prompt_width - len(prompt) :], prompt_mask[row, prompt_width - len(prompt) :] = torch.tensor(prompt), 1
            responses[row, : len(response)], response_mask[row, : len(response)] = torch.tensor(response), 1
        found.append(
            {
                "prompt_ids": prompts,
                "prompt_mask": prompt_mask,
                "completion_ids": responses,
                "completion_mask": response_mask,
                "advantages": torch.tensor([sequence["advantage"] for sequence in batch]),
                "num_items_in_batch": torch.tensor(sum(len(sequence["response"]) for sequence in case.sequences)),
            }
        )
    return found


def _tokenizer() -> Any:
    """TRL wants one; nothing is tokenized."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


if __name__ == "__main__":
    serve(lambda folder: build(read_case(folder), folder, int(sys.argv[1])))
