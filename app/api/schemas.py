"""The requests and answers of /api/v1 as types. openapi.json describes them; a test compares the two."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Milliseconds = Annotated[float, AfterValidator(partial(round, ndigits=2))]
# In JSON Schema, 2.0 is an integer too.
Whole = Annotated[
    int, BeforeValidator(lambda it: int(it) if isinstance(it, float) and it.is_integer() else it)
]


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    # The name of a server-sent event that carries this shape.
    event: ClassVar[str] = "done"

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Problem(Schema):
    code: str
    message: str
    request_id: str


class Error(Schema):
    event: ClassVar[str] = "error"
    error: Problem


class Guess(Schema):
    label: str
    probability: float


class DishGuess(Schema):
    dish: str
    probability: float


class ModelName(Schema):
    name: str
    version: str


class Timings(Schema):
    receive: Milliseconds
    wait: Milliseconds | None = None
    decode: Milliseconds
    preprocess: Milliseconds | None = None
    triton: Milliseconds
    total: Milliseconds


class Verdict(Schema):
    """What is said of an answer: the same words and figure on the page and in every table."""

    state: Literal["sure", "not_sure", "doubtful", "irrelevant"]
    sign: str
    colour: str
    word: str
    text: str
    kind: str
    hint: str
    probability: float | None = None


class Predicted(Schema):
    """The answer for one photo, with the probability of the system's subject, such as `"food": 0.97`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float]

    label: str
    probability: float
    sure: bool
    verdict: Verdict
    calibrated: bool | None = None
    relevant: bool | None = None
    doubtful: bool | None = None
    candidates: list[Guess] | None = None
    dish: str | None = None
    perhaps: list[str] | None = None
    dishes: list[DishGuess] | None = None
    top: list[Guess]
    labels: list[Guess] | None = None
    model: ModelName
    timings_ms: Timings
    request_id: str


class Kept(Schema):
    label: str


class Inside(Schema):
    requests: int
    queue: Milliseconds
    compute: Milliseconds


class Photo(Predicted):
    """The answer to one photo of a call."""

    filename: str | None = None
    class_id: int
    threshold: float
    bytes_sent: int
    inside: Inside | None = None


class Classified(Photo):
    probabilities: dict[str, float] | None = None


class Failed(Schema):
    """The error of one photo; the other photos of the call keep their results."""

    filename: str | None = None
    error: Problem


class Results(Schema):
    results: list[Classified | Failed]


class Progress(Schema):
    kind: Literal["progress"] = "progress"
    done: int
    total: int


class HeatMap(Schema):
    kind: Literal["map"] = "map"
    final: bool
    label: str
    class_id: int
    probability: float
    grid: int
    cover: float
    falls: list[list[float]]
    model: ModelName
    request_id: str


class TensorInput(Schema):
    name: str
    datatype: Literal["BYTES", "UINT8", "FP32", "FP16"]
    shape: list[int]


class Coverage(Schema):
    """Shares answered and right on held-out pictures, if answers of at least `threshold` count as sure."""

    threshold: float
    answered: float
    right: float


class PictureModel(Schema):
    name: str
    version: str
    system: str
    labels: list[str]
    input: TensorInput
    threshold: float
    coverage: list[Coverage] | None = None
    bytes_kind: Literal["photo", "pixels", "tensor"]


class Models(Schema):
    default: str
    models: list[PictureModel]


class HealthModel(Schema):
    name: str
    version: str | None = None
    instead_of: str | None = None


class Health(Schema):
    alive: Literal[True]
    ready: bool
    state: Literal["ready", "starting", "loading", "not_ready", "away"]
    code: str | None = None
    message: str
    model: HealthModel


class Chosen(Schema):
    """Every request may choose a model; many clients send null for what they leave out."""

    model: str | None = None
    version: str | None = None


class Base64Photos(Chosen):
    images: list[str] = Field(min_length=1)

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


class GenerateRequest(Chosen):
    text: str | None = Field(default=None, min_length=1, max_length=20_000)
    picture: str | None = Field(default=None, min_length=1)
    stream: bool = False
    options: dict[str, Whole | str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_them(self) -> GenerateRequest:
        if (self.text is None) == (self.picture is None):
            raise ValueError("send either text or picture")
        return self


class GenerationTimings(Schema):
    receive: Milliseconds
    wait: Milliseconds | None = None
    decode: Milliseconds | None = None
    first_piece: Milliseconds | None = None
    triton: Milliseconds
    total: Milliseconds


class Sentence(Schema):
    text: str
    score: float
    sure: bool | None = None


class Said(Schema):
    """A generated text, and how far it can be relied on."""

    text: str
    tokens: int | None = None
    score: float | None = None
    sure: bool | None = None
    sentences: list[Sentence] | None = None
    warning: str | None = None


class Generated(Said):
    model: ModelName
    timings_ms: GenerationTimings
    request_id: str


class Piece(Schema):
    event: ClassVar[str] = "piece"
    text: str
