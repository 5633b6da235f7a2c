"""The requests and answers of /api/v1 as types, from which openapi.py makes the API's document.

The docstring of a field is its description there.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

Milliseconds = Annotated[
    float, AfterValidator(partial(round, ndigits=2)), WithJsonSchema({"type": "number", "minimum": 0})
]
# Documented and not checked: a probability in 32 bits may be a little above 1.
Probability = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
Count = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
Base64 = Annotated[str, WithJsonSchema({"type": "string", "format": "byte", "contentEncoding": "base64"})]
# In JSON Schema, 2.0 is an integer too.
Whole = Annotated[
    int, BeforeValidator(lambda it: int(it) if isinstance(it, float) and it.is_integer() else it)
]


def either(name: str, other: str, **with_name: Any) -> dict[str, Any]:
    """Return the rule that one of two fields is sent; `with_name` are rules for others beside `name`."""
    sent = {key: {"required": [key], "properties": {key: {"not": {"type": "null"}}}} for key in (name, other)}
    return {
        "if": sent[name],
        "then": {"properties": {other: {"type": "null"}, **with_name}},
        "else": sent[other],
    }


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    # The name of a server-sent event that carries this shape.
    event: ClassVar[str] = "done"

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Problem(Schema):
    """What went wrong: a code for programs, a message for people, and the request's id in the log."""

    code: str
    message: str
    request_id: str


class Error(Schema):
    """The whole request failed."""

    event: ClassVar[str] = "error"
    error: Problem


class Guess(Schema):
    label: str
    probability: Probability


class DishGuess(Schema):
    dish: str
    probability: Probability


class ModelName(Schema):
    name: str
    version: str


class Timings(Schema):
    """Milliseconds, each measured by the app. The rest of `total` is the app's own work."""

    receive: Milliseconds
    """Reading the request's body."""
    wait: Milliseconds | None = None
    """In the app's queue, or behind other photos of the same request; only if there was a wait."""
    decode: Milliseconds
    """Checking the photo, and decoding it where the model takes pixels or a tensor."""
    preprocess: Milliseconds | None = None
    """From pixels to the model's tensor; only where the model takes one."""
    triton: Milliseconds
    """The round trip to Triton with its queue and the model."""
    total: Milliseconds
    """From the end of the request's headers to this photo's answer."""


class Verdict(Schema):
    """What is said of an answer, with the same words and figure on the page and in all tables."""

    state: Literal["sure", "not_sure", "doubtful", "irrelevant"]
    sign: Annotated[str, Field(examples=["✓"])]
    colour: Annotated[str, Field(examples=["green"])]
    word: Annotated[str, Field(examples=["sure"])]
    """The state in words."""
    text: Annotated[str, Field(examples=["Green soup"])]
    """The dish, the class, two classes, or that the photo may show something else."""
    kind: Annotated[str, Field(examples=["Soup"])]
    """The class or classes of the dish in `text`; else empty."""
    hint: str
    """What else to know, such as two dishes that it may be; or empty."""
    probability: Probability | None = None
    """Of the class, or of the likelier one of two; absent if no class is said."""


class Predicted(Schema):
    """The answer for one photo, with the probability of the system's subject, such as `"food": 0.97`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Probability]

    label: Annotated[str, Field(examples=["Dessert"])]
    probability: Probability
    """Calibrated on photos like those that the model was measured on."""
    sure: bool
    """True if the probability reaches the model's threshold and the photo shows the system's subject."""
    verdict: Verdict
    calibrated: bool | None = None
    """False if the threshold of the model was not measured: `sure` is then false. Absent otherwise."""
    relevant: bool | None = None
    """False if the photo does not show the system's subject, such as food; absent if no model can tell."""
    doubtful: bool | None = None
    """True if the photo may not show the system's subject."""
    candidates: list[Guess] | None = None
    """Two labels that share most of the probability, if the model is not sure of one."""
    dish: Annotated[str, Field(examples=["Samosa"])] | None = None
    """The dish, if it is likely: nine of ten such answers are right. Absent otherwise."""
    perhaps: list[str] | None = None
    """Two dishes that share most of the probability, if none is likely."""
    dishes: list[DishGuess] | None = None
    """The three likeliest dishes, best first, of a model that knows dishes."""
    top: list[Guess]
    """The five likeliest labels, best first."""
    labels: list[Guess] | None = None
    """Of systems with several labels a picture: those that reach the threshold, best first."""
    model: ModelName
    timings_ms: Timings
    request_id: str


