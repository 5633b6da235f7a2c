"""What goes over the wire of /api/v1, as types: answers are built from them and documented by them.

What their fields say is in app/texts.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

Probability = Annotated[float, Field(ge=0, le=1)]
Milliseconds = Annotated[float, Field(ge=0), AfterValidator(partial(round, ndigits=2))]
# Left out where there is none, and never null.
Maybe = SkipJsonSchema[None]
# As JSON Schema has it, 2.0 is one too.
Whole = Annotated[
    int, BeforeValidator(lambda it: int(it) if isinstance(it, float) and it.is_integer() else it)
]
Base64 = Annotated[str, Field(json_schema_extra={"contentEncoding": "base64", "format": "byte"})]


def exactly_one(one: str, other: str, then: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """In JSON Schema, that one of two fields is given and the other is not; what else holds with `one`.

    Not as `oneOf`, of which generated clients make two shapes without any field.
    """
    null = {"type": "null"}
    return {
        "if": {"required": [one], "properties": {one: {"not": null}}},
        "then": {"properties": {other: null, **(then or {})}},
        "else": {"required": [other], "properties": {other: {"not": null}}},
    }


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    # What a part of a streamed answer is called that has this shape.
    event: ClassVar[str] = "done"

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Problem(Schema):
    """What went wrong: a code for programs, words for people, and the id under which the log knows it."""

    code: str = Field(examples=["broken_picture"])
    message: str = Field(examples=["the file is empty: choose a photo"])
    request_id: str


class Error(Schema):
    """A request that failed as a whole."""

    event: ClassVar[str] = "error"
    error: Problem


class Guess(Schema):
    label: str
    probability: Probability


class ModelName(Schema):
    name: str
    version: str = Field(examples=["1"])


class Timings(Schema):
    """Milliseconds, each measured by the app and none of them estimated.

    What is left of `total` after the others is the app's own work between them.
    """

    receive: Milliseconds
    wait: Milliseconds | Maybe = None
    decode: Milliseconds
    preprocess: Milliseconds | Maybe = None
    triton: Milliseconds
    total: Milliseconds


class Predicted(Schema):
    """What one photo shows.

    Where the model tells how likely the photo shows what its system is about, that stands here too, under the
    name of the subject: `"food": 0.97`. `relevant` is false for a photo that does not look like it, and
    `doubtful` is true for one that may not. `candidates` are two labels that share most of the probability,
    where the model is not sure of one.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Probability]

    label: str = Field(examples=["Dessert"])
    probability: Probability
    sure: bool
    relevant: bool | Maybe = None
    doubtful: bool | Maybe = None
    candidates: list[Guess] | Maybe = None
    top: list[Guess]
    labels: list[Guess] | Maybe = None
    model: ModelName
    timings_ms: Timings
    request_id: str


class Kept(Schema):
    """A photo that is kept to learn from, and what it is said to show."""

    label: str


class Inside(Schema):
    """Milliseconds inside Triton: the mean of the model's requests that ended while this was under way."""

    requests: int = Field(ge=1)
    queue: Milliseconds
    compute: Milliseconds


class Photo(Predicted):
    """The answer to one photo of a call."""

    filename: str | Maybe = None
    class_id: int = Field(ge=0)
    threshold: float
    bytes_sent: int = Field(ge=0)
    inside: Inside | Maybe = None


class Classified(Photo):
    """What one photo of a call shows."""

    probabilities: dict[str, Probability] | Maybe = None


class Failed(Schema):
    """Why one photo has no answer; the others of the call have theirs."""

    filename: str | Maybe = None
    error: Problem


class Results(Schema):
    """One result for each photo, in the order in which they were sent."""

    results: list[Classified | Failed]


class Progress(Schema):
    """A line of the answer that says how far a heat map has come."""

    kind: Literal["progress"] = "progress"
    done: int = Field(ge=0)
    total: int = Field(ge=1)


class HeatMap(Schema):
    """A line of the answer that says on which regions of the upright photo's central square it rests.

    Only that square reaches the model. The grid has as many rows as columns.
    """

    kind: Literal["map"] = "map"
    final: bool
    label: str
    class_id: int = Field(ge=0)
    probability: Probability
    grid: int = Field(ge=1, examples=[14])
    cover: Probability
    falls: list[list[float]]
    model: ModelName
    request_id: str


class TensorInput(Schema):
    name: str = Field(examples=["INPUT_IMAGE"])
    datatype: Literal["BYTES", "UINT8", "FP32", "FP16"]
    shape: list[int] = Field(examples=[[-1, 1]])


class PictureModel(Schema):
    """A model that Triton has ready and that gives a picture one label."""

    name: str
    version: str
    system: str
    labels: list[str]
    input: TensorInput
    threshold: float
    bytes_kind: Literal["photo", "pixels", "tensor"]


class Models(Schema):
    default: str
    models: list[PictureModel]


class HealthModel(Schema):
    """`instead_of` is a newer version that Triton could not load."""

    name: str
    version: str | Maybe = None
    instead_of: str | Maybe = None


class Health(Schema):
    """Whether a photo would be answered now. The status is 200 whatever the state; /readyz is for probes."""

    alive: Literal[True]
    ready: bool
    state: Literal["ready", "starting", "loading", "not_ready", "away"]
    code: str | Maybe = None
    message: str
    model: HealthModel


class Chosen(Schema):
    """What every request may say besides; many clients send null for what they leave out."""

    model: str | None = None
    version: str | None = None


class Base64Photos(Chosen):
    """Photos as text, for clients that speak JSON only. A data: URL is taken too."""

    images: list[Base64] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def one(cls, given: Any) -> Any:
        """A single `image` is taken, too."""
        if isinstance(given, dict) and "image" in given and "images" not in given:
            return {
                **{name: value for name, value in given.items() if name != "image"},
                "images": [given["image"]],
            }
        return given


class Base64Photo(Base64Photos):
    """The same where one photo is taken."""

    images: list[Base64] = Field(min_length=1, max_length=1)


class ToGenerate(Chosen):
    """How an answer is to be made."""

    stream: bool = False
    options: dict[str, Whole | str] = Field(default_factory=dict, examples=[{"max_tokens": 99}])


class TextRequest(ToGenerate):
    """A text to answer."""

    picture: ClassVar[None] = None

    text: str = Field(min_length=1, max_length=20_000)


class GenerateRequest(ToGenerate):
    """A text or a picture to answer, whichever the model takes."""

    model_config = ConfigDict(json_schema_extra=exactly_one("picture", "text"))

    text: str | None = Field(default=None, min_length=1, max_length=20_000)
    picture: Base64 | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_of_them(self) -> GenerateRequest:
        if (self.text is None) == (self.picture is None):
            raise ValueError("send either text or picture")
        return self


class GenerationTimings(Schema):
    """Milliseconds, each measured by the app and none of them estimated."""

    receive: Milliseconds
    wait: Milliseconds | Maybe = None
    decode: Milliseconds | Maybe = None
    first_piece: Milliseconds | Maybe = None
    triton: Milliseconds
    total: Milliseconds


class Piece(Schema):
    """A part of a streamed answer; all texts joined are the whole."""

    event: ClassVar[str] = "piece"
    text: str
