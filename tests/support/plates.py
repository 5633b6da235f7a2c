"""A stack of replicas with a system whose versions are told apart by what they say of photos."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.eventually import eventually
from support.haproxy import Haproxy
from support.life import gourmet
from support.repeating import Repeating
from support.triton import MODELS, some_models
from support.up import Up
from support.web_app import Site, StartWeb, form

from gourmet.pictures.drawn import views
from gourmet.systems.food11.contract import SAMPLES, SYSTEM

MODEL = "plates_onnx"
CLIENTS = 8
PHOTOS = [
    photo
    for path in sorted(SAMPLES.glob("*.jpg"))
    for photo in views(path.read_bytes(), 6, size=(96, 80), seed=3)
]
Answer = dict[str, Any]


def half_wrong(labels: Sequence[str]) -> dict[str, str]:
    """What another network says instead of each label, so that about half of the photos have another."""
    found, wrong = Counter(labels), list[str]()
    for label, _ in sorted(found.items(), key=lambda each: each[1]):
        if sum(found[each] for each in (*wrong, label)) <= len(labels) * 0.6:
            wrong.append(label)
    wrong += [next(each for each in SYSTEM.labels if each not in found)] if len(wrong) == 1 else []
    return dict(zip(wrong, [*wrong[1:], wrong[0]], strict=True))


def with_other_labels(instead: dict[str, str], path: Path) -> None:
    """The food network whose scores stand in other places."""
    model = onnx.load(MODELS / "food_classifier_onnx" / "1" / "model.onnx")
    (groups,) = [each for each in model.graph.initializer if each.name == "groups"]
    values = numpy_helper.to_array(groups)
    places = list(range(len(SYSTEM.labels)))
    for label, other in instead.items():
        places[SYSTEM.labels.index(other)] = SYSTEM.labels.index(label)
    groups.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values[:, places]), groups.name))
    model.producer_name = path.stem
    onnx.save(model, path)


class Plates:
    """The stack with a system of its own, and what each version says of each photo."""

    def __init__(self, up: Up, folder: Path, site: Site, webs: Sequence[Site]) -> None:
        """`webs` are the web apps that are asked at `site`."""
        self.up, self.folder, self.site, self.webs = up, folder, site, webs
        self.turned_away = 0
        self.right = [self.ask([photo])[0]["label"] for photo in PHOTOS]
        self.instead = half_wrong(self.right)
        with_other_labels({}, folder / "good.onnx")
        with_other_labels(self.instead, folder / "bad.onnx")

    def ask(self, photos: Sequence[bytes], **headers: str) -> list[Answer]:
        body, content = form(*photos)
        reply = self.site.request("POST", f"/api/v1/classify?model={MODEL}", body, **content, **headers)
        while reply.status == 503 and b'"overloaded"' in reply.body:  # as a machine with other work may be
            self.turned_away += 1
            time.sleep(1)
            reply = self.site.request("POST", f"/api/v1/classify?model={MODEL}", body, **content, **headers)
        if reply.status != 200:
            raise AssertionError(f"{reply.status} {reply.json['error']['message']}")
        return list(reply.json["results"])

    def says(self, place: int, *, is_bad: bool) -> str:
        label = self.right[place]
        return self.instead.get(label, label) if is_bad else label

    def deploy(self, file: str, *more: str) -> str:
        return gourmet("deploy", "plates", "--weights", self.folder / f"{file}.onnx", *more)

    def counted(self, what: str, version: str) -> Counter[str]:
        """What the web apps counted of a version, in all of its canaries, by the last label."""
        text = "".join(web.request("GET", "/metrics").body.decode() for web in self.webs)
        lines = re.findall(rf"^web_canary_{what}_total{{(.*)}} (\S+)$", text, re.M)
        found = Counter[str]()
        for labels, value in lines:
            named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            del named["began"]
            if (named.pop("model"), named.pop("version")) == (MODEL, version):
                found[next(iter(named.values()))] += int(float(value))
        return found


class VersionsUnderLoad(Repeating):
    """Clients that ask with one photo or several, and look at every answer."""

    def __init__(self, plates: Plates, bad: set[str], pause_s: float = 0.0) -> None:
        """`bad` are the versions that say something else; each client pauses after an answer."""
        super().__init__(self._ask, CLIENTS, pause_s)
        self.plates, self.bad = plates, bad
        self.versions = Counter[str]()
        self.wrong = Counter[str]()

    def _ask(self, client: int, turn: int) -> None:
        first = client + turn
        places = [(first + each) % len(PHOTOS) for each in range(1 if first % 4 else 3)]
        try:
            answers = self.plates.ask([PHOTOS[place] for place in places])
            assert all("error" not in answer for answer in answers), answers
            versions = {answer["model"]["version"] for answer in answers}
            expected = [self.plates.says(place, is_bad=versions <= self.bad) for place in places]
            if len(versions) != 1:
                self.wrong["of two versions"] += 1
            elif [answer["label"] for answer in answers] != expected:
                self.wrong[f"not as version {min(versions)} says"] += 1
            self.versions[min(versions)] += 1
        except Exception as exc:
            self.wrong[str(exc)] += 1


@contextmanager
def running_plates(folder: Path, start: StartWeb | None = None) -> Iterator[Plates]:
    """Two replicas and their web app; with `start`, three and two web apps, all behind HAProxy."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as running:
        patch.setenv("GOURMET_KEYS", str(folder / "keys"))
        patch.setenv("GOURMET_HOME", str(folder / "home"))
        patch.setenv("FOOD11_MODEL_NAME", "food_classifier_onnx")
        patch.delenv("GOURMET_SYSTEMS", raising=False)
        # Triton loads a model in a thread that has connections of clients, too, which wait for that.
        patch.setenv("REQUEST_DEADLINE_S", "60")
        for name in ("tmp", "home/models"):
            (folder / name).mkdir(parents=True)
        asked_by_haproxy = ("food_classifier",) if start else ()
        models = some_models(folder / "models", "food_classifier_onnx", *asked_by_haproxy)
        repositories = (f"--model-repository={models}", f"--model-repository={folder / 'home' / 'models'}")
        up = Up("--replicas", "3" if start else "2", *repositories, tmp=folder / "tmp")
        running.callback(up.stop)
        up.wait_for("ready after", 120)
        labels = ("--labels", ",".join(SYSTEM.labels))
        weights = MODELS / "food_classifier_onnx" / "1" / "model.onnx"
        gourmet("new", "plates", *labels, "--weights", weights)
        site = Site(up.port)
        webs = [site]
        if start:
            site = haproxy = Haproxy(folder / "haproxy.log")
            webs = [start(haproxy.triton, WEB_CONCURRENCY="1") for _ in range(2)]
            tritons = [
                tuple(f"127.0.0.1:{port + apart}" for port in (up.http, up.grpc)) for apart in (0, 10, 20)
            ]
            haproxy.start(tritons, webs)
            running.callback(haproxy.stop)
            eventually(lambda: all(haproxy.are_up().values()))
        yield Plates(up, folder, site, webs)
