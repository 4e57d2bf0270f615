"""From an append to its acknowledgement: watermarks advance and wake the services that wait."""
