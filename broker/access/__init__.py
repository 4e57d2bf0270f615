"""Users of a broker and what they may do: RocketMQ 5's users and access rules (ACL 2.0)."""
