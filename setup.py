"""Puts the repository's folders of data into the wheel; pyproject.toml and MANIFEST.in say the rest."""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithData(build_py):
    """In a wheel they lie in gourmet/_bundle: see `shipped` in gourmet/served/files.py."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for folder in ("triton", "notebooks"):
                target = Path(self.build_lib, "gourmet", "_bundle", folder)
                copytree(
                    folder,
                    target,
                    ignore=ignore_patterns("__pycache__", "README.md", ".withdrawn-*"),
                    dirs_exist_ok=True,
                )


setup(cmdclass={"build_py": BuildWithData})
