"""A client of the training service over plain HTTP, and a small recipe for it whose requests can be made again.

Like the SDK it makes a request again when the connection is lost or the service says so, and asks for a result until it comes.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from safetensors.numpy import load_file

from vime.service import wire

RETRY_SECONDS, PATIENCE_SECONDS = 0.5, 500.0
AGAIN = (408, 429, 500, 502, 503, 504)
VOCAB_SIZE = 256
"""Tokens that the recipe draws; every model of ours has as many."""


@dataclass(kw_only=True, slots=True)
class Request:
    """A request of a recipe: `fields` of a JSON body, or the `data` of a training call. Its session and model are those of a run.

    Example: `Request(route="optim_step", number=4, fields={"adam_params": {"learning_rate": 1e-3}})`.
    """

    route: str
    number: int
    fields: dict[str, Any] = field(default_factory=dict)
    data: list[dict[str, Any]] = field(default_factory=list)
    loss: str = ""
    sampler: int | None = None
    """The number of the sampler that answers; without it, the model does."""


class ServiceClient:
    """One API key and one session, with a model."""

    def __init__(self, url: str, http: aiohttp.ClientSession, *, key: str) -> None:
        self._url, self._http, self._key = f"{url}/api/v1", http, key
        self.session = self.model = ""

    async def open(self, *, rank: int, seed: int) -> None:
        """Opens a session and creates a model."""
        self.session = (await self.post("create_session", {}))["session_id"]
        self.model = f"{self.session}:train:0"
        about = {"session_id": self.session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": rank, "seed": seed}}
        await self.result((await self.post("create_model", about))["request_id"])

    async def make(self, request: Request) -> str:
        """Makes a request, and returns the id of its result."""
        return (await self.post(request.route, self._body(request)))["request_id"]

    async def result(self, id: str) -> Any:
        """The result of a call: bytes, or an object. Raises RuntimeError for a call that has failed."""
        found = await self.post("retrieve_future", {"request_id": id})
        if isinstance(found, dict) and "error" in found:
            raise RuntimeError(f"{id}: {found['error']}")
        return found

    async def post(self, path: str, body: Any) -> Any:
        """Posts until there is an answer. Raises RuntimeError for one that is a refusal, TimeoutError for none."""
        type_ = wire.CONTENT_TYPE if isinstance(body, bytes) else "application/json"
        given: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    headers = {"X-API-Key": self._key, "Content-Type": type_}
                    async with self._http.post(f"{self._url}/{path}", headers=headers, **given) as response:
                        if response.status == 200:
                            is_bytes = response.content_type == wire.CONTENT_TYPE
                            return await response.read() if is_bytes else await response.json()
                        if response.status not in AGAIN:
                            raise RuntimeError(f"{path}: {response.status} {await response.text()}")
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(RETRY_SECONDS)

    def _body(self, request: Request) -> Any:
        if request.sampler is not None:
            id = f"{self.session}:sample:{request.sampler}"
            return {"sampling_session_id": id, "seq_id": request.number, **request.fields}
        if not request.data:
            return {"model_id": self.model, "seq_id": request.number, **request.fields}
        return training_body(self.model, request.number, request.data, request.loss)


def training_body(model: str, number: int, data: list[dict[str, Any]], loss: str) -> bytes:
    """The body of a training call; each datum has `tokens`, and arrays by the names of the loss's inputs."""
    message = wire._CLASSES["Request"](model_id=model, seq_id=number, loss_fn=loss)
    for datum in data:
        added = message.data.add()
        added.model_input.add().encoded_text.tokens = np.asarray(datum["tokens"], np.int32).tobytes()
        for name, value in datum.items():
            if name != "tokens":
                dtype = (wire.INT64, np.int64) if name == "target_tokens" else (wire.FLOAT32, np.float32)
                array = np.asarray(value, dtype[1])
                tensor = added.loss_fn_inputs.add(key=name).value
                tensor.dense, tensor.dtype, tensor.shape[:] = array.tobytes(), dtype[0], array.shape
    return message.SerializeToString()


@dataclass(kw_only=True, slots=True)
class Recorded:
    """A recipe as it was run: its requests in order, the digest of each answer, and the weights at the end."""

    requests: list[Request] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def distance(self, other: "Recorded") -> float:
        """The largest difference between the weights of two runs; 0 if all bits are the same."""
        return max(float(np.abs(value - other.weights[name]).max()) for name, value in self.weights.items())


