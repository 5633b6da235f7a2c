"""/api/v1: the food classifier for programs."""
