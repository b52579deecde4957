"""What a model will say of a signal in Gaussian noise, before any simulation."""
