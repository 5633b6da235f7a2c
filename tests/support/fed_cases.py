"""Which verb is given which of somebody's files, where: those that ask no server."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support import hostile, hostile_files, hostile_inputs, small_network
from support.triton import MODELS

from gourmet.training.files import save_tensors

DIGITS: Final = ("digits",)


@dataclass(frozen=True)
class Case:
    """A verb as it is typed; `refused`: it has to end with another status than 0."""

    verb: str
    name: str
    argv: list[str]
    refused: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)


class Given:
    """Somebody's files below a folder, each in one of its own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.victim = base / "victim"
        self._count = 0

    def folder(self) -> Path:
        self._count += 1
        path = self.base / "given" / f"{self._count:04d}"
        path.mkdir(parents=True)
        return path

    def files(self, contents: Mapping[str, bytes], name: str) -> Iterator[tuple[str, Path]]:
        """Each of the contents in a file of that name; and what is no file, under it."""
        for what, content in contents.items():
            path = self.folder() / name
            path.write_bytes(content)
            yield what, path
        for what, made in hostile_inputs.no_files(self.folder(), Path(name).suffix).items():
            path = self.folder() / name
            made.rename(path) if what != "loop" else path.symlink_to(path)
            yield what, path

    def weights(self, *, all_of_them: bool) -> Iterator[tuple[str, Path]]:
        """Without `all_of_them`, those that no other process has to be started for."""
        yield from self.files(hostile_files.safetensors(), "w.safetensors")
        script = hostile_files.torchscript_that_writes(self.folder() / "w.pth", self.victim / "script")
        yield "TorchScript", script
        if all_of_them:
            yield from self.files(hostile_files.pickles(self.victim / "pickle"), "w.pth")

    def pictures(self) -> Iterator[tuple[str, Path]]:
        """Folders and zips of labelled pictures."""
        for what, path in self.files(hostile_inputs.archives(), "pictures.zip"):
            yield f"zip, {what}", path
        for number in range(0, 80, 5):
            what, content = hostile.file(number)
            yield f"folder, {what}", self._labelled(content, f"{number}.jpg")
        yield "folder, escapes in a name", self._labelled(b"none", f"{hostile_inputs.NAME}.jpg")
        for what, path in hostile_inputs.no_files(self.folder(), ".jpg").items():
            if what != "loop":
                folder = self.folder() / "Bread"
                folder.mkdir()
                path.rename(folder / path.name)
                yield f"folder with {what}", folder.parent

    def _labelled(self, content: bytes, name: str) -> Path:
        folder = self.folder()
        for label in ("00", "01"):
            (folder / label).mkdir()
            (folder / label / name).write_bytes(content)
        return folder


def digits_weights(folder: Path) -> Path:
    path = folder / "last.safetensors"
    path.write_bytes(_digits_weights())
    return path


@functools.cache
def _digits_weights() -> bytes:
    from gourmet.systems.digits.network import DigitsNetwork

    network = DigitsNetwork()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.safetensors"
        save_tensors(path, network.state_dict(), network.about)
        return path.read_bytes()


def of_weights(given: Given, *, all_of_them: bool) -> Iterator[Case]:
    for name, file in given.weights(all_of_them=all_of_them):
        network = small_network.ARCHITECTURE
        words = (
            f"new flowers --labels a,b --architecture {network} --to models --weights",
            f"deployer --onnx --config {network} --save-dir models --checkpoint",
            f"deploy food11 --format onnx --architecture {network} --to models --weights",
            "evaluate digits --data . --weights",
            "train digits --out run --limit 20 --init",
            "train food11 --data . --out run --rehearse",
            f"bench deployer models log {network}",
        )
        for typed in words:
            verb, *more = typed.split()
            yield Case(verb, f"weights, {name}", [verb, *more, str(file)], more=_systems(given))


def _systems(given: Given) -> dict[str, Any]:
    """`new` writes into a folder of its own."""
    own = str(given.base / "own")
    return {"env": {"GOURMET_SYSTEMS": own}, "writes": [own]}


def of_networks(given: Given, *, all_of_them: bool) -> Iterator[Case]:
    networks = hostile_files.networks() | hostile_inputs.texts()
    networks["a loop without end"] = hostile_files.without_end()
    networks |= {"a number without end": b"\xff" * 64, "weights": digits_weights(given.folder()).read_bytes()}
    networks["an unknown type"] = hostile_files.of_an_unknown_type()
    for name, file in given.files(networks, "n.onnx"):
        # What counts layers runs none of them: it may count those that no runtime has.
        yield Case(
            "roofline",
            f"network, {name}",
            ["roofline", str(file), "--no-machine", "--gpu", "t4"],
            refused=False,
        )
        if (all_of_them and name != "a loop without end") or name not in networks:
            words = f"new flowers --labels a,b --to models --weights {file}"
            yield Case("new", f"network, {name}", words.split(), more=_systems(given))


