"""SaturnMQ."""
