"""The treatment of each setting of a RocketMQ 5.4 broker that is no setting of ours.

A `broker.conf` may hold the setters of BrokerConfig, MessageStoreConfig, NettyServerConfig,
NettyClientConfig and AuthConfig, and names that examples carry along though no release reads them.
Each is one of three:

- honoured: the field of `BrokerConfig` or `StoreConfig` whose `key` it is;
- refused (`REFUSED`): any value but this one promises something that this broker would not keep.
  The start fails and says why;
- without effect (`WITHOUT_EFFECT`), for the reason above its names: the file loads as it is, and
  the broker names the keys that it found once at its start.

`tests/unit/test_rocketmq_keys.py` goes through all of them.
"""

from __future__ import annotations

# Why another value is refused -> the key, and the one value that can be kept.
REFUSED: dict[str, dict[str, str]] = {
    "this version has RocketMQ 5's users and rules (authenticationEnabled), not plain_acl.yml": {
        "aclEnable": "false",
        "migrateAuthFromV1Enabled": "false",
    },
    "brokers of this version speak plain text to nameservers and to each other": {
        "useTLS": "false"
    },
    "this version has no plug-ins": {"messageStorePlugIn": ""},
    "roles come from brokerRole, brokerId and promotions in this version": {
        "enableControllerMode": "false",
        "enableSlaveActingMaster": "false",
        "enableRemoteEscape": "false",
        "lockInStrictMode": "false",
    },
    "this version reads and writes one CommitLog per broker, in RocketMQ's default format": {
        "enableDLegerCommitLog": "false",
        "storeType": "default",
        "readOnlyCommitLogStorePaths": "",
        "rocksdbCQDoubleWriteEnable": "false",
        "enableConsumeQueueExt": "false",
        "indexRocksDBEnable": "false",
    },
    "this version keeps its tables in files of JSON": {
        "configManagerVersion": "v1",
        "useSingleRocksDBForAllConfigs": "false",
    },
    "this version builds no light queues and would store their messages without them": {
        "enableLmq": "false",
        "enableMultiDispatch": "false",
    },
    "messageIndexEnable alone says whether there is an index in this version": {
        "indexFileReadEnable": "true",
        "indexFileWriteEnable": "true",
    },
    "a send waits for as many copies as inSyncReplicas says, however many slaves there are": {
        "enableAutoInSyncReplicas": "false"
    },
    "every slave counts as a copy in this version": {"asyncLearner": "false"},
    "this version knows its nameservers from namesrvAddr only": {
        "fetchNamesrvAddrByAddressServer": "false",
        "fetchNameSrvAddrByDnsLookup": "false",
    },
    "this version connects directly": {"socksProxyConfig": "{}"},
    "this version exports no metrics; mqadmin's brokerStatus shows its figures": {
        "metricsExporterType": "DISABLE"
    },
    "a group pops in this version if it was told to (mqadmin setConsumeMode)": {
        "defaultMessageRequestMode": "PULL"
    },
    "this version serves every consumer that its group allows": {
        "disableConsumeIfConsumerReadSlowly": "false",
        "rejectPullConsumerEnable": "false",
        "litePullMessageEnable": "true",
        "useStaticSubscription": "false",
    },
    "this version gives a retried message to its group whatever its condition says": {
        "filterSupportRetry": "false"
    },
    "this version takes messages from its start on": {"startAcceptSendRequestTimeStamp": "0"},
    "these topics are always there in this version": {
        "clusterTopicEnable": "true",
        "brokerTopicEnable": "true",
    },
    "clients are told to trace in every answer of this version": {"traceOn": "true"},
    "pulls are held until their own time ends in this version": {"longPollingEnable": "true"},
}

