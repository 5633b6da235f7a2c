"""The words of each text in reverse order, each as soon as it is there, and perhaps slowly."""

import os
import time

import triton_python_backend_utils as pb_utils
from gourmet.systems.echo.contract import MAX_TOKENS, outputs, pieces


class TritonPythonModel:
    def initialize(self, args):
        # A test may slow it down so that it sees pieces arrive one by one.
        self._pause_s = float(os.environ.get("ECHO_PAUSE_S", "0"))

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for told, piece in enumerate(pieces(*inputs(request)), 1):
                tensors = [pb_utils.Tensor(name, value) for name, value in outputs(piece, told).items()]
                if sender.is_cancelled():  # the client went away
                    pb_utils.Logger.log_info("cancelled")
                    break
                sender.send(pb_utils.InferenceResponse(tensors))
                time.sleep(self._pause_s)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def inputs(request):
    """The text of a request and how many words its answer may have."""
    text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
    tokens = pb_utils.get_input_tensor_by_name(request, "max_tokens")
    return text, int(tokens.as_numpy()[0]) if tokens else MAX_TOKENS
