"""What every task asks of its systems: how they are evaluated, gated and checked through the server."""
