"""What goes over the wire of /api/v1, as types: answers are built from them and documented by them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

Probability = Annotated[float, Field(ge=0, le=1)]
Milliseconds = Annotated[float, Field(ge=0)]
# Left out where there is none, and never null.
Maybe = SkipJsonSchema[None]


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

    receive: Milliseconds = Field(description="Reading the request's body, until its last byte was here")
    wait: Milliseconds | Maybe = Field(
        default=None,
        description="Only where there was a wait: for its turn where much is asked at a time, and of "
        "several photos behind others of the call",
    )
    decode: Milliseconds = Field(
        description="Checking the photo; and where the model takes pixels or tensors, decoding it"
    )
    preprocess: Milliseconds | Maybe = Field(
        default=None, description="Only where the model takes pixels or tensors: from pixels to its tensor"
    )
    triton: Milliseconds = Field(
        description="The round trip to Triton: sending, its queue, the model (which decodes where it takes "
        "the photo itself) and the answer. What of it was inside Triton stands in `inside`, where asked for."
    )
    total: Milliseconds = Field(description="From the end of the request's headers until this photo's answer")


class Predicted(Schema):
    """What one photo shows."""

    label: str = Field(examples=["Dessert"])
    probability: Probability = Field(
        description="Calibrated, as far as photos resemble those that the model was measured on"
    )
    sure: bool = Field(description="Whether the probability reaches the model's threshold")
    top: list[Guess] = Field(description="The five likeliest labels, best first")
    model: ModelName
    timings_ms: Timings
    request_id: str


class Inside(Schema):
    """Milliseconds inside Triton: the mean of the model's requests that ended while this was under way."""

    requests: int = Field(ge=1, description="How many those were; 1: this one alone")
    queue: Milliseconds
    compute: Milliseconds = Field(description="With the model, which decodes where it takes the photo itself")


class Photo(Predicted):
    """What is told of a photo of a call."""

    filename: str | Maybe = Field(default=None, description="The photo's name in a multipart form")
    class_id: int = Field(ge=0, description="The label's place in the model's list of labels")
    threshold: float = Field(description="Below it, the model's answer should be shown as a guess")
    bytes_sent: int = Field(ge=0, description="The bytes of the tensor that went to Triton")
    inside: Inside | Maybe = Field(default=None, description="Only where it was asked for and Triton told it")


class Classified(Photo):
    """What one photo of a call shows."""

    probabilities: dict[str, Probability] | Maybe = Field(
        default=None, description="Of every label, only where it was asked for"
    )


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
    done: int = Field(ge=0, description="Questions that the model has answered")
    total: int = Field(ge=1, description="Questions there are in all")


class HeatMap(Schema):
    """A line of the answer that says on which regions of the upright photo's central square it rests.

    Only that square reaches the model. The grid has as many rows as columns.
    """

    kind: Literal["map"] = "map"
    final: bool = Field(description="Whether no finer map follows")
    label: str
    class_id: int = Field(ge=0)
    probability: Probability = Field(description="Of the label, for the whole photo")
    grid: int = Field(ge=1, description="Cells a side", examples=[14])
    cover: Probability = Field(description="What of the square's side was covered around a cell's middle")
    falls: list[list[float]] = Field(
        description="Row by row from the top, by how much the probability falls when the cell and what is "
        "around it is covered; below zero where it rises"
    )
    model: ModelName
    request_id: str


class TensorInput(Schema):
    name: str = Field(examples=["INPUT_IMAGE"])
    datatype: Literal["BYTES", "UINT8", "FP32"]
    shape: list[int] = Field(description="As Triton tells it; −1 is the batch", examples=[[-1, 1]])


class PictureModel(Schema):
    """A model that Triton has ready and that gives a picture one label."""

    name: str
    version: str
    system: str = Field(description="The system that it belongs to")
    labels: list[str] = Field(description="What it tells apart, in the order of `class_id`")
    input: TensorInput
    threshold: float
    bytes_kind: Literal["photo", "pixels", "tensor"] = Field(
        description="What the app sends to it: the photo as it came, its pixels, or the normalised tensor"
    )


class Models(Schema):
    default: str = Field(description="The model that answers where none is named; it may not be ready")
    models: list[PictureModel]


class HealthModel(Schema):
    name: str
    version: str | Maybe = Field(default=None, description="Only when ready")


class Health(Schema):
    """Whether a photo would be answered now. The status is 200 whatever the state; /readyz is for probes."""

    alive: Literal[True]
    ready: bool
    state: Literal["ready", "starting", "loading", "not_ready", "away"] = Field(
        description="ready: the model has just answered its sample. loading: Triton is loading the model. "
        "not_ready: Triton runs and does not have the model ready; where its list of models is locked, it "
        "may be loading it all the same. "
        "starting: Triton has not been seen since this app started a short while ago, and is probably "
        "loading its models. away: anything else, which the message names."
    )
    code: str | Maybe = Field(default=None, description="The code of the error that a photo would get")
    message: str
    model: HealthModel


class Base64Photos(Schema):
    """Photos as text, for clients that speak JSON only. A data: URL is taken too."""

    images: list[str] = Field(min_length=1, description="Each the base64 text of a photo")
    model: str | Maybe = Field(default=None, description="As the parameter of that name")


class TextRequest(Schema):
    """A text to answer."""

    text: str = Field(min_length=1, max_length=20_000)
    stream: bool = Field(default=False, description="Whether the answer comes in pieces, as they are made")
    model: str | Maybe = Field(default=None, description="As the parameter of that name")
    options: dict[str, int] = Field(
        default_factory=dict,
        description="What the model takes beside the text",
        examples=[{"max_tokens": 99}],
    )


class GenerationTimings(Schema):
    """Milliseconds, each measured by the app and none of them estimated."""

    receive: Milliseconds = Field(description="Reading the request's body, until its last byte was here")
    wait: Milliseconds | Maybe = Field(default=None, description="Only where it waited for its turn")
    first_piece: Milliseconds | Maybe = Field(
        default=None, description="Only of a streamed answer: from asking Triton to the first piece"
    )
    triton: Milliseconds = Field(description="From asking Triton to the end of its answer")
    total: Milliseconds = Field(description="From the end of the request's headers until the answer's end")


class Piece(Schema):
    """A part of a streamed answer; all texts joined are the whole."""

    event: ClassVar[str] = "piece"
    text: str


class Generated(Schema):
    """The whole answer to a text; of a streamed one, the last part."""

    text: str
    tokens: int | Maybe = Field(default=None, ge=0, description="Only where the model tells them")
    score: float | Maybe = Field(default=None, description="Only where the model tells it")
    model: ModelName
    timings_ms: GenerationTimings
    request_id: str
