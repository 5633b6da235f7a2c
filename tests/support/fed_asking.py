"""Which verb is given which of somebody's files, where: those that ask a server, at its addresses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from support import hostile, hostile_files, hostile_inputs, small_network
from support.fed_cases import Case, Given
from support.hostile_texts import hostile_text
from support.triton import RunningTriton


@dataclass(frozen=True)
class CasesAtTriton:
    """Cases at a Triton; `food_classifier_onnx`, `digits`, `translator` and `captioner` are served there."""

    triton: RunningTriton

    @property
    def makes(self) -> list[Callable[[Given], Iterator[Case]]]:
        return [
            self.of_captions,
            self.of_many_photos,
            self.of_texts,
            self.of_checks,
            self.of_clients,
            self.of_configs,
            self.of_loads,
        ]

    def case(self, name: str, words: str, *more: str, refused: bool = True, **given: Any) -> Case:
        options = self.triton.options
        ports = [options.http_port, options.grpc_port]
        argv = [*words.split(), *more, "--url", f"127.0.0.1:{options.http_port}"]
        return Case(argv[0], name, argv, refused, {"ports": ports, **given})

    def of_captions(self, given: Given) -> Iterator[Case]:
        for name, path in given.files(hostile_inputs.texts(), "photo.jpg"):
            yield self.case(f"photo, {name}", "caption", str(path))
        for number in range(0, 100, 6):
            name, content = hostile.file(number)
            folder = given.folder()
            (folder / f"{hostile_inputs.NAME}.jpg").write_bytes(content)
            yield self.case(f"folder, {name}", "caption --csv", str(folder), refused=False)

    def of_many_photos(self, given: Given) -> Iterator[Case]:
        classify = "classify --model food_classifier_onnx"
        for name, path in given.files(hostile_inputs.texts(), "photo.jpg"):
            yield self.case(f"photo, {name}", classify, str(path))
        for name, path in given.files(hostile_inputs.texts(), "list.txt"):
            yield self.case(f"list, {name}", classify, str(path), refused=name != "empty")
        for number in range(0, 100, 6):
            name, content = hostile.file(number)
            folder = given.folder()
            (folder / f"{hostile_inputs.NAME}.jpg").write_bytes(content)
            out = folder / "out.jsonl"
            more = ("--out", str(out))
            yield self.case(
                f"folder, {name}", classify, str(folder), *more, refused=False, writes=[str(folder)]
            )

    def of_texts(self, given: Given) -> Iterator[Case]:
        draw = random.Random(25)
        lines = hostile_inputs.texts() | {"two million lines": b"\n" * 2_000_000}
        lines |= {str(n): hostile_text(draw).encode(errors="surrogatepass") for n in range(22)}
        for name, content in lines.items():
            file = given.folder() / "texts"
            file.write_bytes(content)
            yield self.case(f"texts, {name}", "translate", refused=False, stdin=str(file))
        yield self.case("texts, zeros", "translate", stdin="/dev/zero")

    def of_checks(self, given: Given) -> Iterator[Case]:
        check = "check digits --limit 4"
        for name, file in given.files(hostile_inputs.texts() | hostile_inputs.digits(), "digits.csv"):
            yield self.case(f"digits, {name}", check, "--data", str(file))
        for name, file in given.files(hostile_inputs.texts(), "texts.txt"):
            yield self.case(
                f"texts, {name}", "check translator --limit 1", "--data", str(file), refused=False
            )
        for name, file in given.files(hostile_inputs.texts(), "results.jsonl"):
            more = {"writes": [str(file.parent)]}
            yield self.case(f"results, {name}", check, "--resume", str(file.parent), refused=False, **more)
        for name, file in given.weights(all_of_them=False):
            yield self.case(f"weights, {name}", check, "--eager", str(file))
        for name, file in given.files(hostile_inputs.texts(), "manifest.json"):
            version = file.parent / "models" / "digits" / "1"
            version.mkdir(parents=True)
            file.rename(version / file.name)
            more = ("--model-repository", str(file.parent / "models"))
            yield self.case(f"manifest, {name}", check, *more, refused=False)

    def of_clients(self, given: Given) -> Iterator[Case]:
        client = "deployer client --triton-model-name food_classifier_onnx"
        for name, file in given.files(hostile_inputs.texts(), "rows.bin"):
            yield self.case(f"rows, {name}", client, "--inference_data", str(file))
        for name, path in given.pictures():
            if path.is_dir():
                yield self.case(f"pictures, {name}", client, "--inference_data", str(path), refused=False)
        for name, file in given.weights(all_of_them=False):
            more = ("--config", small_network.ARCHITECTURE, "--reference", str(file))
            yield self.case(f"weights, {name}", client, *more)

    def of_configs(self, given: Given) -> Iterator[Case]:
        configs = hostile_inputs.texts() | hostile_inputs.configs()
        for name, file in given.files(configs, "config.pbtxt"):
            model = file.parent / "models" / "digits"
            model.mkdir(parents=True)
            file.rename(model / file.name)
            more = ("--reset", "--model-repository", str(model.parent))
            yield self.case(f"config, {name}", "config digits", *more, refused=name != "empty")
        for name, file in given.files(hostile_inputs.texts(), "written.pbtxt"):
            more = {"writes": [str(file.parent)]}
            yield self.case(f"written, {name}", "config digits --write", str(file), refused=False, **more)
        for name in ("../../config", "\x1b]0;owned\x07", "digits/../digits", "x" * 10_000):
            yield self.case(f"name, {name}", "config", name)

    def of_loads(self, given: Given) -> Iterator[Case]:
        """What is sent by those who measure."""
        for name, file in given.files(hostile_inputs.arrays() | hostile_inputs.texts(), "rows.npz"):
            for verb in ("tune", "bench run"):
                yield self.case(f"arrays, {name}", f"{verb} digits", "--data", str(file))
        for name, content in hostile_inputs.texts().items():
            folder = given.folder()
            (folder / f"{hostile_inputs.NAME}.jpg").write_bytes(content)
            for verb in ("tune food_classifier_onnx", "bench run food_classifier_onnx"):
                yield self.case(f"folder, {name}", verb, "--data", str(folder))
            yield self.case(f"folder, {name}", "bench scenario digits", "--data", str(folder))
        for name, file in given.files(hostile_files.networks(), "reference.onnx"):
            yield self.case(f"network, {name}", "bench run digits --rows 2", "--reference", str(file))
        whole = {name: content + b"\n" for name, content in hostile_inputs.texts().items() if content}
        for name, file in given.files(whole, "results.jsonl"):
            if file.exists():  # without any, it would begin to measure
                more = {"writes": [str(file.parent)]}
                words = ("bench scenario digits --resume", str(file.parent))
                yield self.case(f"results, {name}", *words, **more)
