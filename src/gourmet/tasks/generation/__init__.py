"""Systems that answer a text with a text, whole or in pieces: the gate, the check."""