async def record(client: ServiceClient, folder: Path, *, num_rounds: int, num_samples: int, seed: int = 0) -> Recorded:
    """Runs the recipe: in each round the model is saved for a sampler, samples, and is trained on what it has sampled.

    Tokens have an advantage by their parity, so that samples, their logprobs and all steps before are in the weights at the end.
    `folder` is the service's.
    """
    recorded, random = Recorded(), np.random.default_rng(seed)

    async def make(request: Request) -> Any:
        answer = await client.result(await client.make(request))
        recorded.requests.append(request)
        recorded.answers.append(digest(answer, client))
        return answer

    number = 0
    for round_ in range(num_rounds):
        number += 1
        await make(Request(route="save_weights_for_sampler", number=number, fields={"sampling_session_seq_id": round_}))
        data = []
        for index in range(num_samples):
            prompt = random.integers(1, VOCAB_SIZE, 6).tolist()
            parameters = {"max_tokens": 12, "temperature": 1.0, "seed": 100 * round_ + index, "stop": []}
            fields = {"prompt": {"chunks": [{"tokens": prompt}]}, "sampling_params": parameters, "num_samples": 2}
            answer = await make(Request(route="asample", number=index + 1, fields=fields, sampler=round_))
            for sequence in wire._CLASSES["SampleResponse"].FromString(answer).sequences:
                data.append(
                    as_datum(prompt, np.frombuffer(sequence.tokens, np.int32), np.frombuffer(sequence.logprobs, np.float32))
                )
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            number += 1
            await make(Request(route="forward_backward", number=number, data=part, loss="importance_sampling"))
        number += 1
        await make(Request(route="optim_step", number=number, fields={"adam_params": {"learning_rate": 5e-3}}))
    await make(Request(route="save_weights", number=number + 1, fields={"path": "final"}))
    recorded.weights = weights_of(client, folder)
    return recorded


def as_datum(prompt: list[int], tokens: np.ndarray, logprobs: np.ndarray) -> dict[str, Any]:
    """A sample as data of `importance_sampling`: even tokens are good, odd ones bad, those of the prompt count nothing."""
    whole = np.concatenate([prompt, tokens])
    before = np.zeros(len(prompt) - 1, np.float32)
    return {
        "tokens": whole[:-1],
        "target_tokens": whole[1:],
        "logprobs": np.concatenate([before, logprobs]),
        "advantages": np.concatenate([before, np.where(tokens % 2 == 0, 1.0, -1.0)]),
    }


async def repeat(
    client: ServiceClient,
    recorded: Recorded,
    folder: Path,
    *,
    posted: Callable[[int], Any] = lambda index: None,
) -> Recorded:
    """Makes the recorded requests again, one after the other; `posted` is called between a request and its answer."""
    found = Recorded(requests=recorded.requests)
    for index, request in enumerate(recorded.requests):
        id = await client.make(request)
        await asyncio.to_thread(posted, index)
        found.answers.append(digest(await client.result(id), client))
    found.weights = weights_of(client, folder)
    return found


async def repeat_in_order(client: ServiceClient, recorded: Recorded, folder: Path, order: Callable[[list[Any]], Any]) -> Recorded:
    """Makes every request twice, those of the model in another order of arrival, and those of samplers as soon as they are there.

    All requests of the model are under way at the same time.
    """
    found = Recorded(requests=recorded.requests, answers=[""] * len(recorded.requests))
    places = list(range(len(recorded.requests)))
    order(places)
    of_model = [place for place in places if recorded.requests[place].sampler is None]
    ids = {place: await client.make(recorded.requests[place]) for _ in range(2) for place in of_model}
    saves = {
        recorded.requests[place].fields["sampling_session_seq_id"]: place
        for place in of_model
        if recorded.requests[place].route == "save_weights_for_sampler"
    }

    async def one(place: int) -> None:
        request = recorded.requests[place]
        if request.sampler is not None:
            await client.result(ids[saves[request.sampler]])
            ids[place], again = await asyncio.gather(client.make(request), client.make(request))
            assert ids[place] == again, "one request, one id"
        first, second = await asyncio.gather(client.result(ids[place]), client.result(ids[place]))
        assert first == second, "one request, one answer"
        found.answers[place] = digest(first, client)

    await asyncio.gather(*[one(place) for place in places])
    found.weights = weights_of(client, folder)
    return found


def digest(answer: Any, client: ServiceClient) -> str:
    """A digest of an answer in which the names of its session do not count."""
    data = answer if isinstance(answer, bytes) else repr(answer).replace(client.session, "SESSION").encode()
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def weights_of(client: ServiceClient, folder: Path) -> dict[str, np.ndarray]:
    """The adapter that the recipe has saved at its end."""
    (file,) = (folder / "checkpoints" / client.model / "weights" / "final" / "adapter").glob("*.safetensors")
    return load_file(file)
