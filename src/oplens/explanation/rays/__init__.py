"""From a baseline to a case: orders along the ray, and where the power series ends."""