# Why it has no effect -> the keys.
_WITHOUT_EFFECT = {
    "popped messages stay in their queues, and a table in memory knows their times": """
        appendAckAsync appendCkAsync clearRetryTopicWhenDeleteTopic defaultPopShareQueueNum
        enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
        enablePopBufferMerge enablePopLog enablePopMetrics
        enableRetryTopicV2 enableSkipLongAwaitingAck initPopOffsetByCheckMsgInMem
        loadBalancePollNameServerInterval popCkMaxBufferSize
        popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut
        popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
        popConsumerKVServiceLog popFromRetryProbability popFromRetryProbabilityForPriority
        popLongPollingForceNotifyInterval
        popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize
        popResponseReturnActualRetryTopic popReviveConcurrency popReviveMaxAttemptTimes
        popReviveMaxReturnSizePerRead priorityOrderAsc retrieveMessageFromPopRetryTopicV1
        reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime
        serverLoadBalancerEnable skipWhenCKRePutReachMaxTimes useSeparateRetryQueue
    """,
    "timed messages wait in sorted runs, without slots, in this version": """
        allowRecallWhenBrokerNotWriteable disappearTimeAfterStart mappedFileSizeTimerLog
        timerColdDataCheckIntervalMs
        timerCongestNumEachSlot timerEnableCheckMetrics timerEnableRetryUntilSuccess
        timerFlushIntervalMs timerGetMessageThreadNum timerInterceptDelayLevel
        timerMetricSmallThreshold timerPrecisionMs timerProgressLogIntervalMs
        timerPutMessageThreadNum timerRecallToTimelineEnable timerRecallToTimeWheelEnable
        timerRocksDBEnable timerRocksDBPrecisionMs timerRocksDBRollIntervalHours
        timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan
        timerRocksDBTimeExpiredMaxTps timerRollWindowSlot timerSkipUnknownError
        timerStopEnqueue timerWheelSnapshotFlush timerWheelSnapshotIntervalMs
    """,
    "every end of a transaction is stored by itself, at once, with the message that it commits": """
        enableTransactionMetrics endTransactionPoolQueueCapacity endTransactionThreadPoolNums
        transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize
        transRocksDBEnable transWriteOriginTransHalfEnable waitTimeMillsInTransactionQueue
    """,
    "users and rules are in one table in memory, and each request is checked": """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath
        authenticationMetadataProvider authenticationProvider authenticationStrategy
        authorizationMetadataProvider authorizationProvider authorizationStrategy clusterName
        configName
        statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
        userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    """,
    "roles come from brokerRole, brokerId and promotions; what switches others on is refused": """
        brokerHeartbeatInterval brokerNotActiveTimeoutMillis
        checkSyncStateSetPeriod controllerAddr controllerHeartBeatTimeoutMills dLegerGroup
        dLegerPeers dLegerSelfId enableSplitMetadata fetchControllerAddrByDnsLookup
        preferredLeaderId sendHeartbeatTimeoutMillis skipPreOnline splitMetadataSize
        storePathBrokerIdentity storePathEpochFile syncBrokerMemberGroupPeriod
        syncBrokerMetadataPeriod syncControllerMetadataPeriod
    """,
    "RocksDB, extended and light queues are refused, compacted topics are not compacted": """
        bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore
        cleanRocksDBDirtyCQIntervalMin combineAssignOffsetCQType combineCQEnableCheckSelf
        combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal
        compactionThreadNum enableCompaction enableLmqStats enableRocksDBLog
        mapedFileSizeConsumeQueueExt mappedFileSizeConsumeQueueExt maxLmqConsumeQueueNum
        maxOffsetMapSize maxRocksDBIndexQueryDays memTableFlushIntervalMs
        realTimePersistRocksDBConfig rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec
    """,
    "there is no exporter of metrics; one that is named is refused": """
        enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics
        enableRemotingMetrics enableRequestMetrics enableStatsMetrics
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
        metricLoggingExporterIntervalInMills metricsGrpcExporterHeader metricsGrpcExporterTarget
        metricsInDelta metricsLabel metricsOtelCardinalityLimit metricsPromExporterHost
        metricsPromExporterPort
    """,
    "it belongs to a setting that is refused": """
        consumerFallbehindThreshold fetchNamesrvAddrInterval
        shortPollingTimeMills updateNameServerAddrPeriod
    """,
    "it only changes what is counted, logged or kept for clients that are not here": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond commercialBaseCount
        commercialSizePerMsg configBlackList consumerOffsetUpdateVersionStep debugLockEnable
        delayOffsetUpdateVersionStep enableBroadcastOffsetStore enableCreateSysGroup
        enableDetailStat enableRegisterProducer enableScheduleMessageStats isolateLogEnable
        maxStatsIdleTimeInMinutes printChannelGroups printChannelGroupsMinNum
        subscriptionExpiredTimeout
    """,
    "one event loop answers; maxPendingAcks and maxHeldPulls bound what waits": """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums
        adminBrokerThreadPoolQueueCapacity asyncSendEnable batchDispatchRequestThreadPoolNums
        brokerFastFailureEnable clientAsyncSemaphoreValue clientCallbackExecutorThreads
        clientManagerThreadPoolQueueCapacity clientManageThreadPoolNums
        clientOnewaySemaphoreValue clientWorkerThreads consumerManagerThreadPoolQueueCapacity
        consumerManageThreadPoolNums disableCallbackExecutor disableNettyWorkerGroup
        dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread enableAsyncReput
        enableBuildConsumeQueueConcurrently enableFastChannelEventProcess forwardTimeout
        heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity litePullMessageThreadPoolNums
        litePullThreadPoolQueueCapacity loadBalanceProcessorThreadPoolNums
        loadBalanceThreadPoolQueueCapacity maxAsyncPutMessageRequests
        osPageCacheBusyTimeOutMills processReplyMessageThreadPoolNums pullMessageThreadPoolNums
        pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel
        putMessageFutureThreadPoolNums putMessageTimeout putThreadPoolQueueCapacity
        queryMessageThreadPoolNums queryThreadPoolQueueCapacity recoverConcurrently
        recoverThreadPoolNums replyThreadPoolQueueCapacity sendMessageThreadPoolNums
        sendThreadPoolQueueCapacity serverAsyncSemaphoreValue serverCallbackExecutorThreads
        serverNettyWorkerGroupEnable serverOnewaySemaphoreValue serverSelectorThreads
        serverWorkerThreads spinLockCollisionRetreatOptimalDegree topicQueueLockNum useABSLock
        useReentrantLockWhenPutMessage waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
        waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
        waitTimeMillsInSendQueue
    """,
    "the event loop has the connections; channelExpiredTimeout ends silent ones": """
        channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
        clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
        connectTimeoutMillis enableNetWorkFlowControl enableReconnectForGoAway
        enableShutdownGracefully maxReconnectIntervalTimeSeconds scanAvailableNameSrv
        serverPooledByteBufAllocatorEnable serverSocketBacklog serverSocketRcvBufSize
        serverSocketSndBufSize shutdownWaitTimeSeconds transferMsgByHeap
        useEpollNativeSelector vipChannelEnabled writeBufferHighWaterMark
        writeBufferLowWaterMark
    """,
    "flushIntervalCommitLog bounds what is not flushed; all else follows by itself": """
        cleanSwapedMapInterval commitCommitLogLeastPages commitCommitLogThoroughInterval
        commitLogForceSwapMapInterval commitLogRecoverMaxNum commitLogSwapMapInterval
        commitLogSwapMapReserveFileNum duplicationEnable enableBatchPush
        enableRunningFlagsInFlush flushCommitLogLeastPages flushCommitLogThoroughInterval
        flushCommitLogTimed flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
        flushConsumerOffsetHistoryInterval flushDelayOffsetInterval flushIntervalConsumeQueue
        flushLeastPagesWhenWarmMapedFile logicQueueForceSwapMapInterval
        logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum mappedFileSwapEnable
        maxChecksumRange maxSlaveResendLength messageIndexSafe putMsgIndexHightWater
        readUnCommitted sharedByteBufferNum syncMasterFlushOffsetWhenStartup
        wakeCommitWhenPutMessage wakeFlushWhenPutMessage writeWithoutMmap
    """,
    "recovery always checks everything from its checkpoint on": """
        checkCRCOnRecover enableAcceleratedRecovery
        enableLogConsumeQueueRepeatedlyBuildWhenRecover forceVerifyPropCRC
        maxRecoveryCommitlogFiles recheckReputOffsetFromCq
    """,
    "deleting keeps its own pace, by deleteWhen, fileReservedTime and the ratios of the disk": """
        cleanOfflineBrokerInterval correctLogicMinOffsetForceInterval
        correctLogicMinOffsetSleepInterval deleteCommitLogFilesInterval
        deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly diskFallRecorded
        enableCleanExpiredOffset logicalDiskSpaceCleanForciblyThreshold maxBatchDeleteFilesNum
        redeleteHangedFileInterval replicasPerDiskPartition
    """,
    "a read finds its messages without it": """
        accessMessageInMemoryHotRatio cgColdReadThreshold coldCtrStrategyEnable
        coldDataFlowControlEnable coldDataScanEnable enableCalcFilterBitMap estimateAccumulation
        expectConsumerNumUseFilter filterDataCleanTimeSpan globalColdReadThreshold highSpeedMode
        maxConsumeQueueScan maxErrorRateOfBloomFilter
        pullBatchMaxMessageCount sampleCountThreshold sampleSteps searchBcqByCacheEnable
        travelCqFileNumWhenGetMessage usePIDColdCtrStrategy
    """,
    "delayed messages are delivered in order, each level by itself": """
        enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked
    """,
    "registrations always carry all topics, uncompressed": """
        compatibleWithOldNameSrv compressedRegister enableSingleTopicRegister
        enableSplitRegistration forceRegister registerBrokerTimeoutMills splitRegistrationSize
    """,
    "members and resets are handled in one way, which needs no telling": """
        autoMessageVersionOnTopicLen inBrokerContainer maxTopicLength
        notifyConsumerIdsChangedEnable realTimeNotifyConsumerChange useServerSideResetOffset
        validateSystemTopicWhenUpdateTopic
    """,
    "it says where parts of a Java broker are; here everything is below storePathRootDir": """
        abortFile brokerConfigPath namesrvConfigPath rocketmqHome storeCheckpoint
        storePathAbortFile storePathCheckPoint storePathCommitLog storePathConsumeQueue
        storePathDLedgerCommitLog storePathIndex
    """,
}
WITHOUT_EFFECT = {why: tuple(names.split()) for why, names in _WITHOUT_EFFECT.items()}

# Names of older releases for settings that are honoured.
OLDER_NAMES = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}
