"""Looking into a store from outside: `saturnmq store check` and `saturnmq store rebuild`."""
