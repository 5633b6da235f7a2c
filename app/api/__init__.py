"""/api/v1, and what its answers and its document are made of."""
