"""One reply in a trajectory, and the prompt of one that is yet to be sampled."""

from dataclasses import dataclass

from vime.types import Column, Message, Turn


@dataclass(kw_only=True, slots=True, eq=False)
class ReplyNode:
    """One reply in the tree, with the tokens between it and the reply before.

    Example of a second turn: `ReplyNode(parent=first, environment=[7, 7], turn=Turn(output_ids=[8, 2], …), position=3,
    kind="main", message={"role": "assistant", "content": "42"})`.
    """

    parent: "ReplyNode | None"
    environment: Column[int]
    """Token ids that nobody sampled: the whole prompt of a root, or what stands between the parent's reply and this one."""
    turn: Turn
    """The sampled tokens, without the prompt."""
    message: Message
    """What the client was answered."""
    position: int
    """Index of the message in its conversation."""
    kind: str
    """What the branch is: main, subagent, compacted, edited or retry."""
    cause: str = ""
    """Why a branch began, for example thinking_dropped; empty where none did."""
    ended: bool = True
    """True if the model ended the reply, by the template's own end or by another special token."""
    delivered: bool = True
    """Whether the client was answered, at least in part; what nobody received is not trained."""
    has_children: bool = False

    def path(self) -> "list[ReplyNode]":
        """The replies from the root to this one."""
        found: list[ReplyNode] = []
        reply: ReplyNode | None = self
        while reply is not None:
            found.append(reply)
            reply = reply.parent
        return found[::-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedPrompt:
    """A request with the token ids for which it stands, ready to be sampled and then recorded."""

    ids: Column[int]
    """Token ids up to the place where the reply begins."""
    parent: ReplyNode | None
    environment: Column[int]
    """The part of the ids that follows the parent's reply."""
    keys: list[bytes]
    """Digests of the conversation up to each of its messages, and first that of its tools."""
    kind: str
    cause: str = ""
    begun: Message | None = None
    """The last message of the request, if the reply continues it."""
