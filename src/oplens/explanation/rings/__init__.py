"""The features of a layer as rings of oscillators, and what travels on them."""
