"""Our servers' additions to the stream of a reply, in vLLM's own output processor and stream, without an engine."""

import asyncio
import logging
from logging.handlers import BufferingHandler
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vime.inside_vllm import token_stream


@pytest.fixture
def enriched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams as our servers send them; as they were after the test."""
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.output_processor import RequestState

    stream = (ServingTokens, "serve_tokens_stream_generator")
    for owner, name in (stream, (RequestState, "_new_completion_output"), (RequestOutput, "add")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    token_stream.enrich_streams()


def begun() -> tuple[Any, Any]:
    """An output processor with the request `r`, of two tokens, and the queue of its stream."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

    sampling = SamplingParams(max_tokens=8, detokenize=False, stream_interval=2, output_kind=RequestOutputKind.DELTA)
    request = EngineCoreRequest(
        request_id="r",
        external_req_id="r",
        prompt_token_ids=[1, 2],
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    processor = OutputProcessor(tokenizer=None, log_stats=False)
    queue = RequestOutputCollector(RequestOutputKind.DELTA, request_id="r")
    processor.add_request(request, None, queue=queue)
    return processor, queue


def test_every_part_of_a_stream_tells_the_versions_of_all_tokens_so_far(enriched: None):
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    processor, queue = begun()
    found: list[tuple[list[int], list[tuple[str, int, int]]]] = []
    for number, version in enumerate(("3", "3", "4", "4", "4", "5")):
        reason = FinishReason.LENGTH if number == 5 else None
        processor.process_outputs(
            [EngineCoreOutput(request_id="r", new_token_ids=[10 + number], finish_reason=reason)], weight_version=version
        )
        output: Any = queue.get_nowait()
        if output is not None:
            (choice,) = output.outputs
            found.append((list(choice.token_ids), [tuple(span) for span in _spans(choice)]))
    assert found == [
        ([10], [("3", 0, 1)]),
        ([11, 12], [("3", 0, 2), ("4", 2, 3)]),
        ([13, 14], [("3", 0, 2), ("4", 2, 5)]),
        ([15], [("3", 0, 2), ("4", 2, 5), ("5", 5, 6)]),
    ]


@pytest.mark.parametrize("read_after", [{0, 1, 2, 3, 4, 5}, {0, 5}, {5}], ids=["at once", "late", "at the end"])
def test_the_parts_of_a_stream_have_the_experts_of_every_token_once(enriched: None, read_after: set[int]):
    """A part has those of all tokens but its last, however slowly the stream is read."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    processor, queue = begun()
    rows = np.arange(7 * 4, dtype=np.uint8).reshape(7, 2, 2)
    found, num_tokens = [], 2
    for number in range(6):
        reason = FinishReason.LENGTH if number == 5 else None
        output = EngineCoreOutput(request_id="r", new_token_ids=[10 + number], finish_reason=reason)
        output.routed_experts = rows[:2] if number == 0 else rows[number + 1 : number + 2]
        processor.process_outputs([output], weight_version="3")
        if number in read_after and (part := queue.get_nowait()) is not None:
            (choice,) = part.outputs
            found.append(choice.routed_experts)
            num_tokens += len(choice.token_ids)
            assert sum(map(len, found)) == num_tokens - 1
    assert np.array_equal(np.concatenate(found), rows)


async def test_a_silent_stream_sends_signs_of_life(enriched: None, monkeypatch: pytest.MonkeyPatch):
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens

    heard = asyncio.Event()

    async def stream(self: Any) -> Any:
        await heard.wait()
        yield "data: 1\n\n"

    monkeypatch.setattr(ServingTokens, "serve_tokens_stream_generator", stream)
    monkeypatch.setattr(token_stream, "SIGN_OF_LIFE_SECONDS", 0.01)
    token_stream.enrich_streams()
    events = []
    async for event in ServingTokens.serve_tokens_stream_generator(SimpleNamespace()):  # pyright: ignore
        events.append(event)
        heard.set()
    assert events[0] == ": keep-alive\n\n" and events[-1] == "data: 1\n\n"


def _spans(choice: Any) -> list[Any]:
    return [(span.version, span.start, span.end) for span in choice.weight_versions]


def test_of_a_dead_engine_each_stream_logs_a_line_and_no_trace(enriched: None):
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
    from vllm.v1.engine.exceptions import EngineDeadError

    log, handler = logging.getLogger(ServingTokens.__module__), BufferingHandler(capacity=10)
    log.addHandler(handler)
    try:
        for error in (EngineDeadError(), ValueError("another")):
            try:
                raise error
            except (EngineDeadError, ValueError):
                log.exception("Error in token generation stream.")
    finally:
        log.removeHandler(handler)
    dead, other = handler.buffer
    assert dead.exc_info is None and "EngineCore encountered an issue" in dead.getMessage()
    assert other.exc_info is not None
