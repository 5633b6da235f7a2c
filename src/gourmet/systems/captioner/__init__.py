"""A photo in, a sentence out that says what it shows."""
