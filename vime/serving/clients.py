"""The client that fits a served model."""

from vime.config import ServingConfig
from vime.serving.client import TokenClient
from vime.serving.endpoint import Endpoint
from vime.serving.external import ChatClient


def make_client(endpoint: Endpoint, config: ServingConfig) -> TokenClient | ChatClient:
    """A client of one endpoint for this process, to be used in the event loop that makes it."""
    return TokenClient(endpoint, config) if endpoint.chat is None else ChatClient(endpoint, config)
