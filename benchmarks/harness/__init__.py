"""Compare with other servers: contenders in turns, checked answers, a part of docs/."""
