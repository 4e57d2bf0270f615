"""From an append to its acknowledgement: watermarks advance and wake who waits for them."""
