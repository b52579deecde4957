"""What holds for every input in a box, not only for those that were seen."""
