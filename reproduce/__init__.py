"""The scripts behind every shipped weight and published result; see README.md."""
