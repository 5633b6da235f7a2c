"""Many inputs through a served model: a row for each, in a table that a stopped run goes on with."""
