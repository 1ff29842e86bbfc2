"""The parts of a report, one file each; the registry finds them."""
