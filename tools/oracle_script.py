"""Scripted replies for `oracle.py`, the same in every run: a rollout's part follows from its place, not from who asks first."""

from collections.abc import Sequence

from agentic.calculator.rehearsal import CalculatorRehearsal
from vime.rehearsal.script import Asked


class Calculator(CalculatorRehearsal):
    """The calculator's rehearsal, the same in every run."""

    def act(self, asked: Asked, acts: Sequence[str]) -> str:
        """By the group's slot and the place in it: a session is named `asdiv_train-SLOT-MEMBER-ab12cd34-ATTEMPT`."""
        _, slot, member, _, _ = asked.session.rsplit("-", 4)
        return acts[(int(slot) * self.config.rollout.num_samples_per_prompt + int(member)) % len(acts)]
