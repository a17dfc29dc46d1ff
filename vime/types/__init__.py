"""The data that crosses boundaries: prompts, samples, rollouts, groups, and what each stop reason counts for.

A *prompt* is one row of data. A *group* is the n rollouts of one prompt. A *rollout* is one execution of the agent, with
one reward and one stop reason; it yields one or more *samples*, each a trainable token sequence. Positions in a list
mean nothing: identity is carried by `group_index` and `rollout_id`.
"""

from vime.types.column import STEP_REWARD, Column, ColumnType, Defined, Integers, Reals
from vime.types.identity import rollout_id_of
from vime.types.prompt import Prompt, Sampling
from vime.types.rollout import EvalLog, Group, Reward, Rollout, Span
from vime.types.routed_experts import RoutedExperts
from vime.types.sample import COLUMNS, Sample, as_dict
from vime.types.stop_reason import COUNTS, Counting, Status, StopReason
from vime.types.turn import Message, Turn

__all__ = [
    "COLUMNS",
    "COUNTS",
    "STEP_REWARD",
    "Column",
    "ColumnType",
    "Counting",
    "Defined",
    "EvalLog",
    "Group",
    "Integers",
    "Message",
    "Prompt",
    "Reals",
    "Reward",
    "Rollout",
    "RoutedExperts",
    "Sample",
    "Sampling",
    "Span",
    "Status",
    "StopReason",
    "Turn",
    "as_dict",
    "rollout_id_of",
]
