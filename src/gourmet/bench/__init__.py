"""Measuring: raw onnxruntime, a served model under load, and the reports made of both."""
