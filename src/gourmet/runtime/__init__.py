"""What a served model needs at run time; nothing here imports torch at the top."""
