"""Transactions: half messages, their ends, and questions to producers that leave them open."""
