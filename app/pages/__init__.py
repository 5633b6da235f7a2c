"""Features of the app: one module each, with its page, routes, schemas and navigation entry.

`FEATURES` is the only list of them, in the order of the navigation. Each `add` registers a blueprint, API
routes and template variables, and returns the feature's navigation entries.
"""

from typing import Final

from app.api import inference
from app.api import routes as api
from app.pages import (
    caption,
    compare,
    corrections,
    digits,
    explain,
    food,
    generate,
    lab,
    model_cards,
    new_classifier,
    teach,
    translate,
)

FEATURES: Final = (
    food.add_routes,
    compare.add_routes,
    digits.add_routes,
    translate.add_routes,
    caption.add_routes,
    compare.add_generic_pages,
    new_classifier.add_routes,
    explain.add_routes,
    corrections.add_routes,
    teach.add_routes,
    model_cards.add_routes,
    generate.add_routes,
    lab.add_routes,
    api.add_routes,
    inference.add_routes,
)
# Systems with their own page. Other picture systems have a generic page. The first one is the main system:
# it answers requests that name no system.
OWN_PAGES: Final = (food.ABOUT, digits.ABOUT, translate.ABOUT, caption.ABOUT)
