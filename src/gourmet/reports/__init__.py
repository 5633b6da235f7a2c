"""Reports: one style of page, its tables, and the charts on it."""
