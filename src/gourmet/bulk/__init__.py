"""Send many inputs to a served model and write the answers into a table; interrupted runs resume."""
