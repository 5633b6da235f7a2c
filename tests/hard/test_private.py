"""Photos in shared memory, and what a killed stack leaves of them: no other user reads any of it."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from support.accounting import PhotoLoad, learn
from support.another_user import reads
from support.product import Product
from support.stack import SAMPLES
from support.table import Keep, TableRow
from support.triton import some_models
from support.up import Up

SECONDS = 20
KILLS = 3


def places(product: Product) -> list[Path]:
    """Where photos and keys are while the product runs: shared memory, folders, other processes."""
    product.up.ended()  # it learns the names of its folders
    memory = [path for name in product.up.folders for path in Path("/dev/shm").glob(f"{name}*")]
    kept = [path for path in product.up.tmp.rglob("*") if path.is_file()]
    runs = list(Path(os.environ["XDG_RUNTIME_DIR"]).rglob("*.json"))
    processes = [Path(f"/proc/{each.pid}/mem") for found in product.processes().values() for each in found]
    return [*memory, *kept, *runs, *processes]


@pytest.mark.timeout(600)
def test_another_user_reads_nothing(product: Product, table: Keep) -> None:
    photos = learn(product.url, [path.read_bytes() for path in SAMPLES])
    tried: Counter[str] = Counter()
    read: Counter[str] = Counter()
    with PhotoLoad(product.url, photos, per_s=10) as load:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for path in places(product):
                kind = path.parts[1]
                tried[kind] += 1
                read[kind] += reads(path) is not None
        load.run_for(1)
    account = load.account()
    wrong = {f"read in /{kind}": count for kind, count in read.items() if count}
    held = not account.lost and not wrong and tried["dev"] and tried["proc"]
    table(
        TableRow(
            tried="another user of the machine reads shared memory, files and processes under load",
            requests=tried.total(),
            answered=0,
            refused={"not permitted": tried.total() - read.total()},
            wrong=wrong,
            silent=account.lost,
            seen=f"nothing; {len(account.attempts)} photos were answered meanwhile",
            survived=bool(held),
            figures={f"tried in /{kind}": count for kind, count in tried.items()},
        )
    )


@pytest.mark.timeout(600)
def test_stacks_killed_one_after_the_other(tmp_path: Path, table: Keep) -> None:
    models = some_models(tmp_path / "models", "food_classifier_onnx", "digits")
    tmp, run = tmp_path / "tmp", tmp_path / "run"
    tmp.mkdir()
    run.mkdir()
    env = {"XDG_RUNTIME_DIR": str(run), "FOOD11_MODEL_NAME": "food_classifier_onnx"}
    took_s, left, stayed, photos = [], set[Path](), set[Path](), 0

    def there(names: set[str]) -> set[Path]:
        memory = (path for name in names for path in Path("/dev/shm").glob(f"{name}*"))
        return {*tmp.iterdir(), *run.rglob("*.json"), *memory}

    for number in range(KILLS + 1):
        up = Up("--model-repository", str(models), tmp=tmp, env=env)
        took_s.append(up.wait_for("the page http://127.0.0.1:", 180))
        stayed |= {path for path in left if path.exists()}
        photos += len(learn(f"http://127.0.0.1:{up.port}", [path.read_bytes() for path in SAMPLES]))
        if number < KILLS:
            up.ended()
            left |= there(up.folders)
            up.kill()
            left = {path for path in left if path.exists()}
        else:
            assert up.stop() < 10
    held = bool(left) and not stayed and not there(up.folders)
    table(
        TableRow(
            tried="the whole stack killed (-9) after photos, and started again",
            times=KILLS,
            requests=photos,
            answered=photos,
            wrong={f"stayed after the next start: {path}": 1 for path in stayed},
            recovery_s=max(took_s[1:]),
            seen="regions, keys and folders of the killed one are gone after the next start",
            survived=held,
        )
    )
