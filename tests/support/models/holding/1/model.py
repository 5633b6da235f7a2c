"""A model that holds its instance for as long as a request says, and computes nothing."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._held(request) for request in requests]

    def _held(self, request):
        ms = pb_utils.get_input_tensor_by_name(request, "MS").as_numpy()
        time.sleep(float(ms[0, 0]) / 1000)
        return pb_utils.InferenceResponse([pb_utils.Tensor("HELD_MS", ms)])
