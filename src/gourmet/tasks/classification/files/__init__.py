"""The files of a new system and of its model, as templates."""
