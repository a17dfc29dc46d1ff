"""Requests with a seed on a CPU, where vLLM's way to undo a draw would end its engine.

A prompt that is read in parts, because the batch is full, has a token sampled after each part and thrown away. vLLM undoes the
draw of a request with a seed by the offset of its random generator. A CPU's generator has no offset ("CPU Generator does not use
offset"), so its state is saved and restored instead.
"""

from typing import Any


def keep_seeds() -> None:
    """Makes vLLM's CPU model runner restore the generators of requests whose token is thrown away."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    sample, bookkeep = CPUModelRunner._sample, CPUModelRunner._bookkeeping_sync

    def sample_and_put_back(self: Any, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        states = {index: generators[index].get_state() for index in _thrown_away(self)}
        output = sample(self, *args, **kwargs)
        for index, state in states.items():
            generators[index].set_state(state)
        return output

    def bookkeep_without(self: Any, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        kept = {index: generators.pop(index) for index in _thrown_away(self)}
        try:
            return bookkeep(self, *args, **kwargs)
        finally:
            generators.update(kept)

    CPUModelRunner._sample = sample_and_put_back
    CPUModelRunner._bookkeeping_sync = bookkeep_without


def _thrown_away(runner: Any) -> list[int]:
    """Indices in the batch of requests with a seed whose token is thrown away."""
    batch = runner.input_batch
    return [index for index in batch.generators if runner.discard_request_mask.np[: batch.num_reqs][index]]
