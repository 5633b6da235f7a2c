"""The words of each text in reverse order, in one answer."""

import triton_python_backend_utils as pb_utils
from gourmet.systems.echo.contract import MAX_TOKENS, outputs, pieces


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(answer(request)) for request in requests]


def answer(request):
    text, tokens = inputs(request)
    words = pieces(text, tokens)
    return [pb_utils.Tensor(name, value) for name, value in outputs("".join(words), len(words)).items()]


def inputs(request):
    """The text of a request and how many words its answer may have."""
    text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
    tokens = pb_utils.get_input_tensor_by_name(request, "max_tokens")
    return text, int(tokens.as_numpy()[0]) if tokens else MAX_TOKENS
