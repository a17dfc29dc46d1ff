"""Messages between the stages of an interleaved pipeline on gloo.

With two stages the previous and the next stage are the same rank, and gloo matches messages between two ranks in the order of
sending: an activation on its way forward could be taken for a gradient on its way back. Megatron's own communicator then silently
trains something else. Here each direction has tags of its own, so a message can only meet the receive of its own direction. In
one direction both ranks walk the same list of micro-batches in the same order, for any lengths.
"""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.process_groups_config import ProcessGroupCollection

FORWARD, BACKWARD = 1, 2
SHAPE = 2
"""Added to the tag of a direction for the message that announces the shape."""


class TaggedCommunicator(P2PCommunicator):
    """Megatron's communicator for pipelines, with a channel for each direction."""

    def _communicate(
        self,
        *,
        tensor_send_next: torch.Tensor | None,
        tensor_send_prev: torch.Tensor | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: Any,
        wait_on_reqs: bool = True,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, dict[str, Any] | None]:
        """Announces shapes, then sends and receives: activations to the next stage, gradients to the one before.

        Called for messages that may be in flight together, so all are posted before any is awaited.
        """
        to_next, to_prev = (None if x is None else torch.tensor(x.shape) for x in (tensor_send_next, tensor_send_prev))
        from_prev, from_next = (torch.empty(3, dtype=torch.int64) if wanted else None for wanted in (recv_prev, recv_next))
        for request in self._post(to_next, to_prev, from_prev, from_next, offset=SHAPE).values():
            request.wait()
        activation, gradient = (None if shape is None else self._empty(shape) for shape in (from_prev, from_next))
        requests = self._post(tensor_send_next, tensor_send_prev, activation, gradient, offset=0)
        if wait_on_reqs:
            for request in requests.values():
                request.wait()
        return activation, gradient, None if wait_on_reqs else requests

    def _post(
        self,
        send_next: torch.Tensor | None,
        send_prev: torch.Tensor | None,
        recv_prev: torch.Tensor | None,
        recv_next: torch.Tensor | None,
        *,
        offset: int,
    ) -> dict[str, Any]:
        forward, backward = FORWARD + offset, BACKWARD + offset
        messages: dict[str, tuple[Any, torch.Tensor | None, int | None, int]] = {
            "recv_prev": (dist.irecv, recv_prev, self.prev_rank, forward),
            "recv_next": (dist.irecv, recv_next, self.next_rank, backward),
            "send_next": (dist.isend, send_next, self.next_rank, forward),
            "send_prev": (dist.isend, send_prev, self.prev_rank, backward),
        }
        return {
            name: post(tensor.detach().contiguous() if name.startswith("send") else tensor, peer, group=self.pp_group, tag=tag)
            for name, (post, tensor, peer, tag) in messages.items()
            if tensor is not None
        }

    def _empty(self, shape: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape.tolist(), dtype=self.config.pipeline_dtype, requires_grad=True)


def schedule_arguments(config: Any) -> dict[str, Any]:
    """Arguments of Megatron's schedule besides its data: on gloo, for an interleaved pipeline, this communicator."""
    group: Any = parallel_state.get_pipeline_model_parallel_group()
    if config.virtual_pipeline_model_parallel_size is None or dist.get_backend(group) != "gloo":
        return {}
    groups: Any = ProcessGroupCollection()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.cp = parallel_state.get_context_parallel_group()
    groups.pp = group
    groups.embd = parallel_state.get_embedding_group(check_initialized=False)
    groups.pos_embd = parallel_state.get_position_embedding_group(check_initialized=False)
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=False)
    return {"p2p_communicator": TaggedCommunicator(group, config), "pg_collection": groups}
