"""`Teachers`: has the sampled tokens of finished rollouts scored by their teachers, while other rollouts still run.

A sequence is scored in one request, with its exact token ids and as often as it is trained: once. A teacher that does not answer
is the infrastructure's fault: its rollout leaves the batch, as one whose own server was lost. The sequences of a teacher in the
trainer get its hint alone, and are scored there once there is a batch.
"""

import asyncio
from contextlib import nullcontext
from typing import Any

import numpy as np

from vime.algorithm.distillation import HINT, HINT_PLACE, TEACHER, TEACHER_IDS, TEACHER_LOGPROBS, drawn_teacher, with_hint
from vime.blame import blamed, users_traceback
from vime.chat.agent_clock import AgentClock
from vime.chat.trace import Trace
from vime.config import ACTOR, RunConfig, TeacherPlace
from vime.errors import BadRequestError, ContextFullError, ServerError
from vime.hooks import load_hook
from vime.tasks import together
from vime.trajectory.template import turn_ahead
from vime.types import Prompt, Rollout, Sample, StopReason
from vime.workers.served import ServedModels

MAX_REQUESTS = 8
"""Most requests of one worker to one teacher at a time. More would only wait in the server, where nothing tells a long queue from
a lost server, as an answer with logprobs of a prompt comes in one piece."""


class Teachers:
    """The teachers of a run, as one worker asks them."""

    def __init__(self, config: RunConfig, served: ServedModels) -> None:
        self._config, self._served = config, served
        teachers = config.algorithm.distillation.teachers
        self._hints = {name: load_hook(teacher.hint) for name, teacher in teachers.items() if teacher.hint}
        self._places = {name: asyncio.Semaphore(MAX_REQUESTS) for name in config.algorithm.distillation.teachers}

    async def teach(self, rollout: Rollout, *, prompt: Prompt, session: str, version: int, trace: Trace) -> None:
        """Adds the columns of their teachers to the samples of a rollout that counts for training.

        The `session`, which the caller finishes, is that of all requests. A teacher that is the trained model has weights of
        `version` or newer, and waits while syncs hold calls to it.

        If a teacher cannot answer, the rollout has the stop reason of a lost server, and is not trained.
        """
        if not rollout.counting.trained or not self._places:
            return
        try:
            with trace.span("teacher", kind="teacher"):
                taught = [each for each in rollout.samples if not each.remove_sample and each.num_trained_tokens]
                about = {"prompt": prompt, "session": session, "version": version}
                await together(self._score(each, rollout.rollout_id, number=n, **about) for n, each in enumerate(taught))
        except ServerError as error:
            rollout.stop_reason, rollout.error = StopReason.SERVER_LOST, f"its teacher did not answer: {error}"
        except BadRequestError as error:
            rollout.stop_reason, rollout.error = StopReason.REQUEST_REFUSED, f"its teacher refused it: {error}"
        except Exception as error:  # the boundary of a user's function, the hint: any failure costs this rollout only
            rollout.stop_reason, rollout.error = StopReason.GENERATE_RAISED, blamed(error)
            rollout.traceback = users_traceback(error)
        rollout.status = rollout.counting.status
        for sample in rollout.samples:
            sample.status, sample.stop_reason = rollout.status, rollout.stop_reason
        rollout.seconds = dict(trace.seconds)

    async def _score(self, sample: Sample, rollout_id: int, *, number: int, prompt: Prompt, session: str, version: int) -> None:
        own = self._config.algorithm.distillation
        name = drawn_teacher(own, dataset=prompt.dataset, seat=sample.seat, seed=self._config.seed, rollout_id=rollout_id)
        if name is None:
            return
        places = np.flatnonzero(sample.trained) + len(sample.tokens) - len(sample.loss_mask)
        tokens = np.asarray(sample.tokens, np.int32)[: places[-1] + 1]
        hint, place = self._hint(name, prompt, sample, asked=tokens[: places[0]])
        if own.teachers[name].place is TeacherPlace.trainer:
            length, longest = len(hint) + int(places[-1]) + 1, self._config.serving.models[ACTOR].max_model_len
            if length > longest:
                text = f"the sequence and its hint have {length} tokens, more than serving.models.{ACTOR}.max_model_len={longest}"
                raise ContextFullError(text, name)
            sample.columns = {**sample.columns, HINT: hint, **({HINT_PLACE: place} if place else {})}
            return
        tokens, places = with_hint(tokens, hint, place=place), places + len(hint)
        traffic, is_trained = self._served.traffic, self._config.serving.models[name].trained
        held = traffic.call(AgentClock(self._served.clock)) if is_trained else nullcontext()
        more: Any = {"minimum_version": version, "is_paused": traffic.is_paused} if is_trained else {}
        async with self._places[name], held:
            scores = await self._served.client(name).score(
                tokens, num_likeliest=own.top_k, session_id=session, request_id=f"{session}-{number}-{name}", **more
            )
        found = {TEACHER.name: scores.logprobs[places - 1]}
        if own.top_k:
            ids, likeliest = scores.ids[places - 1], scores.likeliest[places - 1]
            has_row = ids < self._config.model.vocab_size  # a teacher's head may be padded to more rows than the student's
            found[TEACHER_IDS.name] = np.where(has_row, ids, -1).astype(ids.dtype)
            found[TEACHER_LOGPROBS.name] = np.where(has_row, likeliest, -np.inf).astype(likeliest.dtype)
        sample.columns = {**sample.columns, **found}

    def _hint(self, name: str, prompt: Prompt, sample: Sample, *, asked: np.ndarray) -> tuple[np.ndarray, int]:
        """The tokens of a turn with the hint of a teacher, none without a hint, and their place: ahead of all that was `asked`.

        A token that begins every text stays the first, and is there once. One that begins every turn occurs again in a prompt.
        """
        text = self._hints[name](prompt.fields, sample) if name in self._hints else ""
        if not text:
            return np.zeros(0, np.int32), 0
        is_own = self._config.algorithm.distillation.teachers[name].place is TeacherPlace.trainer
        tokenizer = self._served.tokenizer(ACTOR if is_own else name)
        hint = np.asarray(tokenizer(turn_ahead(tokenizer, text), add_special_tokens=False)["input_ids"], np.int32)
        begin = tokenizer.bos_token_id
        if asked[:1].tolist() != [begin] or np.count_nonzero(asked == begin) > 1:
            return hint, 0
        return hint[int(hint[0] == begin) :], 1
