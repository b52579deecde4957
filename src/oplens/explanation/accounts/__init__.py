"""A decision as a sum: shares of parts and of pairs of parts, at every depth."""
