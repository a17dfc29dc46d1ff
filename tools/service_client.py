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
import orjson
from safetensors.numpy import load_file

from vime.service import wire

RETRY_SECONDS, PATIENCE_SECONDS = 0.5, 500.0
AGAIN = (408, 429, 500, 502, 503, 504)
VOCAB_SIZE = 256
"""Tokens that the recipe draws; every model of ours has as many."""
JSON = "application/json"
RANK = 8
CREATES, FINAL = "create_model", "final"
"""The call that creates a model, and the name that recipes save their weights by at the end."""


SESSION = b"0" * 16
"""Stands for the name of the session in a recorded body; every session's name has as many characters, so protobuf stays valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A long call as it was made. Example: `Request(route="optim_step", body=b'{"model_id": "0000000000000000:train:0", …}')`."""

    route: str
    body: bytes
    """Names SESSION where it named the session that it was made in."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a JSON body; empty for protobuf."""
        return {} if self.is_protobuf else orjson.loads(self.body)

    @property
    def is_protobuf(self) -> bool:
        """True for a training call."""
        return self.route == "forward_backward"

    @property
    def sampler(self) -> str:
        """The name of the sampler that answers; empty where a model does."""
        return self.fields.get("sampling_session_id", "")

    @property
    def opens(self) -> str:
        """The name of the sampler that its answer opens, or an empty one."""
        number = self.fields.get("sampling_session_seq_id")
        return f"{SESSION.decode()}:sample:{number}" if number is not None else ""


class ServiceClient:
    """One API key and one session, with a model."""

    def __init__(self, url: str, http: aiohttp.ClientSession, *, key: str) -> None:
        self._url, self._http, self._key = f"{url}/api/v1", http, key
        self.session = self.model = ""

    async def open(self) -> None:
        """Opens a session; `model` is then the name of its first model."""
        self.session = (await self.post("create_session", {}))["session_id"]
        self.model = f"{self.session}:train:0"

    async def create_model(self, *, rank: int, seed: int) -> None:
        """Opens a session, and creates a model."""
        await self.open()
        await self.result((await self.post(CREATES, model_body(self.session, rank=rank, seed=seed)))["request_id"])

    async def make(self, request: Request) -> str:
        """Makes a request in its own session, and returns the id of its result."""
        body = request.body.replace(SESSION, self.session.encode())
        type_ = wire.CONTENT_TYPE if request.is_protobuf else JSON
        return (await self.post(request.route, body, type_=type_))["request_id"]

    async def result(self, id: str) -> Any:
        """The result of a call: bytes, or an object. Raises RuntimeError for a call that has failed."""
        found = await self.post("retrieve_future", {"request_id": id})
        if isinstance(found, dict) and "error" in found:
            raise RuntimeError(f"{id}: {found['error']}")
        return found

    async def post(self, path: str, body: Any, *, type_: str = wire.CONTENT_TYPE) -> Any:
        """Posts bytes of a type, or an object as JSON, until there is an answer.

        Raises RuntimeError for one that is a refusal, TimeoutError for none.
        """
        data, type_ = (body, type_) if isinstance(body, bytes) else (orjson.dumps(body), JSON)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    headers = {"X-API-Key": self._key, "Content-Type": type_}
                    async with self._http.post(f"{self._url}/{path}", headers=headers, data=data) as response:
                        if response.status == 200:
                            return read_answer(await response.read(), response.content_type)
                        if response.status not in AGAIN:
                            raise RuntimeError(f"{path}: {response.status} {await response.text()}")
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(RETRY_SECONDS)


def read_answer(data: bytes, content_type: str) -> Any:
    """An answer: protobuf as bytes, JSON as an object."""
    return data if content_type == wire.CONTENT_TYPE else orjson.loads(data)


