"""The rules between the settings of a broker that say how many copies a message has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saturnmq.runtime.errors import ConfigError

if TYPE_CHECKING:
    from saturnmq.broker.config import BrokerConfig


def check_copies(config: BrokerConfig) -> None:
    """Raise ConfigError for a role, and a number of copies, that cannot be kept."""
    if (config.role == "SLAVE") != (config.broker_id > 0):
        raise ConfigError(
            f"brokerRole {config.role} with brokerId {config.broker_id}: a master has id 0, "
            "a slave an id above 0"
        )
    if config.role == "ASYNC_MASTER" and config.in_sync_replicas > 1:
        raise ConfigError(
            f"inSyncReplicas is {config.in_sync_replicas} but brokerRole is ASYNC_MASTER, which "
            "waits for no slave; use SYNC_MASTER"
        )
    if config.role == "SYNC_MASTER" and config.in_sync_replicas == 1:
        raise ConfigError(
            "inSyncReplicas is 1 but brokerRole is SYNC_MASTER: no slave would be waited for; "
            "use 2 or more, or ASYNC_MASTER"
        )
    copies = max(config.replicas_required, config.min_in_sync_replicas)
    if config.total_replicas and copies > config.total_replicas:
        raise ConfigError(
            f"a send waits for {copies} copies (inSyncReplicas, minInSyncReplicas), but "
            f"totalReplicas is {config.total_replicas}: that can never be met; add slaves, or "
            "ask for fewer copies"
        )
    if config.role == "SYNC_MASTER" and config.min_in_sync_replicas > config.replicas_required:
        raise ConfigError(
            f"minInSyncReplicas is {config.min_in_sync_replicas}, more than the "
            f"{config.replicas_required} copies that a send waits for (inSyncReplicas); raise "
            "that, too"
        )
    if config.role == "ASYNC_MASTER" and (config.min_in_sync_replicas > 1 or config.all_ack):
        raise ConfigError(
            "minInSyncReplicas above 1 or allAckInSyncStateSet with brokerRole ASYNC_MASTER, "
            "which waits for no slave; use SYNC_MASTER"
        )
