"""Whether the engine of a vLLM server works.

vLLM's `/health` answers also while the engine or a worker is stopped. A call of a worker's empty method passes through API
server, engine and worker, is taken between two steps, and does not queue behind requests; so it shows a hang of any of them.
"""

import aiohttp

from vime.processes.control import UNREACHABLE

FIRST_TOKEN = {"token_ids": [1], "sampling_params": {"max_tokens": 1, "logprobs": 0, "detokenize": False}}


async def has_generated(http: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> bool:
    """Whether a server generates its first token, for which it may compile kernels: after that, silence means something."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with http.post(f"{url}/inference/v1/generate", json=FIRST_TOKEN, timeout=timeout) as response:
            return response.status < 500
    except UNREACHABLE:
        return False


async def is_silent(http: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> bool:
    """Whether engine or workers take longer than they may to answer; any other failure shows elsewhere."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with http.post(f"{url}/collective_rpc", json={"method": "check_health"}, timeout=timeout):
            return False
    except TimeoutError:
        return True
    except (aiohttp.ClientError, OSError):
        return False
