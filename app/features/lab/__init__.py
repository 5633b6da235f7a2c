"""The page of the lab: what Triton does at the moment, and the reports of what was measured."""
