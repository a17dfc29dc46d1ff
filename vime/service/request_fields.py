"""Fields of requests in JSON: read with their types and ranges, and refused with the field and a remedy."""

import math
import zlib
from typing import Any

import orjson

from vime.errors import BadRequestError
from vime.service.training_service import ModelSpec

MOST_SAMPLES = 1024


def json_object(data: bytes) -> dict[str, Any]:
    """The JSON object of a body; an empty one for no body. Raises BadRequestError for another body."""
    try:
        found = orjson.loads(data) if data else {}
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise BadRequestError("the body is no JSON object")
    return found


def text_of(body: dict[str, Any], name: str) -> str:
    """A text that is not empty. Raises BadRequestError."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"{name}={value!r}: a text is needed")
    return value


def number_of(body: dict[str, Any], name: str, *, needed: bool = False) -> Any:
    """A whole number of at least 0, or None where it is missing and not `needed`. Raises BadRequestError."""
    value = body.get(name)
    if value is None and not needed:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise BadRequestError(f"{name}={value!r}: a whole number of at least 0 is needed")
    return value


def real_of(body: dict[str, Any], name: str, default: float, *, least: float, most: float = math.inf) -> float:
    """A finite number from `least` to `most`. Raises BadRequestError."""
    value = body.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most or not math.isfinite(value):
        allowed = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise BadRequestError(f"{name}={value!r}: a number of {allowed} is needed")
    return float(value)


def model_spec(body: dict[str, Any], *, name: str) -> ModelSpec:
    """The model that `create_model` asks for; without a seed, one of its name. Raises BadRequestError."""
    lora = body.get("lora_config")
    if not isinstance(lora, dict):
        raise BadRequestError("lora_config is missing: give lora_config={rank: …}, where rank 0 trains all weights")
    rank, seed = number_of(lora, "rank", needed=True), number_of(lora, "seed")
    parts = {name: lora.get(name, True) for name in ("train_attn", "train_mlp", "train_unembed")}
    for name, value in parts.items():
        if not isinstance(value, bool):
            raise BadRequestError(f"lora_config.{name}={value!r}: use true or false")
    return ModelSpec(rank=rank, seed=zlib.crc32(name.encode()) >> 1 if seed is None else seed, **parts)


def check_optimizer(body: dict[str, Any]) -> None:
    """Raises BadRequestError for another optimizer than AdamW."""
    given = body.get("optimizer_config") or {}
    kind = given.get("type", "adamw") if isinstance(given, dict) else given
    if kind != "adamw":
        raise BadRequestError(f"optimizer_config.type={kind}: this service has adamw")


def adam_options(body: dict[str, Any]) -> dict[str, float]:
    """The options of an optimizer step, by the trainer's names. Raises BadRequestError."""
    given = body.get("adam_params")
    if not isinstance(given, dict):
        kind = (body.get("optimizer_params") or {}).get("type") if isinstance(body.get("optimizer_params"), dict) else None
        raise BadRequestError(f"optimizer_params.type={kind}: this service has adamw, with adam_params")
    known = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
    if unknown := sorted(set(given) - set(known)):
        raise BadRequestError(f"adam_params.{unknown[0]} is unknown: use {', '.join(known)}")
    return {
        "lr": real_of(given, "learning_rate", 1e-4, least=0.0),
        "beta1": real_of(given, "beta1", 0.9, least=0.0, most=1 - 1e-9),
        "beta2": real_of(given, "beta2", 0.95, least=0.0, most=1 - 1e-9),
        "eps": real_of(given, "eps", 1e-12, least=0.0),
        "weight_decay": real_of(given, "weight_decay", 0.0, least=0.0),
        "clip_grad": real_of(given, "grad_clip_norm", 0.0, least=0.0),
    }


def prompt_tokens(body: dict[str, Any], *, vocab_size: int) -> list[int]:
    """The tokens of a prompt. Raises BadRequestError for images, and for numbers that are no tokens."""
    prompt = body.get("prompt")
    chunks = prompt.get("chunks") if isinstance(prompt, dict) else None
    if not isinstance(chunks, list):
        raise BadRequestError("prompt has no chunks")
    tokens: list[int] = []
    for chunk in chunks:
        kind, part = (chunk.get("type", "encoded_text"), chunk.get("tokens")) if isinstance(chunk, dict) else (None, None)
        if kind != "encoded_text":
            raise BadRequestError(f"prompt has a chunk of the type {kind}; this service samples behind tokens alone")
        if not isinstance(part, list) or not all(isinstance(token, int) and not isinstance(token, bool) for token in part):
            raise BadRequestError("prompt has a chunk without a list of tokens")
        tokens += part
    if not tokens:
        raise BadRequestError("prompt is empty")
    if not all(0 <= token < vocab_size for token in tokens):
        raise BadRequestError(f"prompt has values that are no tokens: ids are 0 to {vocab_size - 1}")
    return tokens


def sample_count(body: dict[str, Any]) -> int:
    """The number of samples that a request asks for. Raises BadRequestError."""
    found = number_of(body, "num_samples") or 1
    if found > MOST_SAMPLES:
        raise BadRequestError(f"num_samples={found}: use 1 to {MOST_SAMPLES}")
    return found


UNSUPPORTED = {
    "target_prompt_logprobs": "logprobs of named tokens of a prompt",
    "prompt_alt_tokens_k": "alternatives to the tokens of a prompt",
    "prompt_logprobs_last_n": "logprobs of the end of a prompt",
    "record_stability_info": "records for stable_reinforce, whose formula is not public: take importance_sampling or cispo",
}
"""Fields of a sampling request that are refused."""


def sampling_parameters(body: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a sampling request by vLLM's names. Raises BadRequestError."""
    for name, what in UNSUPPORTED.items():
        if body.get(name):
            raise BadRequestError(f"{name}={body[name]!r} is not supported: {what}")
    given = body.get("sampling_params") or {}
    if not isinstance(given, dict):
        raise BadRequestError("sampling_params is no object")
    found: dict[str, Any] = {
        "temperature": real_of(given, "temperature", 1.0, least=0.0),
        "top_p": real_of(given, "top_p", 1.0, least=1e-9, most=1.0),
    }
    if (most := number_of(given, "max_tokens")) is not None:
        if most < 1:
            raise BadRequestError("sampling_params.max_tokens=0: a reply has at least 1 token")
        found["max_tokens"] = most
    top_k = given.get("top_k", -1)
    if top_k not in (None, -1, 0):
        found["top_k"] = number_of(given, "top_k")
    if (seed := number_of(given, "seed")) is not None:
        found["seed"] = seed % 2**62
    if num_top := number_of(body, "topk_sample_logprobs"):
        found["logprobs"] = num_top
    stop = given.get("stop")
    if stop == []:
        found["ignore_eos"] = True
    elif isinstance(stop, str):
        found["stop"] = [stop]
    elif isinstance(stop, list) and all(isinstance(each, str) and each for each in stop):
        found["stop"] = stop
    elif isinstance(stop, list) and all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in stop):
        found["stop_token_ids"] = stop
    elif stop is not None:
        raise BadRequestError(f"sampling_params.stop={stop!r}: use a text, texts or token ids")
    return found