def model_body(session: str, *, rank: int, seed: int) -> dict[str, Any]:
    """The body that creates the first model of a session."""
    return {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": rank, "seed": seed}}


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
    """Runs the recipe with a new model: in each round it is saved for a sampler, samples, and is trained on what it has sampled.

    Tokens have an advantage by their parity, so that samples, their logprobs and all steps before are in the weights at the end.
    `folder` is the service's.
    """
    recorded, random = Recorded(), np.random.default_rng(seed)

    async def make(route: str, body: Any) -> Any:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        request = Request(route=route, body=data.replace(client.session.encode(), SESSION))
        answer = await client.result(await client.make(request))
        recorded.requests.append(request)
        recorded.answers.append(digest(answer, client.session))
        return answer

    await make(CREATES, model_body(client.session, rank=RANK, seed=seed))
    model, number = client.model, 0
    for round_ in range(num_rounds):
        number += 1
        await make("save_weights_for_sampler", {"model_id": model, "seq_id": number, "sampling_session_seq_id": round_})
        sampler, data = f"{client.session}:sample:{round_}", []
        for index in range(num_samples):
            prompt = random.integers(1, VOCAB_SIZE, 6).tolist()
            parameters = {"max_tokens": 12, "temperature": 1.0, "seed": 100 * round_ + index, "stop": []}
            asked = {"prompt": {"chunks": [{"tokens": prompt}]}, "sampling_params": parameters, "num_samples": 2}
            answer = await make("asample", {"sampling_session_id": sampler, "seq_id": index + 1, **asked})
            for sequence in wire._CLASSES["SampleResponse"].FromString(answer).sequences:
                data.append(
                    as_datum(prompt, np.frombuffer(sequence.tokens, np.int32), np.frombuffer(sequence.logprobs, np.float32))
                )
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            number += 1
            await make("forward_backward", training_body(model, number, part, "importance_sampling"))
        number += 1
        await make("optim_step", {"model_id": model, "seq_id": number, "adam_params": {"learning_rate": 5e-3}})
    await make("save_weights", {"model_id": model, "seq_id": number + 1, "path": FINAL})
    recorded.weights = weights_of(client.model, folder)
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
        found.answers.append(digest(await client.result(id), client.session))
    found.weights = weights_of(client.model, folder)
    return found


async def repeat_in_order(client: ServiceClient, recorded: Recorded, folder: Path, order: Callable[[list[Any]], Any]) -> Recorded:
    """Makes every request twice, those of the model in another order of arrival, and those of samplers as soon as they are there.

    All requests of the model are under way at the same time; the one that creates it comes first, as no other is taken before it.
    """
    requests = recorded.requests
    found = Recorded(requests=requests, answers=[""] * len(requests))
    places = list(range(len(requests)))
    order(places)
    of_model = sorted(
        (place for place in places if not requests[place].sampler), key=lambda place: requests[place].route != CREATES
    )
    ids = {place: await client.make(requests[place]) for _ in range(2) for place in of_model}
    opening = {requests[place].opens: place for place in of_model if requests[place].opens}

    async def one(place: int) -> None:
        request = requests[place]
        if request.sampler:
            await client.result(ids[opening[request.sampler]])
            ids[place], again = await asyncio.gather(client.make(request), client.make(request))
            assert ids[place] == again, "one request, one id"
        first, second = await asyncio.gather(client.result(ids[place]), client.result(ids[place]))
        assert first == second, "one request, one answer"
        found.answers[place] = digest(first, client.session)

    await asyncio.gather(*[one(place) for place in places])
    found.weights = weights_of(client.model, folder)
    return found


def digest(answer: Any, session: str) -> str:
    """A digest of an answer in which the name of its session does not count."""
    data = answer if isinstance(answer, bytes) else repr(answer).replace(session, "SESSION").encode()
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def weights_of(model: str, folder: Path) -> dict[str, np.ndarray]:
    """The adapter that the recipe has saved at its end."""
    (file,) = (folder / "checkpoints" / model / "weights" / FINAL / "adapter").glob("*.safetensors")
    return load_file(file)
