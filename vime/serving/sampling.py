"""Sampling parameters of a frozen model, by the names that vLLM and OpenAI's API share."""

from vime.config import SamplingConfig


def sampling_parameters(config: SamplingConfig) -> dict[str, float]:
    """The parameters that are not null, by name.

    Example: `SamplingConfig(temperature=0.7, top_k=20)` gives `{"temperature": 0.7, "top_k": 20}`.
    """
    parameters: dict[str, float | None] = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "repetition_penalty": config.repetition_penalty,
    }
    return {name: value for name, value in parameters.items() if value is not None}
