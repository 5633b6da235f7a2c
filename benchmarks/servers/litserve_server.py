"""LitServe: one process takes the requests, WORKERS others decode and classify."""

import os
from typing import Any

import litserve as ls
from fastapi import Request
from plain import PlainClassifier


class FoodAPI(ls.LitAPI):
    def setup(self, device: str) -> None:
        self.classifier = PlainClassifier()

    def decode_request(self, request: Request) -> bytes:
        photo: bytes = request["file"].file.read()
        return photo

    def predict(self, photo: bytes) -> dict[str, Any]:
        return self.classifier.classify(photo)

    def encode_response(self, answer: dict[str, Any]) -> dict[str, Any]:
        return answer


if __name__ == "__main__":
    # Its fast queue (ZeroMQ) instead of a manager process: 2.6 MB photos cross it pickled.
    server = ls.LitServer(
        FoodAPI(), accelerator="cpu", workers_per_device=int(os.environ["WORKERS"]), fast_queue=True
    )
    server.run(
        host="127.0.0.1", port=int(os.environ["PORT"]), generate_client_file=False, log_level="warning"
    )
