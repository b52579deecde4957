"""Smaller models made of the waves which matter most."""
