"""The training engine. It is independent of systems, pictures and labels."""
