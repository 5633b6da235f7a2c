"""The parts that every task shares: evaluation, checks of exported files, and checks through the server."""
