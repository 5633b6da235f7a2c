"""What a served classifier is worth, asked through the server: how right, how like its network, how fast."""
