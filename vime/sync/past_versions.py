"""Earlier versions of the trained model as the weights of other served models: opponents for self-play.

    run folder/past_versions/opponent/20/   payload.json and the files of version 20

Every `serving.models.NAME.past_versions.every` steps the present version joins the model's pool of files, and its servers get one
that is drawn from the pool; a resumed run draws from the versions that are left.
"""

import asyncio
import json
import logging
import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from vime.config import RunConfig
from vime.files.folders import put_in_place, writing_place
from vime.files.jsonl import write_text
from vime.serving.topology import Serving, reach
from vime.sync.colocation import Colocation
from vime.weights.payload import WeightPayload
from vime.weights.policy import Policy

logger = logging.getLogger(__name__)

FOLDER = "past_versions"
DESCRIPTION = "payload.json"


class PastVersions:
    """The pools of a run, and the versions that its opponents have."""

    def __init__(self, config: RunConfig, run_dir: Path, serving: Serving, colocation: Colocation, policy: Policy) -> None:
        """The `policy` is the trained model's."""
        self._settings = {name: model.past_versions for name, model in config.serving.models.items() if model.past_versions.every}
        self._folder, self._seed = run_dir / FOLDER, config.seed
        self._serving, self._colocation, self._policy = serving, colocation, policy
        self._served: dict[str, int] = {}

    async def follow(self, version: int) -> dict[str, float]:
        """Brings the servers of each such model the version that is due after a sync of `version`, if it has another one.

        A server that is down gets it when it is back. Returns `serving/NAME/version`. Raises WeightSyncError if a server received
        other bytes, ServerError if one was given up.
        """
        for name, settings in self._settings.items():
            is_due = version % settings.every == 0
            if name in self._served and not is_due:
                continue
            folder = self._folder / name
            if is_due or not _versions(folder, until=version):
                await self._keep(folder, version)
            pool = _versions(folder, until=version)[-settings.pool_size :]
            drawn = random.Random(f"{self._seed} {name} {version - version % settings.every}").choice(pool)
            if drawn != self._served.get(name):
                await self._send(name, folder / str(drawn))
                self._served[name] = drawn
            for past in _versions(folder, until=version)[: -settings.pool_size]:
                if past != drawn:
                    shutil.rmtree(folder / str(past), ignore_errors=True)
        return {f"serving/{name}/version": float(served) for name, served in self._served.items()}

    async def _keep(self, folder: Path, version: int) -> None:
        """Adds the present version to a pool; one of that number there is of an interrupted run, and replaced.

        A copy that fails, on a full disk for example, leaves the pool as it is; only without any version it is an error.
        """
        payload = self._policy.payloads.get("")
        if payload is None or payload.version != version or payload.base is not None:
            async with self._colocation.awake() as trainer:
                payload = await trainer.export_weights(version, is_whole=True)
        try:
            await asyncio.to_thread(_copy, payload, folder / str(version))
        except OSError as error:
            shutil.rmtree(writing_place(folder / str(version)), ignore_errors=True)
            if not _versions(folder, until=version):
                raise
            logger.warning("version %d does not join the earlier versions in %s: %s", version, folder, error)

    async def _send(self, name: str, kept: Path) -> None:
        payload = WeightPayload(**json.loads((kept / DESCRIPTION).read_text()))
        payload = replace(payload, files=[str(kept / file) for file in payload.files])
        self._serving.policies[name].expect(payload.version, payload)
        actors = self._serving.actors(name)
        results = await reach([actor.sync.remote(payload, is_past=True) for actor in actors.values()])
        logger.info("version %d is on %d of %d servers of %s", payload.version, sum(map(bool, results)), len(results), name)


def _versions(folder: Path, *, until: int) -> list[int]:
    """The versions in a pool in ascending order; later ones are of a run that was interrupted after its last checkpoint."""
    found = [int(each.name) for each in folder.iterdir() if each.name.isdigit()] if folder.is_dir() else []
    return sorted(version for version in found if version <= until)


def _copy(payload: WeightPayload, folder: Path) -> None:
    """Copies a payload's files into a folder, which appears when it is complete."""
    place = writing_place(folder)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for file in payload.files:
        shutil.copyfile(file, place / Path(file).name)
    described = asdict(replace(payload, files=[Path(file).name for file in payload.files]))
    write_text(place / DESCRIPTION, json.dumps(described))
    put_in_place(place, folder)
