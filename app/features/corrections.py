"""Visitors' corrections, kept where the operator wants to learn from them by `gourmet learn-more`.

A picture is kept as the models see it, a small square, without its name or anything else that its file said.
"""

from __future__ import annotations

from collections.abc import Sequence

from flask import Flask, Response

from app.admission.queue import deadline_of_request
from app.admission.uploads import admission
from app.api.openapi import Operation, Parameter, documented, photos
from app.api.photo_calls import one_of
from app.api.request_parsing import photos_and_model
from app.api.schemas import Kept
from app.api.services import NavigationEntry, Services
from app.core.errors import BadRequest, RefusedRequest
from app.core.http import marked, request_id, unstored
from app.features.correction_stores import store_at
from gourmet.errors import GourmetError
from gourmet.pictures.label_folders import OTHER, folder_of


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    settings, systems = services.settings, services.pictures
    app.jinja_env.globals["keeps_corrections"] = bool(settings.keep_corrections)
    if not settings.keep_corrections:
        return ()
    store = store_at(settings.keep_corrections)

    @services.api.post("/corrections")
    @marked(admitted="photos")
    @documented(
        Operation(
            Kept,
            bodies=photos(),
            query={
                "label": Parameter(
                    f"What the photo shows: one of the system's labels, or {OTHER} where it is none of them",
                    required=True,
                ),
                "system": Parameter("The system whose label it is; the first of them unless given", systems),
            },
        )
    )
    def correct() -> Response:
        """Say what a photo really shows.

        It is kept, as a small square, for the operator of this site to train on. A photo that is sent again
        replaces what was said of it before.
        """
        sent, _ = photos_and_model(settings)
        system = systems[one_of("system", systems) or services.first_system]
        allowed = (*system.labels, OTHER) if system.subject else system.labels
        label = one_of("label", allowed)
        if not label or len(sent) != 1:
            raise BadRequest(f"send one photo, and as label one of {', '.join(allowed)}")
        if sent[0].fault:
            raise sent[0].fault
        deadline = deadline_of_request(settings.request_deadline_s)
        pixels = services.classifier.pixels(system, sent[0].data, deadline)
        is_other = label not in system.labels
        # Others' photos do not wait for a store that hangs.
        admission().keep_turn()()
        try:
            store.keep(system.name, OTHER if is_other else folder_of(label, system.labels), pixels, deadline)
        except (OSError, GourmetError) as exc:
            app.logger.warning("request %s: a correction may not have been kept: %s", request_id(), exc)
            raise RefusedRequest(
                "corrections_unavailable",
                "corrections cannot be kept at the moment, and this one may be lost: send it again later",
            ) from None
        return unstored(Kept(label=label))

    return ()
