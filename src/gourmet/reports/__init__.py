"""Reports: one style of page, the little of SVG that pictures need, and the charts made of it."""
