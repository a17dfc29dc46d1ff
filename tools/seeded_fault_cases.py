"""The faults of `seeded_faults.py`: each is one mistake in one line, of the kind that is made by hand."""

from dataclasses import dataclass

CPU = "vime/trainer/cpu/"
"""A room within another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A mistake in one line of the code.

    Example: `Fault(file="vime/algorithm/loss.py", old="torch.maximum(", new="torch.minimum(", tests=("tests/algorithm",))`.
    """

    file: str
    """Path in the repository."""
    old: str
    """A part of the file, at most one line, that occurs in it once."""
    new: str
    """The same with a mistake."""
    tests: tuple[str, ...]
    """Files or folders of the tests that should notice it."""

    @property
    def room(self) -> str:
        """The part of the repository that it is in: `algorithm` of `vime/`, `agentic/memagent` of the agents."""
        if self.file.startswith(CPU):
            return CPU.removeprefix("vime/").strip("/")
        top, name, *_ = self.file.split("/")
        return name if top == "vime" else f"{top}/{name}"


FAULTS: tuple[Fault, ...] = (
    Fault(
        file="vime/agent/command.py",
        old="del kept[:-OUTPUT_CHARACTERS]",
        new="del kept[OUTPUT_CHARACTERS:]",
        tests=("tests/agent/test_command.py",),
    ),
    Fault(
        file="vime/agent/workspace/sources.py",
        old='if path.is_absolute() or ".." in path.parts or not path.parts:',
        new="if path.is_absolute() or not path.parts:",
        tests=("tests/agent/workspace/test_prepare.py",),
    ),
    Fault(
        file="vime/algorithm/advantage.py",
        old="to_others = number / (number - 1) if",
        new="to_others = (number - 1) / number if",
        tests=("tests/algorithm/test_advantage.py",),
    ),
    Fault(
        file="vime/algorithm/batch.py",
        old="weight = 1.0 / (len(counted) * rollout_tokens)",
        new="weight = 1.0 / (num_sequences * rollout_tokens)",
        tests=("tests/algorithm/test_advantage.py",),
    ),
    Fault(
        file="vime/algorithm/loss.py",
        old="loss_N = torch.maximum(unclipped_loss_N, clipped_loss_N)",
        new="loss_N = torch.minimum(unclipped_loss_N, clipped_loss_N)",
        tests=("tests/algorithm/test_loss_and_kl.py",),
    ),
    Fault(
        file="vime/algorithm/kl.py",
        old="k3_N = torch.exp(-difference_N) - 1 + difference_N",
        new="k3_N = torch.exp(difference_N) - 1 - difference_N",
        tests=("tests/algorithm/test_loss_and_kl.py",),
    ),
    Fault(
        file="vime/algorithm/correction.py",
        old="torch.where(keep_N, old_logprobs_N - engine_logprobs_N, 0.0)",
        new="torch.where(keep_N, engine_logprobs_N - old_logprobs_N, 0.0)",
        tests=("tests/algorithm/test_correction.py",),
    ),
    Fault(
        file="vime/algorithm/policy_gradient.py",
        old="kl_N.flip(0).cumsum(0).flip(0)",
        new="kl_N.cumsum(0)",
        tests=("tests/algorithm/test_policy_gradient.py",),
    ),
    Fault(
        file="vime/chat/conversation.py",
        old="limit = room if max_tokens is None else min(max_tokens, room)",
        new="limit = room if max_tokens is None else max_tokens",
        tests=("tests/chat/test_conversation.py",),
    ),
    Fault(
        file="vime/chat/agent_clock.py",
        old="self._stopped_seconds += time.monotonic() - self._since",
        new="self._stopped_seconds = time.monotonic() - self._since",
        tests=("tests/chat/test_agent_clock.py",),
    ),
    Fault(
        file="vime/cluster/placement.py",
        old="if position % per_node + size > per_node:",
        new="if position % per_node + size >= per_node:",
        tests=("tests/cluster/test_placement.py",),
    ),
    Fault(
        file="vime/cluster/accelerators.py",
        old='if int(driver.split(".")[0]) < OLDEST_DRIVER:',
        new='if int(driver.split(".")[0]) <= OLDEST_DRIVER:',
        tests=("tests/cluster/test_accelerators.py",),
    ),
    Fault(
        file="vime/config/ranges.py",
        old="(self.above is None or value > self.above)",
        new="(self.above is None or value >= self.above)",
        tests=("tests/config/test_ranges.py",),
    ),
    Fault(
        file="vime/config/agent.py",
        old='bool(self.chat_template_args.get("enable_thinking", True))',
        new='bool(self.chat_template_args.get("enable_thinking", False))',
        tests=("tests/test_thinking.py",),
    ),
    Fault(
        file="vime/data/source.py",
        old='random.Random(f"{self._seed}/{epoch}")',
        new='random.Random(f"{self._seed}")',
        tests=("tests/data/test_source_and_buffer.py",),
    ),
    Fault(
        file="vime/data/file_formats.py",
        old="if cells and len(cells) != len(names):",
        new="if cells and len(cells) < len(names):",
        tests=("tests/data/test_file_formats.py",),
    ),
    Fault(
        file="vime/evaluation/evaluator.py",
        old='if not _keep(path, lambda item: item["version"] <= version):',
        new='if not _keep(path, lambda item: item["version"] < version):',
        tests=("tests/evaluation/test_evaluation.py",),
    ),
    Fault(
        file="vime/evaluation/protocol.py",
        old="return digest(prompt.messages, prompt.ground_truth, prompt.metadata)",
        new="return digest(prompt.messages, prompt.metadata)",
        tests=("tests/evaluation/test_evaluation.py",),
    ),
    Fault(
        file="vime/files/record.py",
        old="(np.flatnonzero(np.diff(mask)) + 1).tolist()",
        new="np.flatnonzero(np.diff(mask)).tolist()",
        tests=("tests/files/test_record.py",),
    ),
    Fault(
        file="vime/files/folders.py",
        old="if not folder.exists():",
        new="if folder.exists():",
        tests=("tests/test_run_checkpoints.py",),
    ),
    Fault(
        file="vime/gateway/session.py",
        old="if held is not None and (retried or held.is_broken):",
        new="if held is not None and retried:",
        tests=("tests/gateway/test_chat_completions.py",),
    ),
    Fault(
        file="vime/gateway/session.py",
        old='counts["calls"] >= self.num_calls:',
        new='counts["calls"] > self.num_calls:',
        tests=("tests/gateway/test_chat_completions.py",),
    ),
    Fault(
        file="vime/grading/grade.py",
        old="score=float(opinion is True)",
        new="score=float(opinion is not False)",
        tests=("tests/grading/test_grade.py",),
    ),
    Fault(
        file="vime/grading/qa.py",
        old="if prediction != reference and (prediction in _CLOSED or reference in _CLOSED):",
        new="if prediction != reference and (prediction in _CLOSED and reference in _CLOSED):",
        tests=("tests/grading/test_qa.py",),
    ),
    Fault(
        file="vime/inside_vllm/exchange.py",
        old="            if not keep_cache:",
        new="            if keep_cache:",
        tests=("tests/inside_vllm/test_exchange.py",),
    ),
    Fault(
        file="vime/inside_vllm/fixed_products.py",
        old="pad(rows_NI, (0, 0, 0, -num_rows % NUM_ROWS))",
        new="pad(rows_NI, (0, 0, 0, num_rows % NUM_ROWS))",
        tests=("tests/inside_vllm/test_fixed_products.py",),
    ),
    Fault(
        file="vime/loop.py",
        old="output.num_steps == step and system.trainer.num_moves == num_moves",
        new="output.num_steps == step or system.trainer.num_moves == num_moves",
        tests=("tests/test_loop.py",),
    ),
    Fault(
        file="vime/memory/processes.py",
        old="(*ROW_PARALLEL, LoraTarget.embed_tokens) else (outputs, inputs)",
        new="ROW_PARALLEL else (outputs, inputs)",
        tests=("tests/preflight/rules/test_lora.py",),
    ),
    Fault(
        file="vime/memory/processes.py",
        old='"optimizer": 12 * (others / num_copies(trainer)',
        new='"optimizer": 8 * (others / num_copies(trainer)',
        tests=("tests/preflight/test_plan.py",),
    ),
    Fault(
        file="vime/memory/processes.py",
        old="return TRAINER_RESERVE + sleepers * SLEEPER_RESERVE",
        new="return TRAINER_RESERVE + SLEEPER_RESERVE",
        tests=("tests/preflight/rules/test_gpu_memory.py",),
    ),
    Fault(
        file="vime/model/size.py",
        old="(2 * hidden * (queries + keys) + gates + biases + norms)",
        new="(hidden * (queries + keys) + gates + biases + norms)",
        tests=("tests/preflight/test_plan.py",),
    ),
    Fault(
        file="vime/model/architecture.py",
        old='head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],',
        new='head_dim=raw["hidden_size"] // raw["num_attention_heads"],',
        tests=("tests/trainer/test_bridge.py",),
    ),
    Fault(
        file="vime/new/write.py",
        old='target.write_text(file.read_text(encoding="utf-8").replace(PLACEHOLDER, name), encoding="utf-8")',
        new='target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")',
        tests=("tests/new/test_write.py",),
    ),
    Fault(
        file="vime/new/write.py",
        old="or keyword.iskeyword(name) or name in VALUES:",
        new="or name in VALUES:",
        tests=("tests/new/test_write.py",),
    ),
    Fault(
        file="vime/orchestration/buffer.py",
        old="self._finished[version].appendleft(group.index)",
        new="self._generating[version].add(group.index)",
        tests=("tests/data/test_source_and_buffer.py",),
    ),
    Fault(
        file="vime/orchestration/buffer.py",
        old="slot.progress is None or slot.version < version - max_staleness:",
        new="slot.progress is None or slot.version <= version - max_staleness:",
        tests=("tests/data/test_source_and_buffer.py", "tests/orchestration/test_producer.py"),
    ),
    Fault(
        file="vime/orchestration/producer.py",
        old="self._expire(self._version + 1 - config.max_staleness)",
        new="self._expire(self._version - config.max_staleness)",
        tests=("tests/orchestration/test_producer.py",),
    ),
    Fault(
        file="vime/orchestration/journal.py",
        old="if newest_version(group) <= step:",
        new="if newest_version(group) < step:",
        tests=("tests/orchestration/test_journal.py",),
    ),
    Fault(
        file="vime/preflight/rules/batch_sizes.py",
        old="trainer.evaluate_every % trainer.save_every:",
        new="trainer.save_every % trainer.evaluate_every:",
        tests=("tests/preflight/test_validation.py",),
    ),
    Fault(
        file="vime/preflight/rules/gpu_memory.py",
        old="if needed + reserve <= limit:",
        new="if needed <= limit:",
        tests=("tests/preflight/rules/test_gpu_memory.py",),
    ),
    Fault(
        file="vime/processes/start_signs.py",
        old="self._seen, self._moved = seen, now",
        new="self._seen = seen",
        tests=("tests/processes/test_start_signs.py",),
    ),
    Fault(
        file="vime/processes/restarts.py",
        old="self._used = max(0.0, self._used - seconds / self._window_seconds)",
        new="self._used -= seconds / self._window_seconds",
        tests=("tests/processes/test_restarts.py",),
    ),
    Fault(
        file="vime/rehearsal/script.py",
        old="asked = max((question for question in self._gold",
        new="asked = min((question for question in self._gold",
        tests=("tests/rehearsal/test_scripts.py",),
    ),
    Fault(
        file="vime/rehearsal/scripted_client.py",
        old="return ids if reply.cut else [*ids, self.tokenizer.eos_token_id]",
        new="return [*ids, self.tokenizer.eos_token_id] if reply.cut else ids",
        tests=("tests/rehearsal/test_scripts.py",),
    ),
    Fault(
        file="vime/report/summary.py",
        old="_percent(_sd(items) / len(items) ** 0.5)",
        new="_percent(_sd(items) / len(items))",
        tests=("tests/report/test_summary.py",),
    ),
    Fault(
        file="vime/report/paired.py",
        old="differences = 100 * (b - a)",
        new="differences = 100 * (a - b)",
        tests=("tests/report/test_paired.py",),
    ),
    Fault(
        file="vime/retrieval/vectors.py",
        old="if position >= 0 and vector.any()",
        new="if position >= 0",
        tests=("tests/retrieval/test_index.py",),
    ),
    Fault(
        file="vime/retrieval/batching.py",
        old="position += len(request.queries)",
        new="position += 1",
        tests=("tests/retrieval/test_service.py",),
    ),
    Fault(
        file="vime/reward_service/wire_format.py",
        old='{entry["id"]: entry for entry in rewards}',
        new="dict(enumerate(rewards))",
        tests=("tests/reward_service/test_reward_service.py",),
    ),
    Fault(
        file="vime/reward_service/reward_client.py",
        old="60.0 / (rate * share) if",
        new="60.0 / rate * share if",
        tests=("tests/reward_service/test_reward_service.py",),
    ),
    Fault(
        file="vime/rollout/tool.py",
        old="if self._max_calls is not None and self.num_calls > self._max_calls:",
        new="if self._max_calls is not None and self.num_calls >= self._max_calls:",
        tests=("tests/rollout/test_tool.py",),
    ),
    Fault(
        file="vime/rollout/within.py",
        old="(left := began + seconds - clock.seconds) > 0:",
        new="(left := seconds - clock.seconds) > 0:",
        tests=("tests/chat/test_agent_clock.py", "tests/rollout/test_tool.py"),
    ),
    Fault(
        file="vime/serving/reply.py",
        old='first, last = max(span["start"] - start, 0), min(span["end"] - start, count)',
        new='first, last = max(span["start"], 0), min(span["end"], count)',
        tests=("tests/serving/test_client.py",),
    ),
    Fault(
        file="vime/serving/external.py",
        old="(read * prices[0] + written * prices[1]) / 1e6",
        new="(read * prices[1] + written * prices[0]) / 1e6",
        tests=("tests/serving/test_external.py",),
    ),
    Fault(
        file="vime/sync/probe.py",
        old="if all(found <= limit for of_server",
        new="if not any(found > limit for of_server",
        tests=("tests/sync/test_probe.py",),
    ),
    Fault(
        file="vime/sync/colocation.py",
        old="await self._to_trainer(keep_weights=True)",
        new="await self._to_trainer(keep_weights=False)",
        tests=("tests/sync/test_colocation.py",),
    ),
    Fault(
        file="vime/tiny/demonstration.py",
        old="add(before[len(held) :], 0)",
        new="add(before[len(held) :], 1)",
        tests=("tests/agentic/memagent/test_tiny_task.py",),
    ),
    Fault(
        file="vime/tiny/tiny_model.py",
        old="min_frequency=1,",
        new="min_frequency=2,",
        tests=("tests/agentic/memagent/test_tiny_task.py",),
    ),
    Fault(
        file="vime/trainer/micro_batch.py",
        old="predict_M=to_device(places_N - 1, device), target_M",
        new="predict_M=to_device(places_N, device), target_M",
        tests=("tests/trainer/test_micro_batch.py",),
    ),
    Fault(
        file="vime/trainer/packing.py",
        old="count = max(-(-len(fitted) // multiple), 1) * multiple",
        new="count = max(len(fitted) // multiple, 1) * multiple",
        tests=("tests/trainer/test_packing.py",),
    ),
    Fault(
        file="vime/trainer/packed_sequences.py",
        old="(place <= own - size)",
        new="(place < own - size)",
        tests=("tests/trainer/test_bridge.py",),
    ),
    Fault(
        file="vime/trainer/schedule.py",
        old="return config.lr * (step + 1) / config.warmup_steps",
        new="return config.lr * step / config.warmup_steps",
        tests=("tests/trainer/test_step.py",),
    ),
    Fault(
        file="vime/trainer/second_weights.py",
        old="kept.lerp_(parameter.to(kept.device, torch.float32), 1.0 - self._decay)",
        new="kept.lerp_(parameter.to(kept.device, torch.float32), self._decay)",
        tests=("tests/trainer/test_own_algorithms.py",),
    ),
    Fault(
        file="vime/trainer/engine.py",
        old='weight_decay=decay * group["wd_mult"])',
        new="weight_decay=decay)",
        tests=("tests/trainer/test_step.py",),
    ),
    Fault(
        file="vime/trainer/cpu/rms_norm.py",
        old="found_RC.add_(mean_R1.mul_(inverse_R1).to(found_RC.dtype))",
        new="found_RC.sub_(mean_R1.mul_(inverse_R1).to(found_RC.dtype))",
        tests=("tests/trainer/cpu/test_rms_norm.py",),
    ),
    Fault(
        file="vime/trainer/cpu/swiglu.py",
        old="torch.ops.aten.silu.out(gate_TF, out=of_linear_TF).mul_(gradient_TF)",
        new="torch.ops.aten.silu.out(gate_TF, out=of_linear_TF).mul_(linear_TF)",
        tests=("tests/trainer/cpu/test_swiglu.py",),
    ),
    Fault(
        file="vime/trajectory/trajectory.py",
        old="own = {id(step) for step in path if id(step) in said} - done",
        new="own = {id(step) for step in path if id(step) in said}",
        tests=("tests/trajectory/test_trajectory.py",),
    ),
    Fault(
        file="vime/trajectory/plain_text.py",
        old='words = self.added if message.get("role") == TOOL else self.special',
        new="words = self.special",
        tests=("tests/chat/test_conversation.py",),
    ),
    Fault(
        file="vime/trajectory/dialogue.py",
        old='return CONTINUED if held.ended else ""',
        new='return "" if held.ended else CONTINUED',
        tests=("tests/trajectory/test_dialogue.py",),
    ),
    Fault(
        file="vime/types/stop_reason.py",
        old="StopReason.TIME_LIMIT: Counting(**_AGENT, status=Status.TRUNCATED),",
        new="StopReason.TIME_LIMIT: Counting(**_INFRASTRUCTURE, status=Status.TRUNCATED),",
        tests=("tests/workers/test_isolation.py",),
    ),
    Fault(
        file="vime/types/sample.py",
        old="if len(mask) == len(self.tokens) and mask[:1].any():",
        new="if len(mask) > len(self.tokens) and mask[:1].any():",
        tests=("tests/types/test_sample.py",),
    ),
    Fault(
        file="vime/view/query.py",
        old='f"{column} >= ?"',
        new='f"{column} > ?"',
        tests=("tests/view/test_query.py",),
    ),
    Fault(
        file="vime/view/query.py",
        old='f"{column} <= ?"',
        new='f"{column} < ?"',
        tests=("tests/view/test_query.py",),
    ),
    Fault(
        file="vime/environments/play.py",
        old="samples=[own[sample.seat] for sample in samples]",
        new="samples=None",
        tests=("tests/environments/test_play.py",),
    ),
    Fault(
        file="vime/environments/gym_like.py",
        old="bool(terminated or truncated), bool(truncated and not terminated)",
        new="bool(terminated), bool(truncated and not terminated)",
        tests=("tests/environments/test_gym_like.py",),
    ),
    Fault(
        file="vime/service/client_loss.py",
        old="mean_N = (sums / counts.clamp(min=1.0))",
        new="mean_N = sums",
        tests=("tests/service/test_client_loss.py",),
    ),
    Fault(
        file="vime/service/places.py",
        old="free = [place for place in self._places if not place.num_users]",
        new="free = list(self._places)",
        tests=("tests/service/test_places.py",),
    ),
    Fault(
        file="vime/service/call_queue.py",
        old="if plan.number < opened.next:",
        new="if plan.number > opened.next:",
        tests=("tests/service/test_call_queue.py",),
    ),
    Fault(
        file="vime/service/journal.py",
        old="kind is not null and body is not null order by number",
        new="kind is not null and body is null order by number",
        tests=("tests/service/test_call_queue.py",),
    ),
    Fault(
        file="vime/service/tinker_calls.py",
        old="repeated_after=() if is_forward else (PROTOBUF, USER)",
        new="repeated_after=()",
        tests=("tests/service/test_tinker_api.py",),
    ),
    Fault(
        file="vime/service/wire.py",
        old="texts += [each.key for datum in message.data for each in datum.loss_fn_inputs]",
        new="texts += []",
        tests=("tests/service/test_wire.py",),
    ),
    Fault(
        file="vime/service/quotas.py",
        old="for _, each in taken)) + number > most",
        new="for _, each in taken)) > most",
        tests=("tests/service/test_tinker_api.py",),
    ),
    Fault(
        file="vime/service/turns.py",
        old="key=lambda each: self._last.get(each, 0)",
        new="key=lambda each: -self._last.get(each, 0)",
        tests=("tests/service/test_turns.py",),
    ),
    Fault(
        file="vime/report/alarms.py",
        old="sum(failed) < 0.05 * (sum(failed) + sum(ended))",
        new="sum(failed) < 0.5 * (sum(failed) + sum(ended))",
        tests=("tests/report/test_alarms.py",),
    ),
    Fault(
        file="vime/warm/stamp.py",
        old="for file in sorted({*known, *before}) if",
        new="for file in sorted(known) if",
        tests=("tests/warm/test_stamp.py",),
    ),
    Fault(
        file="vime/warm/stamp.py",
        old="names = sorted({*before, *now} - OF_THE_TERMINAL)",
        new="names = sorted({*now} - OF_THE_TERMINAL)",
        tests=("tests/warm/test_stamp.py",),
    ),
    Fault(
        file="vime/weights/words.py",
        old="first = start // CHUNK_BYTES",
        new="first = 0",
        tests=("tests/weights/test_payload.py",),
    ),
    Fault(
        file="vime/weights/payload.py",
        old="for name in sorted(self._digests):",
        new="for name in self._digests:",
        tests=("tests/weights/test_payload.py",),
    ),
    Fault(
        file="vime/workers/dispatch.py",
        old="work.num_losses >= MAX_SHARED_LOSSES]",
        new="work.num_losses > MAX_SHARED_LOSSES]",
        tests=("tests/workers/test_dispatch.py",),
    ),
    Fault(
        file="vime/workers/group_run.py",
        old="members = [*progress.turns, *range(first, first + missing)][:missing]",
        new="members = [*range(first, first + missing)]",
        tests=("tests/workers/test_worker.py",),
    ),
    Fault(
        file="vime/workers/worker.py",
        old="parts = (self.run_seed, self.dataset, self.prompt, self.member, key, number)",
        new="parts = (self.run_seed, self.dataset, self.prompt, self.member, key)",
        tests=("tests/workers/test_seeds.py",),
    ),
    Fault(
        file="agentic/agentflow/generate.py",
        old='if about["turn"] == PLAN and method.trained_turns is not TrainedTurns.plan_and_next_step:',
        new='if about["turn"] == PLAN and method.trained_turns is TrainedTurns.plan_and_next_step:',
        tests=("tests/agentic/agentflow/test_generate.py",),
    ),
    Fault(
        file="agentic/calculator/__init__.py",
        old="for num_left in range(most, -1, -1):",
        new="for num_left in range(most, 0, -1):",
        tests=("tests/agentic/calculator/test_calculator.py",),
    ),
    Fault(
        file="agentic/classification/reward.py",
        old='{"strict": float(reply.strip() == label), "lenient"',
        new='{"strict": float(label in reply), "lenient"',
        tests=("tests/agentic/classification/test_classification.py",),
    ),
    Fault(
        file="agentic/coding/protected.py",
        old="for part in place.parts for pattern in TEST_FOLDERS):",
        new="for part in place.parts[:1] for pattern in TEST_FOLDERS):",
        tests=("tests/agentic/coding/test_protected.py",),
    ),
    Fault(
        file="agentic/database/task.py",
        old="[price for price in PRICES if split_of(str(price)) == split]",
        new="[price for price in PRICES if split_of(str(price))]",
        tests=("tests/agentic/tutorial/test_tutorial.py",),
    ),
    Fault(
        file="agentic/extraction/task.py",
        old="is_formed = len(said) == len(expected) and said[1].isdecimal()",
        new="is_formed = len(said) == len(expected) or said[1].isdecimal()",
        tests=("tests/test_conf.py",),
    ),
    Fault(
        file="agentic/integrations/lightning_rollout.py",
        old="if session.stop_reason is StopReason.ANSWERED:",
        new="if session.stop_reason is not StopReason.ANSWERED:",
        tests=("tests/agentic/integrations/test_lightning_bridge.py",),
    ),
    Fault(
        file="agentic/benchmarks/written_functions.py",
        old="mark in result.stdout.splitlines()",
        new="bool(result.stdout)",
        tests=("tests/agentic/benchmarks/test_written_functions.py",),
    ),
    Fault(
        file="agentic/games/nim.py",
        old="if not nim_sum(self.after(position, move))]",
        new="if nim_sum(self.after(position, move))]",
        tests=("tests/agentic/games/test_nim.py",),
    ),
    Fault(
        file="agentic/harbor/dockerfile.py",
        old="if reason := missing_system_package(package.name):",
        new='if reason := "":',
        tests=("tests/agentic/harbor/test_dockerfile.py",),
    ),
    Fault(
        file="agentic/harbor/task_workspace.py",
        old="find {TESTS} -mindepth 1 -delete && rm -rf {VERIFIER} && mkdir -p {VERIFIER}",
        new="mkdir -p {TESTS} {VERIFIER}",
        tests=("tests/agentic/harbor/test_task_workspace.py",),
    ),
    Fault(
        file="agentic/memagent/chunks.py",
        old="chunks = chunks[:head] + chunks[len(chunks) - (max_chunks - head) :]",
        new="chunks = chunks[:max_chunks]",
        tests=("tests/agentic/memagent/test_generate.py",),
    ),
    Fault(
        file="agentic/multi_agent/generate.py",
        old="places = [len(samples) + place for place, text in",
        new="places = [place for place, text in",
        tests=("tests/agentic/multi_agent/test_rollouts.py",),
    ),
    Fault(
        file="agentic/retool/generate.py",
        old="return StopReason.TURN_LIMIT if num_calls >= method.max_calls else None",
        new="return StopReason.TURN_LIMIT if num_calls > method.max_calls else None",
        tests=("tests/agentic/retool/test_generate.py",),
    ),
    Fault(
        file="agentic/search_r1/reward.py",
        old='said = after_thinking(INFORMATION.sub("", response))',
        new="said = after_thinking(response)",
        tests=("tests/agentic/search_r1/test_reward.py",),
    ),
    Fault(
        file="agentic/toolorchestra/rewards.py",
        old="columns = {COST: [-features.dollars for",
        new="columns = {COST: [features.dollars for",
        tests=("tests/agentic/toolorchestra/test_rewards.py",),
    ),
    Fault(
        file="agentic/tutorial/algorithm.py",
        old="rollout.reward - self.options.price * rollout.counts",
        new="rollout.reward + self.options.price * rollout.counts",
        tests=("tests/agentic/tutorial/test_tutorial.py",),
    ),
)
"""In the order of the rooms; at least two for each of `vime/`, and one for each method of `agentic/`."""
