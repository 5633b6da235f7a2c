"""Systems that answer a text with a text: how they are evaluated and checked."""
