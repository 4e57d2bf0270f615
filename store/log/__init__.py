"""The CommitLog: its segments, its single writer, its epochs, and what a truncation cuts off it."""
