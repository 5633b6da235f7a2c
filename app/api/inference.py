"""The Open Inference Protocol (v2) for models of pictures: what tritonclient.http and KServe's client speak.

A model is open here if /api/v1/classify may ask it; any other is unknown. A request is read against the
model's own inputs and written again by our client, so Triton never gets bytes of a visitor but its tensors.
Nothing here changes a model, and shared memory, sequences and statistics are not offered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final

import numpy as np
from flask import Blueprint, Flask, Response, g, request
from pydantic import Field
from werkzeug.exceptions import UnsupportedMediaType

from app.api.schemas import Schema
from app.api.uploads import WRAPPING_BYTES, from_json, receiving
from app.models import Model
from app.services import NavigationEntry, Services
from app.web.admission import deadline_of_request
from app.web.errors import BadRequest, ServingError, refused_picture
from app.web.http import JSON, PROTOCOL, route_options
from app.web.rate_limit import count_photos
from gourmet.contracts import Array, TensorSpec
from gourmet.pictures.classifier import PictureClassifier
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import InvalidRequest
from gourmet.triton_client.tensors import JSON_LENGTH, datatype_of, dtype_of, raw

# A tensor of one photo as JSON has 150,528 numbers. Larger ones have to be binary: a parser makes an object
# of each number before it counts them.
_MAX_COMMAS: Final = 200_000
_EXPECTED: Final = '{"inputs": [{"name": …, "shape": …, "datatype": …, "data": …}]}'


class _InputOptions(Schema):
    binary_data_size: int | None = Field(default=None, ge=0)


class _Input(Schema):
    name: str
    datatype: str
    shape: list[Annotated[int, Field(ge=0, le=1 << 31)]] = Field(max_length=8)
    parameters: _InputOptions = _InputOptions()
    data: list[Any] | None = None


class _OutputOptions(Schema):
    binary_data: bool | None = None


class _Output(Schema):
    name: str
    parameters: _OutputOptions = _OutputOptions()


class _RequestOptions(Schema):
    binary_data_output: bool = False


class _Request(Schema):
    id: str = Field(default="", max_length=256)
    model_name: str = ""  # KServe's client repeats it here; the address decides
    inputs: list[_Input] = Field(min_length=1, max_length=16)
    outputs: list[_Output] = Field(default=[], max_length=16)
    parameters: _RequestOptions = _RequestOptions()


def add_routes(app: Flask, services: Services) -> tuple[NavigationEntry, ...]:
    routes = Blueprint("inference", __name__, url_prefix=PROTOCOL.rstrip("/"))
    settings, classifier = services.settings, services.classifier
    model_path = "/models/<model>", "/models/<model>/versions/<version>"

    def find(model: str, version: str, deadline: Deadline) -> Model[PictureClassifier]:
        return classifier.find(f"{model}/{version}" if version else model, deadline)

    def found(model: str, version: str) -> Model[PictureClassifier]:
        return find(model, version, Deadline(settings.request_deadline_s))

    @routes.get("")
    @route_options(open=True)
    def server() -> dict[str, Any]:
        return {"name": "gourmetgram", "version": "2", "extensions": ["binary_tensor_data"]}

    @routes.get("/health/live")
    @route_options(open=True, probe=True)
    def live() -> dict[str, Any]:
        return {"live": True}

    @routes.get("/health/ready")
    @route_options(open=True, probe=True)
    def ready() -> dict[str, Any]:
        state = services.readiness[services.first_system].current_state()
        if isinstance(state, ServingError):
            raise state
        return {"ready": True}

    @routes.get(f"{model_path[0]}/ready", defaults={"version": ""})
    @routes.get(f"{model_path[1]}/ready")
    def model_ready(model: str, version: str) -> dict[str, Any]:
        return {"name": found(model, version).info.name, "ready": True}

    @routes.get(model_path[0], defaults={"version": ""})
    @routes.get(model_path[1])
    def metadata(model: str, version: str) -> dict[str, Any]:
        info = found(model, version).info

        def described(specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
            return [
                {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in specs
            ]

        return {
            "name": info.name,
            "versions": [info.version],
            "platform": "triton",
            "inputs": described(info.inputs),
            "outputs": described(info.outputs),
        }

    @routes.post(f"{model_path[0]}/infer", defaults={"version": ""})
    @routes.post(f"{model_path[1]}/infer")
    @route_options(admitted="photos")
    def infer(model: str, version: str) -> Response:
        sent, tensors = _receive(settings.max_call_bytes)
        deadline = deadline_of_request()
        served = find(model, version, deadline)
        g.model = served.info.name
        rows = max(next(iter(tensor.shape), 1) for tensor in sent.inputs) if served.info.max_batch_size else 1
        if rows > settings.max_photos:
            message = f"{rows} rows are too many for one call: send at most {settings.max_photos}"
            raise ServingError("too_many_photos", message)
        inputs = _inputs(sent, tensors, served)
        count_photos(rows)
        photos = list(inputs[served.info.inputs[0].name].flat) if served.bytes_kind == "photo" else []
        if any(len(photo) > settings.max_upload_bytes for photo in photos):
            message = f"a photo is larger than {settings.max_upload_mb:g} MB: send a smaller one"
            raise ServingError("upload_too_large", message)
        try:
            with classifier.decode_in_model(photos, deadline):
                reply = services.triton.infer(served.info.target, inputs, deadline)
        except InvalidRequest as exc:
            raise refused_picture(exc) or BadRequest(str(exc)) from exc
        return _response_of(sent, served.info.name, reply.model_version, reply.outputs)

    app.register_blueprint(routes)
    return ()


def _receive(max_bytes: int) -> tuple[_Request, bytes]:
    """Return the JSON of a request, and the binary tensors behind it."""
    if request.content_encoding:
        raise UnsupportedMediaType("send the request without compression")
    request.max_content_length = max_bytes + WRAPPING_BYTES
    with receiving(f"the request is too large: send at most {max_bytes // 1_000_000} MB"):
        body = request.get_data(cache=False)
    length = request.headers.get(JSON_LENGTH, len(body), type=int)
    if not 0 < length <= len(body):
        raise BadRequest(f"{JSON_LENGTH} is {length}, and the body has {len(body)} bytes")
    head = body[:length]
    if head.count(b",") > _MAX_COMMAS:
        raise ServingError("upload_too_large", "too many numbers as JSON: send the tensors as binary data")
    return from_json(_Request, head, _EXPECTED), body[length:]


def _inputs(sent: _Request, tensors: bytes, served: Model[PictureClassifier]) -> dict[str, Array]:
    """Return the tensors of a request by name; raise BadRequest unless they are what the model takes."""
    specs = {spec.name: spec for spec in served.info.inputs}
    names = sorted(tensor.name for tensor in sent.inputs)
    if names != sorted(specs):
        raise BadRequest(f"{served.info.name} takes {', '.join(specs)}, and these are {', '.join(names)}")
    inputs, at = {}, 0
    for tensor in sent.inputs:
        spec, size = specs[tensor.name], tensor.parameters.binary_data_size
        fits = len(tensor.shape) == len(spec.shape) and all(
            allowed in (-1, dimension) for allowed, dimension in zip(spec.shape, tensor.shape, strict=True)
        )
        if tensor.datatype != spec.datatype or not fits or 0 in tensor.shape:
            raise BadRequest(
                f"{spec.name} is {tensor.datatype} {tensor.shape}; "
                f"{served.info.name} takes {spec.datatype} {list(spec.shape)}"
            )
        try:
            if size is None:
                values = _of_json(tensor.data or [], spec.datatype)
            else:
                values = _of_bytes(tensors[at : at + size], spec.datatype, math.prod(tensor.shape))
                at += size
            inputs[spec.name] = values.reshape(tensor.shape)
        except (TypeError, ValueError, OverflowError) as exc:
            raise BadRequest(f"{spec.name} is not a tensor of shape {tensor.shape}: {exc}") from exc
    if at != len(tensors):
        raise BadRequest(f"the binary tensors have {len(tensors)} bytes, and the request describes {at}")
    return inputs


def _of_json(data: list[Any], datatype: str) -> Array:
    if datatype == "BYTES":
        return np.array([str(text).encode() for text in data], np.object_)
    given = np.array(data)
    values = given.astype(dtype_of(datatype))
    if values.dtype.kind in "iu" and (values != given).any():
        raise ValueError(f"a number is not of the type {datatype}")
    return values


def _of_bytes(data: bytes, datatype: str, count: int) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(data, dtype_of(datatype))
    if 4 * count > len(data):
        raise ValueError("it is too short")
    values, at = np.empty(count, np.object_), 0
    for index in range(count):
        begin = at + 4
        at = begin + int.from_bytes(data[at:begin], "little")
        values[index] = data[begin:at]
    if at != len(data):
        raise ValueError("the lengths of its strings do not add up")
    return values


def _response_of(sent: _Request, model: str, version: str, outputs: Mapping[str, Array]) -> Response:
    """Return the outputs that the request wants, each as JSON or as binary data."""
    default = sent.parameters.binary_data_output
    wanted = {output.name: output.parameters.binary_data for output in sent.outputs} or dict.fromkeys(outputs)
    if unknown := wanted.keys() - outputs.keys():
        raise BadRequest(f"{model} has no output {', '.join(sorted(unknown))}; it has {', '.join(outputs)}")
    described, tensors = [], list[bytes]()
    for name, binary in wanted.items():
        values = outputs[name]
        about: dict[str, Any] = {"name": name, "datatype": datatype_of(values), "shape": list(values.shape)}
        if default if binary is None else binary:
            tensors.append(raw(values))
            about["parameters"] = {"binary_data_size": len(tensors[-1])}
        else:
            about["data"] = [
                item.decode(errors="replace") if isinstance(item, bytes) else item
                for item in values.ravel().tolist()
            ]
        described.append(about)
    named = {"id": sent.id} if sent.id else {}
    head = json.dumps({"model_name": model, "model_version": version, **named, "outputs": described}).encode()
    response = Response(b"".join([head, *tensors]), content_type=JSON)
    if tensors:
        response.content_type = "application/octet-stream"
        response.headers[JSON_LENGTH] = str(len(head))
    response.headers["Cache-Control"] = "no-store"
    return response
