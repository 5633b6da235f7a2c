"""Features of the app: one module each, with its page, routes, schemas and navigation entry.

This list is the only place that names them; their pages stand in the navigation in its order. Each `add`
adds its blueprint, its addresses of the API and what its templates need, and tells its links.
"""

from typing import Final

from app.api import routes as api
from app.features import (
    caption,
    compare,
    corrections,
    digits,
    explain,
    food,
    generate,
    lab,
    model_cards,
    teach,
    translate,
)

FEATURES: Final = (
    food.add,
    compare.add,
    digits.add,
    translate.add,
    caption.add,
    compare.add_generic_pages,
    explain.add,
    corrections.add,
    teach.add,
    model_cards.add,
    generate.add,
    lab.add,
    api.add,
)
# The systems that have a page of their own; any other of pictures has a generic one. The first is what the
# app is about: it answers where a request names none.
OWN_PAGES: Final = (food.ABOUT, digits.ABOUT, translate.ABOUT, caption.ABOUT)
