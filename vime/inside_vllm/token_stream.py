"""Additions to the stream of a reply: weight versions and experts of every token at once, and signs of life while none comes.

vLLM reports weight versions and routed experts with the last token only, so those of a reply that a lost server or a limit has
cut short would be unknown. It sends nothing while a request waits in the queue, its prompt is read, or generation is paused for a
weight sync, so a busy server could not be distinguished from a lost one.
"""

import logging
from typing import Any

import numpy as np

SIGN_OF_LIFE_SECONDS = 5.0


def enrich_streams() -> None:
    """Makes vLLM's API server in this process add them to every stream of token ids.

    A dead engine then costs one line of the log per stream instead of a trace; the traces of hundreds of streams would take
    seconds.
    """
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
    from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.output_processor import RequestState

    stream, complete = ServingTokens.serve_tokens_stream_generator, RequestState._new_completion_output
    add = RequestOutput.add

    def stream_with_signs_of_life(self: Any, *arguments: Any, **named: Any) -> Any:
        return with_sse_keep_alive(stream(self, *arguments, **named), SIGN_OF_LIFE_SECONDS)

    def complete_with_versions(self: Any, *arguments: Any, **named: Any) -> Any:
        output = complete(self, *arguments, **named)
        if output.weight_versions is None:
            output.weight_versions = self._weight_version_spans()
        if self.output_kind is RequestOutputKind.DELTA and self.routed_experts_chunks:
            output.routed_experts = np.concatenate(self.routed_experts_chunks)
            self.routed_experts_chunks.clear()
        return output

    def add_with_experts(self: Any, next_output: Any, aggregate: bool) -> None:
        # vLLM merges the parts of a stream that is read slowly, and of experts it keeps those of the last part
        earlier = {part.index: part.routed_experts for part in self.outputs if part.routed_experts is not None}
        later = {part.index: part.routed_experts for part in next_output.outputs if part.routed_experts is not None}
        add(self, next_output, aggregate)
        for part in self.outputs if aggregate else ():
            if part.index in earlier and part.index in later:
                part.routed_experts = np.concatenate([earlier[part.index], later[part.index]])

    logging.getLogger(ServingTokens.__module__).addFilter(without_trace_of_dead_engine)
    ServingTokens.serve_tokens_stream_generator = stream_with_signs_of_life
    RequestState._new_completion_output = complete_with_versions
    RequestOutput.add = add_with_experts


def without_trace_of_dead_engine(record: logging.LogRecord) -> bool:
    """A log filter that lets every record pass, but removes the trace from those about a dead engine."""
    from vllm.v1.engine.exceptions import EngineDeadError

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, EngineDeadError):
        record.msg, record.args, record.exc_info = f"{record.getMessage()} {error}", (), None
    return True
