"""Type the commands of the README's console blocks as a reader does, and compare what they print.

    python3 scripts/run_readme.py        # in a fresh clone, as .ci/run does; the ports of `make up` are free

Where the README shows output, a command has to print this form: figures may differ, and … is any text. What
it starts it stops. `make test` is left to .ci/run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_ANSWERS_WITHIN_S: Final = 300
_COMMAND_S: Final = 600
# The reader's own files: weights, and a folder with photos for each class.
_MAKE_FILES: Final = """
import sys
from pathlib import Path
import torch
from gourmet.export.torchvision_network import build
from PIL import Image, ImageOps
torch.manual_seed(0)
folder = Path(sys.argv[1])
torch.save(build("torchvision:resnet18", 5).state_dict(), folder / "best.pth")
for path in Path("src/gourmet/systems/food11/samples").glob("*.jpg"):
    label = folder / "FOLDER" / path.name[:2]
    label.mkdir(parents=True, exist_ok=True)
    image = Image.open(path)
    image.save(label / path.name)
    ImageOps.mirror(image).save(label / f"mirrored-{path.name}")
"""


def examples() -> list[tuple[str, str]]:
    """Return each command of a console block, with the output that the README shows."""
    pairs = []
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            pairs.append((command, shown))
    return pairs


def form(text: str) -> str:
    """Return a text with its figures masked, and spaces and lines' ends as one space."""
    text = re.sub(r"(?<=flowers_onnx answers: the sample is )\w+", "daisy", text)
    text = re.sub(r"Setting up .venv with uv:", "Setting up .venv with python3.11:", text)
    return " ".join(re.sub(r"\d+(\.\d+)*(e[-+]\d+)?", "N", text).split())


def has_form(printed: str, shown: str, *, begins: bool = False) -> bool:
    """Return whether a text is of the form that the README shows, or, if it `begins`, its first part."""
    pattern = ".*".join(re.escape(part.strip()) for part in form(shown).split("…"))
    return re.fullmatch(pattern + (".*" if begins else ""), form(printed), re.DOTALL) is not None


class Reader:
    """A reader with the stack in one terminal and commands in another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        self._env |= {"PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}", "GOURMET_HOME": f"{folder}/gourmet"}
        self._up: subprocess.Popen[bytes] | None = None
        self._log = folder / "up.log"

    def start(self, command: str) -> None:
        with self._log.open("wb") as log:
            self._up = subprocess.Popen(
                ["bash", "-c", command],
                cwd=ROOT,
                env=self._env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        if self._up:
            os.killpg(self._up.pid, signal.SIGTERM)
            self._up.wait(60)
            assert "gourmet │ stopped" in self._log.read_text(), self._log.read_text()

    def run(self, command: str) -> tuple[int, str, str]:
        """Return the status, the output and the errors of a command."""
        typed = re.sub(r"\b(best\.pth|FOLDER)\b", rf"{self._folder}/\1", command)
        if "perf-analyzer" in command:  # with no demand on how steady this machine is
            typed += " --stability-percentage 999"
        done = subprocess.run(
            ["bash", "-c", typed], cwd=ROOT, env=self._env, capture_output=True, text=True, timeout=_COMMAND_S
        )
        return done.returncode, done.stdout, done.stderr

    def until_answered(self, command: str, shown: str, started: str) -> None:
        """Repeat a command until it prints what is shown; the stack printed what is shown of it, too."""
        ends = time.monotonic() + _ANSWERS_WITHIN_S
        while not has_form(self.run(command)[1], shown):
            if time.monotonic() > ends or (self._up and self._up.poll() is not None):
                sys.exit(f"no answer to {command}\n{self._log.read_text()}")
            time.sleep(0.2)
        if not has_form(self._log.read_text(), started, begins=True):
            sys.exit(f"the README shows another form:\n{started}\n{self._log.read_text()}")

    def check_size(self) -> None:
        """Compare what `make up` installed with what the README says, if it was installed now."""
        (said,) = re.findall(r"installs some (\d+) MB", (ROOT / "README.md").read_text(encoding="utf-8"))
        size = int(subprocess.check_output(["du", "-sm", ROOT / ".venv"]).split()[0])
        if not (ROOT / ".venv/.ready-train").exists() and abs(size / int(said) - 1) > 0.05:
            sys.exit(f"the README says that .venv has {said} MB: it has {size}")

    def set_up_for(self, command: str) -> None:
        """Install what a command needs, which says so."""
        if not (ROOT / ".venv" / ".ready-train").exists():
            (self._folder / "best.pth").touch()
            status, printed, errors = self.run(command)
            if not status or "make train-setup" not in errors:
                sys.exit(
                    f"$ {command}\n{printed}{errors}\nstatus {status}; it does not name `make train-setup`"
                )
        subprocess.run(["make", "train-setup"], cwd=ROOT, check=True)

    def make_files(self) -> None:
        command = [f"{ROOT}/.venv/bin/python", "-P", "-c", _MAKE_FILES, str(self._folder)]
        subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        reader, started, has_files = Reader(Path(folder)), "", False
        try:
            for command, shown in examples():
                began = time.monotonic()
                if command.startswith("make test"):
                    continue
                if command.startswith("make up"):
                    # The first line is about an environment that is not there yet.
                    started = shown.partition("\n")[2] if (ROOT / ".venv").exists() else shown
                    reader.start(command)
                    continue
                if started:
                    reader.until_answered(command, shown, started)
                    reader.check_size()
                    started = ""
                else:
                    if re.search(r"best\.pth|FOLDER", command) and not has_files:
                        reader.set_up_for(command)
                        reader.make_files()
                        has_files = True
                    status, printed, errors = reader.run(command)
                    if status or (shown.strip() and not has_form(printed, shown)):
                        sys.exit(
                            f"$ {command}\n{printed}{errors}\nstatus {status}; the README shows:\n{shown}"
                        )
                sys.stdout.write(f"{time.monotonic() - began:5.1f} s  {command}\n")
                sys.stdout.flush()
        finally:
            reader.stop()


if __name__ == "__main__":
    main()