def of_descriptions(given: Given) -> Iterator[Case]:
    """What lies beside weights, in a run, or in a folder of a system."""
    run = {
        "system": "digits",
        "data": "nowhere",
        "recipe": {"epochs": 1, "phases": [{"until": 1.0}], "seed": 0},
        "overrides": [],
    }
    for name, file in given.files(hostile_inputs.texts() | hostile_inputs.json_files(run), "run.json"):
        weights = digits_weights(file.parent)
        wrong = name in hostile_inputs.texts()
        yield Case("evaluate", f"run.json, {name}", ["evaluate", "digits", "--weights", str(weights)])
        (file.parent / "checkpoint.pt").write_bytes(b"none")
        words = ["train", "digits", "--resume", "--out", str(file.parent), "--limit", "20"]
        yield Case("train", f"run.json, {name}", words, refused=wrong, more={"writes": [str(file.parent)]})
    beside = {
        "weights": {"file": "last.safetensors", "sha256": "0" * 64},
        "calibration": {"temperature": 1.0, "confidence_threshold": 0.5},
        "accuracy": {"test": {"top1": 1.0}},
    }
    for name, file in given.files(
        hostile_inputs.texts() | hostile_inputs.json_files(beside), "evaluation.json"
    ):
        weights = digits_weights(file.parent)
        if name.startswith(("calibration", "accuracy", "no calib", "no acc")):
            from gourmet.runtime.manifest import sha256

            file.write_text(file.read_text().replace("0" * 64, sha256(weights)))
        words = f"deploy digits --format onnx --data . --to models --weights {weights}"
        yield Case("deploy", f"evaluation.json, {name}", words.split())
    for name, file in given.files(hostile_inputs.texts() | hostile_inputs.toml_files(), "system.toml"):
        folder = file.parent / "systems" / "flowers"
        folder.mkdir(parents=True)
        shutil.move(file, folder / "system.toml") if not file.is_symlink() else file.rename(
            folder / "system.toml"
        )
        env = {"env": {"GOURMET_SYSTEMS": str(folder.parent)}}
        words = ["new", "petals", "--labels", "a,b", "--like", "flowers", "--to", "models"]
        fine = name.startswith(("labels", "a label", "no labels", "code as", "a network of"))
        yield Case(
            "new",
            f"system.toml, {name}",
            words,
            refused=not fine,
            more=env | {"writes": [str(folder.parent)]},
        )
        models = folder.parents[1] / "models"
        (models / "digits").mkdir(parents=True)
        shutil.copy(MODELS / "digits" / "config.pbtxt", models / "digits")
        own = {"refused": False, "more": env | {"writes": [str(models.parent)]}}
        for words in (["list"], ["remove", "flowers", "--yes"]):
            at = ["--model-repository", str(models)]
            yield Case(words[0], f"system.toml, {name}", [*words, *at], **own)
    for name, file in given.files(hostile_inputs.texts(), "labels.txt"):
        fine = {"refused": name not in ("eight megabytes in a line", "noise")}
        words = f"new flowers --to models --labels {file}".split()
        yield Case("new", f"labels, {name}", words, **fine, more=_systems(given))
        words = f"deployer --onnx --config {small_network.ARCHITECTURE} --save-dir models --labels {file}"
        yield Case("deployer", f"labels, {name}", words.split(), **fine)


