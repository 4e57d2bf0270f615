"""The drill `semantics`: every kind of message on real processes whose masters are killed."""
