"""The command of the training service.

    python -m vime.service model=tiny model.checkpoint=PATH      # on this machine; then TINKER_BASE_URL=http://127.0.0.1:8930
    python -m vime.service model=qwen3-8b cluster=one_node service.max_models=16

The words are settings, as of `python -m vime.run`. Ctrl-C ends the service; checkpoints stay in its folder.
"""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

from vime.cluster.ports import BACKLOG
from vime.config import RunConfig
from vime.errors import ConfigError, Problem, VimeError
from vime.processes.secret import is_loopback
from vime.run import CONFIG_ERROR, FAILED, INTERRUPTED, report
from vime.service.configuration import compose_service
from vime.service.tinker_api import KEYS_VARIABLE, TinkerAPI
from vime.service.training_service import open_service
from vime.surroundings import settle

logger = logging.getLogger("vime.service")


def main(words: list[str] | None = None) -> int:
    """Serves until it is interrupted; returns the exit code, 2 for settings that are wrong."""
    settle()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        composed = compose_service(sys.argv[1:] if words is None else words)
        settings = composed.config.service
        if not is_loopback(settings.host) and not os.environ.get(KEYS_VARIABLE):
            remedy = f"other machines reach it: set the environment variable {KEYS_VARIABLE} to the keys of its clients"
            raise ConfigError([Problem(key="service.host", value=settings.host, remedy=remedy)])
        return asyncio.run(_serve(composed.config))
    except ConfigError as error:
        report(error)
        return CONFIG_ERROR
    except VimeError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


async def _serve(config: RunConfig) -> int:
    folder, settings, stopped = Path(str(config.output_dir)), config.service, asyncio.Event()
    folder.mkdir(parents=True, exist_ok=True)
    async with open_service(config, folder, say=logger.info) as service:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        api = TinkerAPI(service, folder)
        runner = web.AppRunner(api.app(), access_log=None, handle_signals=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.host, settings.port, backlog=BACKLOG).start()
            logger.info("%s is served at http://%s:%d", ", ".join(dict.fromkeys(api.names)), settings.host, settings.port)
            waiting = [asyncio.create_task(event.wait()) for event in (stopped, service.lost)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except OSError as error:
            logger.error("cannot listen on %s:%d (service.port): %s", settings.host, settings.port, error)
            return CONFIG_ERROR
        finally:
            await runner.cleanup()
    if service.lost.is_set():
        logger.error("the trainer is lost: start again with output_dir=%s, which has the checkpoints", folder)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
