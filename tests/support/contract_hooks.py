"""Pictures and labels for Schemathesis, which the OpenAPI document does not contain."""

from __future__ import annotations

import base64

import schemathesis
from hypothesis import strategies as st

from gourmet.systems.digits.contract import SYSTEM as DIGITS
from gourmet.systems.food11.contract import SYSTEM as FOOD

PHOTOS = st.sampled_from([FOOD.sample(), DIGITS.sample()])

schemathesis.openapi.format("binary", PHOTOS)
schemathesis.openapi.format("byte", PHOTOS.map(lambda photo: base64.b64encode(photo).decode()))
schemathesis.openapi.media_type("image/*", PHOTOS)
schemathesis.openapi.media_type("application/octet-stream", PHOTOS)
