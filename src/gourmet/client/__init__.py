"""The only code that speaks to Triton.

From the bottom upwards:

    transport.py        Call and Reply, and the one method that everything below `Triton` has: `send`
    http.py, grpc.py    the two that reach a server at an address
    triton.py           Triton: infer, stream, describe, load and the rest, over HTTP or gRPC
    errors.py           what can go wrong, as one tree

Importing `triton` imports neither gRPC nor gevent: what talks gRPC does so when it is first asked to.
"""
