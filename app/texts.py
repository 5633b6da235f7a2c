"""Every word that the server's pages say, in one place: to translate them, translate this module.

Templates write `t('id')`, or `t('id', name=value)` where the text has a `{name}`. What a text and its
values hold is shown as text; a text whose id ends in `_html` may hold markup, its values still not.
"""

from __future__ import annotations

from typing import Final

from flask import Flask
from markupsafe import Markup

LANGUAGE: Final = "en"

TEXTS: Final[dict[str, str]] = {
    "site.name": "GourmetGram",
    "site.description": "Tells what food is on a photo.",
    "site.skip": "Skip to the content",
    "site.private": "Photos are looked at in memory and not kept on the server.",
    "nav.label": "Pages",
    "nav.food": "Food",
    "nav.compare": "Compare",
    "nav.digits": "Digits",
    "nav.api": "API",
    "food.title": "GourmetGram: what is on the plate?",
    "food.heading": "What is on the plate?",
    "food.lede": "Give it photos of food. Each gets a card with the answer, how sure it is, and where the "
    "milliseconds went.",
    "food.kinds": "It tells {count} kinds of food apart",
    "food.kinds_note": "Anything else is answered with the likeliest of them, and mostly with “not sure”.",
    "compare.title": "Compare models – GourmetGram",
    "compare.heading": "The same photo, every model",
    "compare.lede": "Each model that Triton has ready answers the photo, one after another: do they agree, "
    "and what does each cost?",
    "compare.ready": "Models that answer",
    "compare.note": "They take the photo as it is, its pixels, or a tensor made of it; the app sends each "
    "what it takes.",
    "ask.label": "Photos",
    "ask.choose": "Choose photos",
    "ask.choose_one": "Choose a photo",
    "ask.ways": "or drop them here, or paste one.",
    "ask.formats": "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF, up to {mb} MB each",
    "ask.camera": "Take a photo",
    "ask.model": "Answered by",
    "ask.send": "Tell me",
    "ask.samples": "No photo at hand? Try a drawing",
    "ask.sample": "Try the sample, a drawing of fried eggs",
    "ask.answered_by": "The deployment’s model is",
    "dish.eggs": "Eggs",
    "dish.soup": "Soup",
    "dish.rice": "Rice",
    "dish.noodles": "Noodles",
    "dish.bread": "Bread",
    "dish.fruit": "Fruit",
    "digits.title": "Draw a digit – GourmetGram",
    "digits.heading": "Draw a digit",
    "digits.lede": "With a mouse, a finger or a pen. While you draw, the model says again and again which "
    "digit it takes it for.",
    "digits.drawing": "Drawing",
    "digits.board": "A board to draw on. Without a mouse, a finger or a pen, choose one of the drawn digits.",
    "digits.here": "Draw here",
    "digits.wipe": "Clear",
    "digits.drawn": "Drawn already, to try",
    "digits.drawn_one": "A drawn {digit}",
    "digits.answer": "Answer",
    "digits.bars": "How likely each digit is",
    "digits.file": "A picture of one digit",
    "digits.file_hint": "Drawn or photographed, light on dark or dark on light.",
    "digits.send": "Read it",
    "digits.another": "Another digit",
    "digits.away": "Digits cannot be read at the moment.",
    "digits.answered_by": "The deployment’s model for digits is",
    "digits.private": "Drawings are looked at in memory and not kept on the server.",
    "digits.state_again": "You can draw all the same: it is read by itself once the model is there.",
    "answers.title": "Answers",
    "answers.clear": "Clear all",
    "history.title": "Asked before",
    "history.note": "Kept in this browser only, the last sixty with a small picture each. Nothing is stored "
    "on the server.",
    "history.json": "Save as JSON",
    "history.csv": "Save as CSV",
    "history.clear": "Forget all",
    "result.another": "Ask about another photo",
    "result.in_all": "in all",
    # The page's scripts are given those that begin with js.
    "js.pasted": "pasted photo",
    "js.waiting": "Waiting for its turn …",
    "js.preparing": "Making it smaller …",
    "js.asking": "Asking …",
    "js.comparing": "Asking {count} models, one after another …",
    "js.held": "The classifier is away. This photo is sent again by itself as soon as it is back.",
    "js.cancelled": "Cancelled",
    "js.cancelled_hint": "Nothing more is done about this photo until you ask again.",
    "js.cleared": "All answers are cleared",
    "js.history_cleared": "All is forgotten",
    "js.do_cancel": "Cancel",
    "js.do_again": "Ask again",
    "js.do_remove": "Remove",
    "js.do_compare": "Compare",
    "js.perhaps": "{label}?",
    "js.unsure": "Not sure: this is the likeliest kind, but below the {threshold} that this model needs to "
    "be sure. A closer photo of one dish may help.",
    "js.unsure_short": "Not sure (needs {threshold})",
    "js.sure": "Sure",
    "js.spoken": "{file}: {label}, {share}",
    "js.spoken_unsure": "{file}: not sure, perhaps {label}, {share}",
    "js.by": "Answered by",
    "js.version": "version {version}",
    "js.sent": "{size} sent as it is",
    "js.shrunk": "made smaller here, {from} → {to}",
    "js.request": "Request",
    "js.default": "default",
    "js.model_default": "{name} (default)",
    "js.time_all": "{time} from the browser and back",
    "js.time_note": "Upload is what the network took on top of the server’s own time. Triton stands for "
    "sending, its queue, the model and its answer; where a model takes the photo itself, it decodes it "
    "there.",
    "js.phase_shrink": "Make smaller",
    "js.phase_connect": "Connect",
    "js.phase_upload": "Upload",
    "js.phase_receive": "Receive",
    "js.phase_wait": "Wait",
    "js.phase_decode": "Decode",
    "js.phase_preprocess": "Preprocess",
    "js.phase_triton": "Triton",
    "js.phase_answer": "Answer",
    "js.fact_time": "Time in the app",
    "js.fact_triton": "Of it Triton",
    "js.fact_bytes": "Sent to Triton",
    "js.fact_kind": "As",
    "js.fact_version": "Version",
    "js.kind_photo": "photo",
    "js.kind_pixels": "pixels",
    "js.kind_tensor": "tensor",
    "js.agree_all": "All {count} models agree: {label}",
    "js.agree_most": "{most} of {count} models say {label}",
    "js.agree_split": "Every model says something else",
    "js.agree_one": "One model answered: {label}",
    "js.agree_none": "No model could answer",
    "js.agree_missing": "({count} could not answer)",
    "js.do_why": "Why this answer?",
    "js.why_title": "Why “{label}”?",
    "js.why_wait": "Another picture is being looked into; this one is next …",
    "js.why_doing": "Region after region is covered and the model asked again: {done} of {total}",
    "js.why_started": "Looking for what mattered …",
    "js.why_most": "The {where} mattered most: with the marked part of it covered, {label} falls from "
    "{from} to {to}.",
    "js.why_none": "No single region decides it: whichever is covered, {label} loses less than {points} "
    "points of its {from}.",
    "js.why_against": "With a part of the {where} covered it rises to {to}: what is there speaks against it.",
    "js.why_square": "The model sees the square in the middle only.",
    "js.why_coarse": "This is the coarse map: the finer one could not be made ({reason}).",
    "js.why_no_time": "This is the coarse map: there was no time for the finer one.",
    "js.why_strength": "Strength of the colours",
    "js.why_nothing": "no effect",
    "js.why_points": "−{points} points",
    "js.why_numbers": "In numbers",
    "js.why_caption": "Points that {label} loses on average when a region is covered",
    "js.why_by": "{name} version {version} was asked {count} times in {time}",
    "js.why_cancelled": "Cancelled: ask again whenever you like.",
    "js.where_0": "upper left",
    "js.where_1": "top",
    "js.where_2": "upper right",
    "js.where_3": "left",
    "js.where_4": "centre",
    "js.where_5": "right",
    "js.where_6": "lower left",
    "js.where_7": "bottom",
    "js.where_8": "lower right",
    "js.digit_none": "Nothing is drawn yet",
    "js.digit_unsure": "Not sure: this is the likeliest digit, but below the {threshold} that this model "
    "needs to be sure. One large digit in the middle is read best.",
    "js.digit_spoken": "{label}, {share}",
    "js.digit_spoken_unsure": "Not sure, perhaps {label}, {share}",
    "js.digit_time": "{time} from the browser and back, {triton} of it in Triton",
    "js.digit_wiped": "The board is clear",
    "js.too_large": "The photo is larger than is taken here, even when it is made smaller: save it as JPEG, "
    "or cut it.",
    "js.unreachable": "The web app could not be reached. Is the network there? Then ask again.",
    "js.unexpected": "This browser could not do it ({reason}). Load the page again; if that does not help, "
    "try another browser.",
    "js.title_not_a_picture": "Not a photo",
    "js.title_empty": "Nothing in this file",
    "js.title_broken_picture": "The photo is damaged",
    "js.title_unsupported_format": "A format that is not read here",
    "js.title_upload_too_large": "Too large",
    "js.title_too_many_pixels": "Too many pixels",
    "js.title_unreachable": "No answer",
    "js.title_triton_unavailable": "The classifier is away",
    "js.title_triton_too_slow": "That took too long",
    "js.title_model_not_ready": "The model is not ready",
    "js.title_unknown_model": "This model is no longer served",
    "js.title_too_many_requests": "One moment",
    "js.title_other": "That did not work",
    "js.state_starting": "The classifier is starting.",
    "js.state_loading": "The classifier is loading its model.",
    "js.state_not_ready": "The classifier runs, but its model is not ready: it may still be loading.",
    "js.state_away": "The classifier is away.",
    "js.state_unreachable": "The web app cannot be reached.",
    "js.state_again": "Photos can be chosen all the same: they are sent by themselves once it is back.",
    "js.state_back": "The classifier is back.",
    "api.title": "API",
    "api.document": "The same for programs, as OpenAPI 3.1:",
    "api.examples": "Examples",
    "api.example": "{what}: an example in {language}",
    "api.sample_answer": "An answer",
    "api.limits": "Limits and refusals",
    "api.sizes": "A call may have up to {photos} photos of up to {photo_mb} MB each, {call_mb} MB in all.",
    "api.keys": "A key is needed: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`.",
    "api.rate": "A client may send {requests} photos or other requests in {seconds} s; the header "
    "`RateLimit` tells what is left of them. Beyond that the answer is 429, with `Retry-After`.",
    "api.errors": "What is refused as a whole is answered by an `Error` with the status of its kind. Of "
    "several photos in one call, each that fails has its own error and the status stays 200, unless the "
    "server is to blame for every one; a single photo has the status of its own error.",
    "api.addresses": "Addresses",
    "api.request": "Request",
    "api.optional": "optional",
    "api.answers": "Answers",
    "api.shapes": "Shapes",
}


def t(text_id: str, **values: object) -> str:
    """The text of that id with its values put in; an id that is not there is a KeyError, not a blank."""
    text = TEXTS[text_id]
    if text_id.endswith("_html"):
        return Markup(text).format(**values)  # noqa: S704 - of our own texts
    return text.format(**values) if values else text


def init_app(app: Flask) -> None:
    app.jinja_env.globals.update(t=t, language=LANGUAGE)
