"""The viewer: a page on this machine that shows run folders, including runs in progress.

    python -m vime.view                          # all runs below outputs/
    python -m vime.view outputs/latest RUN …     # these, or those below these folders
    python -m vime.view outputs/latest --terminal

It prints an address with a token, listens on 127.0.0.1 only, and writes nothing into a run. On another machine, forward the port
(`ssh -L 8765:127.0.0.1:8765 HOST`) and open the address on your own.
"""

import argparse
import logging
import secrets
import socket
from pathlib import Path

import uvicorn
from rich.console import Console

from vime.surroundings import settle
from vime.view.http_server import HOSTS, application
from vime.view.runs import Runs
from vime.view.terminal import watch

logger = logging.getLogger(__name__)

PORT = 8765
TOKEN_BYTES = 24


def main() -> None:
    """Serves the pages until it is interrupted, or shows one run in the terminal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="RUN", help="run folders, or folders of runs; outputs/ by default"
    )
    parser.add_argument(
        "--port", type=int, default=PORT, help=f"by default {PORT}, or a free one if that is taken; 0 takes a free one"
    )
    parser.add_argument(
        "--terminal", action="store_true", help="show the run that was started last in the terminal, and follow it"
    )
    parser.add_argument("--once", action="store_true", help="with --terminal: show it a single time")
    settle()
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        runs = Runs(given.folders or [Path("outputs")])
    except FileNotFoundError as error:
        parser.error(str(error))
    try:
        if given.terminal:
            found = runs.all() or parser.error("there is no run in these folders yet")
            watch(found[0], Console(), once=given.once)
        else:
            serve(runs, port=given.port)
    except KeyboardInterrupt:  # the usual way to end it
        logger.info("ended")


def serve(runs: Runs, *, port: int) -> None:
    """Serves on a port of 127.0.0.1, and says where."""
    listener = bound(port)
    port, token = listener.getsockname()[1], secrets.token_urlsafe(TOKEN_BYTES)
    app = application(runs, token=token, port=port)
    listener.listen()  # whoever opens the address before the server answers waits for it instead of being refused
    settings = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
    logger.info("%d runs: http://%s:%d/?token=%s", len(runs.all()), min(HOSTS), port, token)
    uvicorn.Server(settings).run(sockets=[listener])


def bound(port: int) -> socket.socket:
    """A socket of 127.0.0.1 on this port, or on a free one if the usual one is taken.

    Raises OSError if another one than the usual port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((min(HOSTS), port))
    except OSError:
        if port != PORT:
            listener.close()
            raise
        listener.bind((min(HOSTS), 0))
    return listener


if __name__ == "__main__":
    main()
