"""Functions to weights: transformers that compute a given function, each with a certificate, and their verification."""
