"""Weight sync on real servers: what must work, and what must be found out when it is broken on purpose."""

import dataclasses
import os
from pathlib import Path

import aiohttp
import pytest

from vime.errors import WeightSyncError
from vime.processes.control import call
from vime.serving.client import TokenClient
from vime.weights.delta import Sent

HEAD = "lm_head.weight"
SECOND_KEYS = "model.layers.1.self_attn.k_proj.weight"
SECOND_DOWN = "model.layers.1.mlp.down_proj.weight"


async def post(url: str, path: str, body: dict | None = None) -> dict:
    async with aiohttp.ClientSession() as session:
        return await call(session, url, path, timeout_seconds=30.0, body=body)


@pytest.mark.parametrize("name", ["untied", "tied"])
async def test_servers_have_the_trainers_logprobs_after_each_sync_cold_and_cached(served, name):
    stack = served[name]
    for _ in range(2):
        stack.trainer.step()
        metrics = await stack.sync(stack.trainer.export())
        assert metrics["sync/num_servers"] == len(stack.endpoint.worker_urls)
        assert metrics["sync/bytes"] == sum(parameter.nbytes for parameter in stack.trainer.model.parameters())
        differences = await stack.probe()
        assert differences.pop("probe/num_servers") == len(stack.endpoint.worker_urls)
        assert differences.pop("probe/seconds") > 0
        assert max(differences.values()) < 1e-4


async def sampled_logprobs(stack) -> list[list[float]]:
    client, found = TokenClient(stack.endpoint, stack.config.serving), []
    sampling = {"max_tokens": 8, "ignore_eos": True, "temperature": 0.0}
    for number in range(3):
        about = {"session_id": str(number), "request_id": f"equal-{number}", "minimum_version": stack.trainer.version}
        found.append((await client.generate([1, 2, 3 + number], sampling=sampling, **about)).logprobs)
    await client.close()
    return found


async def test_weights_that_are_exchanged_compute_exactly_like_those_loaded_in_the_pause(served):
    stack, found = served["tied"], []
    for way, moves in (("allow_shadow", True), ("refuse_shadow", False), ("allow_shadow", True)):
        await post(stack.endpoint.url, "/collective_rpc", {"method": way})
        if moves:
            stack.trainer.step()
        await stack.sync(stack.trainer.export())
        (report,) = (await post(stack.endpoint.url, "/collective_rpc", {"method": "weight_report"}))["results"]
        assert report["is_loaded"] is (way == "allow_shadow")
        found.append(await sampled_logprobs(stack))
    assert found[0] == found[1] != found[2]
    await stack.probe()


async def test_without_a_sync_the_probe_finds_that_the_trainer_has_moved_on(served):
    stack = served["untied"]
    stack.trainer.step()
    with pytest.raises(WeightSyncError, match=r"disagree on logprobs by more than 0\.0005"):
        await stack.probe()
    await stack.sync(stack.trainer.export())
    await stack.probe()


async def test_tokens_carry_the_version_of_the_last_sync(served):
    stack = served["untied"]
    stack.trainer.step()
    await stack.sync(stack.trainer.export())
    client = TokenClient(stack.endpoint, stack.config.serving)
    generation = await client.generate(
        [1, 2, 3], sampling={"max_tokens": 5, "ignore_eos": True}, session_id="a", request_id="versions"
    )
    assert generation.weight_versions == [stack.trainer.version] * 5
    await client.close()


async def test_the_files_of_the_version_before_are_removed(served):
    stack = served["tied"]
    for _ in range(2):
        stack.trainer.step()
        payload = stack.trainer.export()
        await stack.sync(payload)
    assert sorted(os.listdir(stack.serving.payload_folder)) == sorted(os.path.basename(file) for file in payload.files)


async def test_differences_make_the_same_weights_and_a_server_that_cannot_use_one_gets_the_whole_version(served):
    stack = served["untied"]
    trainer, num_servers = stack.trainer, len(stack.endpoint.worker_urls)
    trainer.sent = Sent(num_deltas=5)
    try:
        for what in ("whole", "difference", "difference", "of another version", "difference", "whole", "damaged", "difference"):
            trainer.step()
            if what == "of another version":
                trainer.export()  # which reaches no server
                trainer.step()
            payload = trainer.export()
            assert (payload.base is None) == (what == "whole")
            if what == "damaged":
                file = Path(payload.files[1])
                file.write_bytes(file.read_bytes()[:-20] + bytes(20))
            metrics = await stack.sync(payload)
            assert metrics["sync/num_servers"] == num_servers, what
            assert metrics["sync/num_lacking_servers"] == (num_servers if what in ("of another version", "damaged") else 0), what
            await stack.probe()
    finally:
        trainer.sent = None


async def test_a_tensor_lost_on_the_way_is_found_by_the_digest_and_a_good_sync_mends_it(served):
    stack = served["tied"]
    stack.trainer.step()
    with pytest.raises(WeightSyncError, match=r"actor-0 .*expected digest \w+ \(26 tensors\), got \w+ \(25 tensors\)"):
        await stack.sync(stack.trainer.export(lost=SECOND_DOWN))
    await stack.sync(stack.trainer.export())
    await stack.probe()


async def test_other_bytes_than_the_payload_says_are_found_by_the_digest(served):
    stack = served["tied"]
    stack.trainer.step()
    payload = stack.trainer.export()
    with pytest.raises(WeightSyncError, match="expected digest 00"):
        await stack.sync(dataclasses.replace(payload, digest="00"))
    await stack.sync(payload)
    await stack.probe()


@pytest.mark.parametrize("forgotten", [HEAD, SECOND_DOWN, SECOND_KEYS, "model.embed_tokens.weight", "model.norm.weight"])
async def test_a_tensor_that_the_exporter_forgot_is_found(served, forgotten):
    stack = served["untied"]
    stack.trainer.step()
    with pytest.raises(WeightSyncError, match=r"not sent|nothing of it was sent"):
        await stack.sync(stack.trainer.export(forgotten=forgotten))
    await stack.sync(stack.trainer.export())
    await stack.probe()


async def test_a_tied_head_that_is_not_packed_again_is_found(served):
    stack = served["tied"]
    await post(stack.endpoint.url, "/collective_rpc", {"method": "skip_repack"})
    stack.trainer.step()
    payload = stack.trainer.export()
    with pytest.raises(WeightSyncError, match=r"in the head that is tied to it.: nothing was loaded"):
        await stack.sync(payload)
    await post(stack.endpoint.url, "/collective_rpc", {"method": "mend_repack"})
    await stack.sync(payload)
    await stack.probe()


async def test_a_prefix_cache_that_outlives_a_sync_is_found_by_the_probe(served):
    stack = served["tied"]
    url = stack.endpoint.url
    stack.trainer.step()
    payload = stack.trainer.export()
    await stack.sync(payload)
    await stack.probe()
    stack.trainer.step()
    later = stack.trainer.export()
    await post(url, "/pause?mode=keep&clear_cache=false")
    await post(url, "/start_weight_update")
    await post(url, "/update_weights", {"update_info": {"files": later.files}})
    await post(url, "/finish_weight_update", {"weight_version": str(later.version)})
    await post(url, "/resume")
    with pytest.raises(WeightSyncError, match="disagree on logprobs"):
        await stack.probe()
    await stack.sync(later)
    await stack.probe()
