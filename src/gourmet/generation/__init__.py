"""Text generation inside a served model: the loop, its rows, and the engine that computes its steps."""