class Kept(Schema):
    """The label of a photo that was kept to learn from."""

    label: str
    contradicted: Guess | None = None


class Inside(Schema):
    """Milliseconds inside Triton: the mean of the model's requests that ended during this one."""

    requests: int
    """How many requests the mean is of; 1 is this one alone."""
    queue: Milliseconds
    compute: Milliseconds
    """In the model, which may decode the photo."""


class Photo(Predicted):
    """The answer to one photo of a call."""

    filename: str | None = None
    """The photo's name in a form."""
    class_id: Count
    """The label's index in the model's labels."""
    threshold: float
    """An answer below it is a guess."""
    bytes_sent: Count
    """Bytes of the tensor that Triton received."""
    inside: Inside | None = None


class Classified(Photo):
    """What one photo of a request shows."""

    probabilities: dict[str, Probability] | None = None
    """Of every label; only with `probabilities=all`."""


class Failed(Schema):
    """The error of one photo; the other photos of the call keep their results."""

    filename: str | None = None
    error: Problem


class Results(Schema):
    """One result for each photo, in the order of the request."""

    results: list[Classified | Failed]


class AllFailed(Schema):
    """No photo of the request has an answer."""

    results: list[Failed]


class Progress(Schema):
    """A line that reports the progress of a heat map."""

    kind: Literal["progress"] = "progress"
    done: Count
    """Questions that the model has answered."""
    total: Count
    """All questions."""


class HeatMap(Schema):
    """A line with the regions of the upright photo's central square that matter.

    Only that square reaches the model.
    """

    kind: Literal["map"] = "map"
    final: bool
    """True if no finer map follows."""
    label: str
    class_id: Count
    probability: Probability
    """Of the label, for the whole photo."""
    grid: int
    """Cells a side."""
    cover: Probability
    """The share of the square's side that is covered around the middle of a cell."""
    falls: list[list[float]]
    """By row from the top: how much the probability falls when the cell is covered. Below zero, it rises."""
    model: ModelName
    request_id: str


class TensorInput(Schema):
    name: str
    datatype: Literal["BYTES", "UINT8", "FP32", "FP16"]
    shape: list[int]
    """As Triton reports it; −1 is the batch."""


class Coverage(Schema):
    """Shares answered and right on held-out pictures, if answers of at least `threshold` count as sure."""

    threshold: float
    answered: Probability
    """The share of pictures with a sure answer."""
    right: Probability
    """The share of those answers that is right."""


class PictureModel(Schema):
    """A model that is ready and gives a picture one label."""

    name: str
    version: str
    system: str
    labels: list[str]
    """In the order of `class_id`."""
    input: TensorInput
    threshold: float
    coverage: list[Coverage] | None = None
    """What other thresholds would do; absent where nobody measured it."""
    bytes_kind: Literal["photo", "pixels", "tensor"]
    """What the app sends: the photo as it came, its pixels, or the normalised tensor."""


class Models(Schema):
    """The models that a request may choose."""

    default: str
    """The model that answers unless another is named; it may not be ready."""
    models: list[PictureModel]


class HealthModel(Schema):
    name: str
    version: str | None = None
    """Only when ready."""
    instead_of: str | None = None
    """A newer version that Triton could not load."""


