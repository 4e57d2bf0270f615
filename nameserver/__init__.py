"""The nameserver: which broker holds which topic, and which brokers are alive.

`routes` is the table and its rules, pure; `server` puts it behind a Remoting listener. Nameservers
know nothing of each other: every broker registers with all of them.
"""
