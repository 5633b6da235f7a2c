"""The workbench around the served models. Importing it keeps torch whole in a checkout, and does no more."""

from gourmet.import_guard import install

install()
