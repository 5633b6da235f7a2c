"""One frame for comparisons with other servers: contenders in turns, answers checked, a part of docs/."""
