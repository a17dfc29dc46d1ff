"""Faults that the room must find, made by name in a process before the trainer is built, or before a worker's updates."""

from typing import Any

import torch
import torch.distributed as dist


def make(name: str) -> None:
    """Makes one of the faults below."""
    globals()[name]()


def a_cpu_tensor_in_a_collective() -> None:
    """A count of tokens is summed over ranks while it is on the host."""
    from vime.trainer import passes

    forward = passes._hidden

    def counting(chunk: Any, batch: Any) -> torch.Tensor:
        dist.all_reduce(torch.tensor([float(batch.tokens_T.numel())]))
        return forward(chunk, batch)

    passes._hidden = counting


def a_transposed_tensor_in_a_collective() -> None:
    """An output is gathered by its columns."""
    from vime.trainer import passes

    forward = passes._hidden

    def gathering(chunk: Any, batch: Any) -> torch.Tensor:
        hidden = forward(chunk, batch)
        dist.all_reduce(hidden.detach()[:, 0].t())
        return hidden

    passes._hidden = gathering


def a_value_read_in_every_layer() -> None:
    """A layer looks at its output."""
    from megatron.core.transformer.transformer_layer import TransformerLayer

    forward = TransformerLayer.forward

    def looking(layer: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = forward(layer, *args, **kwargs)
        assert sum(outputs[0].shape) and outputs[0].sum().item()  # type: ignore[union-attr]
        return outputs

    TransformerLayer.forward = looking  # type: ignore[method-assign]


def a_copy_to_the_host_in_every_layer() -> None:
    """A layer's backward pass brings a gradient to the host."""
    from vime.trainer import attention

    backward = attention._Rotate.backward

    def copying(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradients[0].sum().cpu()
        return backward(ctx, *gradients)

    attention._Rotate.backward = staticmethod(copying)  # type: ignore[method-assign]


def a_value_read_in_every_row() -> None:
    """The largest ratio is looked for among the trained tokens alone, whose number the host has to know."""
    from vime.algorithm import loss

    loss.masked_max = lambda values, mask: values[mask > 0].max()


def a_row_that_is_copied_as_it_is() -> None:
    """Columns go to the device in PyTorch's usual way, which waits for it."""
    from vime.trainer import micro_batch

    micro_batch.to_device = lambda tensor, place: tensor.to(place)


def a_forgotten_move() -> None:
    """Advantages and weights of tokens stay on the host."""
    from vime.trainer import micro_batch

    build = micro_batch._build

    def staying(*args: Any, **options: Any) -> Any:
        batch = build(*args, **options)
        batch.columns = {name: values.cpu() for name, values in batch.columns.items()}
        return batch

    micro_batch._build = staying


def a_buffer_left_behind() -> None:
    """A buffer is added after the model was moved."""
    from vime.trainer import engine

    build = engine.build_model

    def adding(*args: Any) -> Any:
        model = build(*args)
        model.register_buffer("forgotten", torch.zeros(4))
        return model

    engine.build_model = adding


def an_optimizer_that_is_not_fused() -> None:
    """Adam is what Megatron makes of it: operation by operation over all parameters at once."""
    from vime.trainer import engine

    build = engine.build_optimizer

    def building(*args: Any) -> Any:
        optimizer = build(*args)
        for group in optimizer.param_groups:
            group["fused"] = None
        return optimizer

    engine.build_optimizer = building


def weights_that_stay_in_memory() -> None:
    """Someone keeps a view of the weights' storage that offloading does not know."""
    from vime.trainer import offload

    take = offload.HostMemory.take

    def keeping(memory: Any, tensors: Any, *, keep_content: bool = True) -> None:
        take(memory, list(tensors)[1:], keep_content=keep_content)

    offload.HostMemory.take = keeping  # type: ignore[method-assign]


def a_digest_that_waits_for_each_tensor() -> None:
    """A worker looks at every tensor that arrives."""
    from vime.weights.payload import WeightDigest

    update = WeightDigest.update

    def looking(digest: Any, name: str, tensor: torch.Tensor) -> None:
        assert tensor.sum().item()
        update(digest, name, tensor)

    WeightDigest.update = looking  # type: ignore[method-assign]


def a_comparison_that_waits_for_each_tensor() -> None:
    """A proof asks the device after each comparison."""
    from vime.inside_vllm import proof

    proof.faults = lambda comparisons: [made.fault() for made in comparisons if not bool(made.is_right)]


def a_copy_that_waits_for_each_tensor() -> None:
    """The columns to compare are copied to the device in PyTorch's usual way, which waits for it."""
    from vime.inside_vllm.proof import Proof

    choose = Proof._indices
    Proof._indices = lambda proof, shard, size: choose(proof, shard, size).to("cuda")  # type: ignore[method-assign]


def weights_received_on_the_host() -> None:
    """A transport does not know its device."""
    from vime.inside_vllm.direct_transfer import DigestNCCLEngine

    receive = DigestNCCLEngine.receive_weights

    def receiving(engine: Any, info: Any) -> None:
        engine.device = torch.device("cpu")
        receive(engine, info)

    DigestNCCLEngine.receive_weights = receiving  # type: ignore[method-assign]


def samples_kept_on_the_host() -> None:
    """The values that a proof compares leave the device, tensor by tensor."""
    from vime.inside_vllm.proof import Proof

    note = Proof.note
    Proof.note = lambda proof, model, name, tensor: note(proof, model, name, tensor.cpu())  # type: ignore[method-assign]


def a_product_of_the_host() -> None:
    """The one-hot vectors of a proof stay on the host."""
    from vime.inside_vllm import proof

    proof._product = lambda module, indices, size: module.quant_method.apply(
        module, torch.eye(size, dtype=torch.bfloat16)[: len(indices)], None
    ).t()


def weights_in_other_memory() -> None:
    """Weights are erased by tensors that take their place and that captured graphs do not see."""
    from vime.inside_vllm import transfer

    def replace(model: torch.nn.Module) -> None:
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and not hasattr(parameter, "weight_loader"):
                    setattr(module, name, torch.nn.Parameter(torch.full_like(parameter, torch.nan), False))

    transfer.erase = replace


def a_buffer_of_the_host() -> None:
    """A worker adds a buffer to the model, on the host."""
    from vime.inside_vllm import transfer

    erase = transfer.erase

    def adding(model: torch.nn.Module) -> None:
        erase(model)
        model.register_buffer("forgotten", torch.zeros(4, device="cpu"))

    transfer.erase = adding
