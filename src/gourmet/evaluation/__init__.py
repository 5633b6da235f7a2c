"""Measure a model: accuracy, certainty, checks, comparisons."""
