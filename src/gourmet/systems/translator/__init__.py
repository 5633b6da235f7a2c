"""Russian to English, a sentence at a time."""
