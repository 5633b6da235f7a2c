"""The workbench around the served models. Its import only installs the import guard for torch."""

from gourmet.import_guard import install

install()