class Health(Schema):
    """Whether a photo would be answered now. /readyz is for probes."""

    alive: Literal[True]
    ready: bool
    state: Literal["ready", "starting", "loading", "not_ready", "away"]
    """ready: the model has answered its sample. loading: Triton is loading the model. not_ready: Triton runs
    without the model, or does not report that it is loading. starting: the app started a short while ago and
    has not reached Triton yet. away: anything else; `message` says what."""
    code: str | None = None
    """The code of the error that a photo would get."""
    message: str
    model: HealthModel


class Chosen(Schema):
    """Every request may choose a model; many clients send null for what they leave out."""

    model: str | None = None
    """As the parameter `model`."""
    version: str | None = None
    """As the parameter `version`."""


class Base64Photos(Chosen):
    """Photos as text, for clients that send JSON only."""

    images: list[Base64] = Field(min_length=1)
    """Photos as base64 texts or data: URLs."""

    @model_validator(mode="before")
    @classmethod
    def one(cls, body: Any) -> Any:
        """Accept a single `image` too."""
        if isinstance(body, dict) and "url" in body and not {"image", "images"} & body.keys():
            raise ValueError("addresses are not fetched: send the photo itself")
        if isinstance(body, dict) and "image" in body and "images" not in body:
            return {
                **{name: value for name, value in body.items() if name != "image"},
                "images": [body["image"]],
            }
        return body


class Base64Photo(Base64Photos):
    """One photo as text."""

    images: list[Base64] = Field(min_length=1, max_length=1)


class GenerateRequest(Chosen):
    """A text or a picture, whichever the model takes."""

    model_config = ConfigDict(json_schema_extra=either("picture", "text"))

    text: str | None = Field(default=None, min_length=1, max_length=20_000)
    picture: Annotated[Base64, Field(min_length=1)] | None = None
    """A picture as base64 text or data: URL."""
    stream: bool = False
    """True for the answer in pieces."""
    options: dict[str, Whole | str] = Field(default_factory=dict, examples=[{"max_tokens": 99}])
    """Further inputs of the model: numbers and texts."""

    @model_validator(mode="after")
    def _one_of_them(self) -> GenerateRequest:
        if (self.text is None) == (self.picture is None):
            raise ValueError("send either text or picture")
        return self


class GenerationTimings(Schema):
    """Milliseconds, each measured by the app."""

    receive: Milliseconds
    """Reading the request's body."""
    wait: Milliseconds | None = None
    """In the app's queue; only if there was a wait."""
    decode: Milliseconds | None = None
    """Checking a picture; the model decodes it."""
    first_piece: Milliseconds | None = None
    """From asking Triton to the first piece of a streamed answer."""
    triton: Milliseconds
    """From asking Triton to the end of its answer."""
    total: Milliseconds
    """From the end of the request's headers to the end of the answer."""


class Sentence(Schema):
    """A sentence of an answer of several."""

    text: str
    score: float
    """As the answer's."""
    sure: bool | None = None
    """True if the score reaches the model's threshold."""


class TextAnswer(Schema):
    """A generated text, and how far it can be relied on."""

    text: str
    tokens: Count | None = None
    """If the model reports them."""
    score: float | None = None
    """The mean logarithm of the probability of a token, if the model reports it."""
    sure: bool | None = None
    """True if every sentence's score reaches the model's threshold and there is no `warning`; absent if the
    model has no threshold."""
    sentences: list[Sentence] | None = None
    """Of a text of several sentences, if the model tells them apart."""
    warning: str | None = None
    """What is doubtful about the answer: a text in another language, or a number that the answer does not
    repeat."""


class Generated(TextAnswer):
    """The whole answer; of a streamed one, the last part."""

    model: ModelName
    timings_ms: GenerationTimings
    request_id: str


class Piece(Schema):
    """A part of a streamed answer. All texts joined are the whole."""

    event: ClassVar[str] = "piece"
    text: str
