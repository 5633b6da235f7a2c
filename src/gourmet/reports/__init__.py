"""Reports: pages in one style, with tables and charts."""
