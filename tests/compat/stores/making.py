"""From a recipe to a store and what its broker said about it, and to the archive that the tests read."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from . import traffic
from .brokers import Broker
from .recipes import Recipe


def started(recipe: Recipe, root: Path) -> Broker:
    """The recipe's broker on `root`/store, to be entered."""
    return Broker(
        recipe.version,
        root / "store",
        root / "work",
        {name: value.format(root=root) for name, value in recipe.settings.items()},
        client=recipe.client,
        name_server={name: value.format(root=root) for name, value in recipe.name_server.items()},
        settle_seconds=recipe.settle_seconds,
    )


def make(recipe: Recipe, root: Path) -> dict[str, Any]:
    """Makes `root`/store, and what else the settings name; the answer is what the broker said before it stopped."""
    (root / "store").mkdir(parents=True)
    with started(recipe, root) as broker:
        said = traffic.standard(broker)
        said.update(recipe.extra(broker))
        seen = traffic.view(broker, recipe.queues)
        broker.stop()
    settings = {name: str(value).replace(str(root), "{root}") for name, value in broker.settings.items()}
    shutil.rmtree(root / "work")
    about = {"kind": recipe.kind, "version": recipe.version, "about": recipe.about, "settings": settings}
    return {**about, "sent": said, **seen}


def pack(recipe: Recipe, target: Path) -> dict[str, Any]:
    """Writes `target`/<kind>.tar.xz: the store, and manifest.json."""
    with tempfile.TemporaryDirectory(prefix="rmq-stores-") as scratch:
        manifest = make(recipe, Path(scratch))
        write_archive(Path(scratch), manifest, target / f"{recipe.kind}.tar.xz")
        return manifest


def write_archive(root: Path, manifest: dict[str, Any], archive: Path) -> None:
    (root / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False), encoding="utf-8")
    archive.parent.mkdir(parents=True, exist_ok=True)
    parts = sorted(path.name for path in root.iterdir())
    options = ["--sparse", "--sort=name", "--owner=0", "--group=0", "-C", str(root)]
    subprocess.run(
        ["tar", *options, "-cJf", str(archive), *parts], check=True, env={"XZ_OPT": "-9e", "PATH": "/usr/bin:/bin"}
    )
