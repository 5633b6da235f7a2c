"""The only code that speaks to Triton.

    triton.py               Triton: infer, stream, describe, load and the rest
    http.py, grpc.py        the two protocols; over gRPC, NVIDIA's tritonclient does the work
    errors.py               the errors of a request, as one tree
    model_config.py         a model's config as text, as JSON and in a sentence

Importing `triton` imports no tritonclient: NVIDIA's images have none, and over HTTP none is needed.
"""
