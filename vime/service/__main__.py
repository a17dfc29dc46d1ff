"""The command of the training service.

    python -m vime.service model=tiny model.checkpoint=PATH      # on this machine; then TINKER_BASE_URL=http://127.0.0.1:8930
    python -m vime.service model=qwen3-8b cluster=one_node service.max_models=16
    python -m vime.service model=tiny model.checkpoint=PATH mode=plan          # show what would be started

The words are settings, as of `python -m vime.run`. Ctrl-C ends the service; with `output_dir=FOLDER` the next one goes on where
it was.
"""

import asyncio
import logging
import os
import signal
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from vime.cluster.ports import BACKLOG
from vime.config import Mode, RunConfig
from vime.errors import ConfigError, Problem, VimeError
from vime.processes.secret import is_loopback
from vime.report.run_directory import CONFIG, RunDirectory, held
from vime.run import CONFIG_ERROR, FAILED, INTERRUPTED, report
from vime.service.call_queue import Interrupted
from vime.service.configuration import compose_service
from vime.service.journal import Journal
from vime.service.service_plan import show_service_plan
from vime.service.tinker_api import KEYS_VARIABLE, TinkerAPI
from vime.service.training_service import open_service
from vime.surroundings import settle
from vime.tasks import cancel

logger = logging.getLogger("vime.service")

SHUTDOWN_SECONDS = 1.0
"""Time for answers that are being written; clients that wait for a result ask again."""
MOST_LOSSES = 3
"""Losses of the trainer with no call between that end the service."""


def main(words: list[str] | None = None) -> int:
    """Serves until it is interrupted; returns the exit code, 2 for settings that are wrong."""
    settle()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        words = sys.argv[1:] if words is None else words
        composed = compose_service(words)
        settings = composed.config.service
        if not is_loopback(settings.host) and not os.environ.get(KEYS_VARIABLE):
            remedy = f"other machines reach it: set the environment variable {KEYS_VARIABLE} to the keys of its clients"
            raise ConfigError([Problem(key="service.host", value=settings.host, remedy=remedy)])
        if composed.config.mode is Mode.plan:
            show_service_plan(composed.config)
            return 0
        return asyncio.run(_serve(composed.config, words))
    except ConfigError as error:
        report(error)
        return CONFIG_ERROR
    except VimeError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


async def _serve(config: RunConfig, words: list[str]) -> int:
    """Serves until it is stopped. After a loss of the trainer, all is started again, and goes on where it was."""
    folder, stopped = Path(str(config.output_dir)), asyncio.Event()
    folder.mkdir(parents=True, exist_ok=True)
    num_losses = 0
    with held(folder), closing(Journal(folder)) as journal:
        RunDirectory.create(replace(config, resume=(folder / CONFIG).exists()), words)
        while num_losses < MOST_LOSSES:
            lost_after = await _serve_once(config, folder, journal, stopped)
            if lost_after is None:
                return 0
            num_losses = 1 if lost_after else num_losses + 1
            logger.error("the trainer is lost, and all is started again; models and calls are in the journal")
    logger.error("the trainer was lost %d times with no call between: mend the reason (logs/trainer-0.log), then", num_losses)
    logger.error("start again with output_dir=%s, which goes on where it was", folder)
    return FAILED


async def _serve_once(config: RunConfig, folder: Path, journal: Journal, stopped: asyncio.Event) -> int | None:
    """Serves until it is stopped, or has lost its trainer: then it returns the number of calls that ended before."""
    settings = config.service
    async with open_service(config, folder, say=logger.info) as service:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        api = TinkerAPI(service, folder, journal)
        runner = web.AppRunner(api.app(), access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS)
        try:
            await runner.setup()
            await web.TCPSite(runner, settings.host, settings.port, backlog=BACKLOG).start()
            settings.port = runner.addresses[0][1]  # where 0 was asked for, and for the next start
            logger.info("%s is served at http://%s:%d", ", ".join(api.names), settings.host, settings.port)
            waiting = [asyncio.create_task(event.wait()) for event in (stopped, service.lost)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await cancel(waiting)
        except Interrupted:
            logger.exception("the models were not restored")
        except OSError as error:
            remedy = f"cannot listen there ({error}): choose another port"
            raise ConfigError([Problem(key="service.port", value=settings.port, remedy=remedy)]) from error
        finally:
            await runner.cleanup()
        return api.num_finished if service.lost.is_set() and not stopped.is_set() else None


if __name__ == "__main__":
    sys.exit(main())
