"""Served models whose replies a test's stand-ins give, and a rollout's context of them."""

from typing import Any

from vime.chat.served_model import ServedModel
from vime.rollout.context import Context
from vime.trajectory.trajectory import Trajectory
from vime.types import Integers, Turn


class Completing:
    """A client that asks the stand-in."""

    def __init__(self, stand_in: Any) -> None:
        self.stand_in = stand_in

    async def generate(self, token_ids: Integers, *, sampling: dict[str, Any], listener: Any, **_: Any) -> Turn:
        more: dict[str, Any] = {"stop": tuple(sampling["stop"])} if "stop" in sampling else {}
        more |= {"constraint": sampling["structured_outputs"]} if "structured_outputs" in sampling else {}
        more |= {"hear": listener.received} if "stream_interval" in sampling else {}
        return await self.stand_in.complete(token_ids, max_tokens=sampling["max_tokens"], **more)

    async def chat(self, messages: Any, *, max_tokens: int, tools: Any = None, sampling: Any = None) -> Turn:
        return await self.stand_in.chat(messages, max_tokens=max_tokens, **({"tools": tools} if tools else {}))


def served_by(stand_in: Any, **about: Any) -> ServedModel:
    """The model of a stand-in: of `complete`, which has a tokenizer, or where it shows no tokens of `chat`."""
    return ServedModel(
        client=Completing(stand_in),
        tokenizer=getattr(stand_in, "tokenizer", None),
        max_model_len=getattr(stand_in, "max_model_len", 10_000),
        name=getattr(stand_in, "name", "actor"),
        chat_template_args=getattr(stand_in, "template", {}),
        shows_tokens=getattr(stand_in, "shows_tokens", hasattr(stand_in, "complete")),
        session="s",
        **about,
    )


def context_with(models: dict[str, Any], *, config: Any, evaluation: bool = False, **more: Any) -> Context:
    """The context of a rollout whose trained model is the actor; stand-ins become served models, all of one trajectory."""
    trajectory = Trajectory()
    served = {name: model if isinstance(model, ServedModel) else served_by(model) for name, model in models.items()}
    for name, model in served.items():
        model.trajectory, model.trained = trajectory, name == "actor"
    return Context(config=config, evaluation=evaluation, session_id="one", models=served, trajectory=trajectory, **more)