def of_repositories(given: Given) -> Iterator[Case]:
    """A repository with a config or a manifest of somebody's."""
    manifest = {
        "file": "model.onnx",
        "sha256": "0" * 64,
        "calibration": {"temperature": 1.0},
        "dims": {"images": [1, 28, 28]},
        "config": {"name": "digits", "max_batch_size": 1},
        "training": {"weights_sha256": "0" * 64},
        "network": {"config": "x"},
        "deployer": "onnx",
    }
    configs = {
        name: ("config.pbtxt", content)
        for name, content in (hostile_inputs.texts() | hostile_inputs.configs()).items()
    }
    manifests = {
        name: ("manifest.json", content)
        for name, content in (hostile_inputs.texts() | hostile_inputs.json_files(manifest)).items()
    }
    for kinds in (configs, manifests):
        name_of = next(iter(kinds.values()))[0]
        for name, file in given.files({name: content for name, (_, content) in kinds.items()}, name_of):
            repository = file.parent / "models"
            model = repository / "digits"
            for version in ("1", "2"):
                shutil.copytree(MODELS / "digits" / "1", model / version)
            shutil.copy(MODELS / "digits" / "config.pbtxt", model)
            place = model / name_of if name_of == "config.pbtxt" else model / "1" / name_of
            if place.exists():
                place.unlink()
            file.rename(place) if not file.is_symlink() or name != "loop" else place.symlink_to(place)
            what = f"{name_of}, {name}"
            writes = {"writes": [str(repository)], "ports": [9]}
            yield Case(
                "doctor",
                what,
                ["doctor", "--model-repository", str(repository), *PORTS],
                refused=name_of == "config.pbtxt" and name not in FINE_CONFIGS,
                more=writes,
            )
            at = ["--model-repository", str(repository)]
            yield Case("list", what, ["list", *at], refused=False, more=writes)
            yield Case(
                "rollback", what, ["rollback", "digits", "--to", str(repository)], refused=False, more=writes
            )
            words = (
                f"deployer --onnx --config {small_network.ARCHITECTURE} --triton-model-name digits "
                f"--save-dir {repository}"
            )
            yield Case("remove", what, ["remove", "digits/1", "--yes", *at], refused=False, more=writes)
            if name_of == "config.pbtxt" or name in hostile_inputs.texts():
                yield Case("deployer", what, words.split(), more=writes)
            yield Case(
                "up", what, ["up", "--triton-only", "--model-repository", str(repository)], refused=False
            )


FINE_CONFIGS: Final = ("empty",)


_NOBODY: Final = dict.fromkeys(("--port", "--http-port", "--grpc-port", "--metrics-port"), 9)
PORTS: Final = [str(word) for option in _NOBODY.items() for word in option]


def of_data(given: Given) -> Iterator[Case]:
    """Examples to learn from, or to measure with."""
    weights = digits_weights(given.folder())
    for name, file in given.files(hostile_inputs.texts() | hostile_inputs.digits(), "digits.csv"):
        yield Case("train", f"digits, {name}", ["train", "digits", "--out", "run", "--data", str(file)])
        yield Case(
            "evaluate",
            f"digits, {name}",
            ["evaluate", "digits", "--weights", str(weights), "--data", str(file)],
        )
    for name, file in given.files(hostile_inputs.texts(), "pairs.tsv"):
        yield Case(
            "train", f"sentences, {name}", ["train", "translator", "--out", "run", "--data", str(file)]
        )
        words = ["deploy", "digits", "--format", "onnx", "--to", "models", "--weights", str(weights)]
        yield Case("deploy", f"digits, {name}", [*words, "--data", str(file)])
    network = small_network.saved(given.folder() / "w.pth")
    labels = ",".join(small_network.LABELS)
    for number, (name, path) in enumerate(given.pictures()):
        if number % 4 == 0:  # it reads the weights first, and then as the others do
            words = f"new flowers --labels {labels} --architecture {small_network.ARCHITECTURE} --to models"
            more = ["--weights", str(network), "--data", str(path)]
            yield Case("new", f"pictures, {name}", [*words.split(), *more], False, _systems(given))
        yield Case("train", f"pictures, {name}", ["train", "food11", "--out", "run", "--data", str(path)])
        yield Case("learn-more", f"pictures, {name}", ["learn-more", "food11", str(path), "--out", "run"])


def of_calibration(given: Given) -> Iterator[Case]:
    """Sentences to calibrate with, and what lies beside the model that is calibrated."""
    about = {"training": {"weights_sha256": "0" * 64}, "config": {}, "dims": {}, "sha256": "0" * 64}
    manifests = hostile_inputs.texts() | hostile_inputs.json_files(about)
    pairs = given.folder() / "pairs.tsv"
    pairs.write_text("dev\ta\tYes.\tДа.\n")
    repository = given.folder() / "models"
    shutil.copytree(MODELS / "translator", repository / "translator")
    lines = {
        "a text too long to ask": f"Yes.\t{'Да. ' * 600}",
        "a word without end": f"Yes.\t{'я' * 1_000_000}",
        "a translation without end": f"{'yes ' * 1_000_000}\tДа.",
        "a million lines of a letter": "а\t" + "\na" * 1_000_000,
    }
    sentences = {name: f"dev\ta\t{each}\n".encode() for name, each in lines.items()}
    for name, file in given.files(hostile_inputs.texts() | sentences, "pairs.tsv"):
        words = ["calibrate", "translator", "--to", str(repository), "--data", str(file)]
        yield Case("calibrate", f"sentences, {name}", words, more={"writes": [str(repository)]})
    for name, file in given.files(hostile_inputs.packages(), "model.zip"):
        model = file.parent / "models" / "translator"
        (model / "1").mkdir(parents=True)
        shutil.copy(MODELS / "translator" / "config.pbtxt", model)
        its = hashlib.sha256(file.read_bytes()).hexdigest() if name in hostile_inputs.packages() else "0"
        (model / "1" / "manifest.json").write_text(json.dumps(about | {"file": file.name, "sha256": its}))
        place = model / "1" / file.name
        file.rename(place) if name != "loop" else place.symlink_to(place)
        words = ["calibrate", "translator", "--to", str(model.parent), "--data", str(pairs)]
        yield Case("calibrate", f"package, {name}", words, more={"writes": [str(model.parent)]})
    for name, file in given.files(manifests, "manifest.json"):
        model = file.parent / "models" / "translator"
        (model / "1").mkdir(parents=True)
        shutil.copy(MODELS / "translator" / "config.pbtxt", model)
        (model / "1" / "model.zip").symlink_to(MODELS / "translator" / "1" / "model.zip")
        place = model / "1" / "manifest.json"
        file.rename(place) if not file.is_symlink() or name != "loop" else place.symlink_to(place)
        words = ["calibrate", "translator", "--to", str(model.parent), "--data", str(pairs)]
        yield Case("calibrate", f"manifest, {name}", words, more={"writes": [str(model.parent)]})


def of_runs(given: Given) -> Iterator[Case]:
    """Saved benchmarks."""
    point = {"load": {"model": "m", "level": 1}, "latency_us": {"p50": 1.0}}
    document = {
        "title": "t",
        "command": "c",
        "when": "2026",
        "machine": {"cpu": "x"},
        "data": "d",
        "points": [],
        "refused": [],
        "about": "[/red] [link=x]",
        "schema": "gourmet-bench/1",
    }
    texts = hostile_inputs.texts()
    files = texts | hostile_inputs.json_files(document)
    files["a point"] = json.dumps(document | {"points": [point]}).encode()
    files["markup as a title"] = json.dumps(document | {"title": "[/x]\x1b]0;owned\x07"}).encode()
    for name, file in given.files(files, "bench.json"):
        yield Case("bench", f"compare, {name}", ["bench", "compare", str(file), str(file)], refused=False)
        if file.parent.name != "given":
            folder = file.parent / "runs" / "one"
            folder.mkdir(parents=True)
            (folder / "bench.json").symlink_to(file)
            yield Case("bench", f"list, {name}", ["bench", "list", str(folder.parent)], refused=False)


def of_checkpoints(given: Given) -> Iterator[Case]:
    """Folders of the translator's as others publish them, and runs to go on with."""
    from gourmet.systems.translator.tokenizer import FILES

    config = {
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 1,
        "decoder_attention_heads": 1,
        "encoder_ffn_dim": 8,
        "decoder_ffn_dim": 8,
        "vocab_size": 3,
        "max_position_embeddings": 8,
        "pad_token_id": 1,
    }
    configs = hostile_inputs.texts() | hostile_inputs.json_files(config)
    for key in ("d_model", "encoder_layers", "decoder_ffn_dim", "vocab_size", "max_position_embeddings"):
        configs[f"a billion of {key}"] = json.dumps(config | {key: 10**9}).encode()
    configs["code of somebody"] = json.dumps(config | {"auto_map": {"AutoModel": "owned.Owned"}}).encode()
    for name, file in given.files(configs, "config.json"):
        for other in FILES:
            (file.parent / other).write_bytes(b'{"</s>": 0, "<pad>": 1, "<unk>": 2}')
        digits_weights(file.parent).rename(file.parent / "model.safetensors")
        (file.parent / "modeling_owned.py").write_text(f"open({str(given.victim / 'code')!r}, 'w')")
        words = ["deploy", "translator", "--format", "python", "--to", "models", "--checkpoint"]
        yield Case("deploy", f"config.json, {name}", [*words, str(file.parent)])
    for name, file in given.files(hostile_files.pickles(given.victim / "resumed"), "checkpoint.pt"):
        recipe = {"epochs": 1, "phases": [{"start": 0.0, "batch": 4}], "peak_rate": 0.1}
        run = {"system": "digits", "data": str(hostile_inputs.few_digits(file.parent)), "recipe": recipe}
        (file.parent / "run.json").write_text(json.dumps(run))
        words = ["train", "digits", "--resume", "--out", str(file.parent)]
        yield Case("train", f"checkpoint.pt, {name}", words, more={"writes": [str(file.parent)]})


def some_weights_and_networks(given: Given) -> Iterator[Case]:
    yield from of_weights(given, all_of_them=False)
    yield from of_networks(given, all_of_them=False)


QUICK: Final[tuple[Callable[[Given], Iterator[Case]], ...]] = (
    of_descriptions,
    of_repositories,
    of_data,
    of_calibration,
    of_runs,
    of_checkpoints,
    some_weights_and_networks,
)
