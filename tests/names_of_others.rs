//! The table of names for people who come from Java or Go (`src/coming_from.md`) is complete, and what it names is there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

const TABLE: &str = include_str!("../src/coming_from.md");

/// Source: apache/rocketmq@rocketmq-all-4.9.3 and @rocketmq-all-5.3.3
/// client/src/main/java/org/apache/rocketmq/client/ClientConfig.java
const CLIENT_CONFIG: &str = "NamesrvAddr ClientIP InstanceName ClientCallbackExecutorThreads PollNameServerInterval \
    HeartbeatBrokerInterval PersistConsumerOffsetInterval PullTimeDelayMillsWhenException UnitName UnitMode \
    VipChannelEnabled UseTLS SocksProxyConfig Language DecodeReadBody DecodeDecompressBody Namespace NamespaceV2 \
    AccessChannel MqClientApiTimeout EnableStreamRequestType SendLatencyEnable StartDetectorEnable \
    EnableHeartbeatChannelEventListener DetectTimeout DetectInterval UseHeartbeatV2 EnableTrace TraceTopic \
    MaxPageSizeInGetMetadata";
/// Source: the same, client/src/main/java/org/apache/rocketmq/client/consumer/DefaultMQPushConsumer.java
const PUSH_CONSUMER: &str = "AllocateMessageQueueStrategy ConsumeConcurrentlyMaxSpan ConsumeFromWhere \
    ConsumeMessageBatchMaxSize ConsumerGroup ConsumeThreadMax ConsumeThreadMin MessageListener MessageModel PullBatchSize \
    PullInterval PullThresholdForQueue PullThresholdForTopic PullThresholdSizeForQueue PullThresholdSizeForTopic \
    Subscription OffsetStore ConsumeTimestamp PostSubscriptionWhenPull UnitMode AdjustThreadPoolNumsThreshold \
    MaxReconsumeTimes SuspendCurrentQueueTimeMillis ConsumeTimeout AwaitTerminationMillisWhenShutdown \
    PullBatchSizeInBytes TraceDispatcher ClientRebalance";
/// Source: the same, client/src/main/java/org/apache/rocketmq/client/producer/DefaultMQProducer.java
const PRODUCER: &str = "ProducerGroup CreateTopicKey SendMsgTimeout CompressMsgBodyOverHowmuch \
    RetryAnotherBrokerWhenNotStoreOK MaxMessageSize DefaultTopicQueueNums RetryTimesWhenSendFailed \
    SendMessageWithVIPChannel NotAvailableDuration LatencyMax SendLatencyFaultEnable RetryTimesWhenSendAsyncFailed \
    EnableBackpressureForAsyncMode BackPressureForAsyncSendNum BackPressureForAsyncSendSize Topics StartDetectorEnable \
    CompressLevel CompressType AutoBatch AsyncSenderExecutor CallbackExecutor SendMsgMaxTimeoutPerRequest";
/// Source: apache/rocketmq-client-go@v2.1.2 consumer/option.go
const GO_CONSUMER: &str = "ConsumerModel ConsumeFromWhere ConsumerOrder ConsumeMessageBatchMaxSize ConsumeTimestamp \
    ConsumerPullTimeout ConsumeConcurrentlyMaxSpan PullThresholdForQueue PullThresholdSizeForQueue \
    PullThresholdForTopic PullThresholdSizeForTopic Interceptor GroupName Instance Namespace VIPChannel \
    Retry Credentials MaxReconsumeTimes Strategy PullBatchSize RebalanceLockInterval AutoCommit \
    SuspendCurrentQueueTimeMillis PullInterval NsResolver NameServer NameServerDomain UnitName \
    ConsumeTimeout ConsumeGoroutineNums FilterMessageHook Limiter";
/// Source: the same, producer/option.go
const GO_PRODUCER: &str = "GroupName InstanceName Namespace SendMsgTimeout VIPChannel Retry Interceptor QueueSelector Credentials \
    DefaultTopicQueueNums CreateTopicKey NsResolver NameServer NameServerDomain UnitName \
    CompressMsgBodyOverHowmuch CompressLevel";

/// Rows of the table under the heading `of`: their two cells.
fn rows(of: &str) -> Vec<(&'static str, &'static str)> {
    let (_, after) = TABLE.split_once(&format!("{of}\n")).unwrap_or_else(|| panic!("no heading {of}"));
    let own = after.split("\n#").next().unwrap();
    let cells = own.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    cells.filter(|(first, _)| first.starts_with('`')).collect()
}

/// Every `Type::method` in the table.
fn named() -> BTreeSet<(&'static str, &'static str)> {
    TABLE.split('`').skip(1).step_by(2).filter_map(|code| code.split_once("::")).collect()
}

#[test]
fn d20_every_setting_of_java_and_go_is_in_the_table_once() {
    for (heading, prefix, names) in [
        ("## ClientConfig", "set", CLIENT_CONFIG),
        ("## DefaultMQPushConsumer", "set", PUSH_CONSUMER),
        ("## DefaultMQProducer", "set", PRODUCER),
        ("## consumer", "With", GO_CONSUMER),
        ("## producer", "With", GO_PRODUCER),
    ] {
        let rows = rows(heading);
        for name in names.split_whitespace() {
            let cell = format!("`{prefix}{name}`");
            let found = rows.iter().filter(|(theirs, _)| *theirs == cell).count();
            assert_eq!(found, 1, "{heading}: {cell}");
        }
        for (theirs, ours) in rows {
            assert!(ours.contains("::") || ours.starts_with("no") || !ours.contains('`'), "{theirs} is told nothing");
        }
    }
}

#[test]
fn d20_what_the_table_names_is_there_and_every_setter_is_named() {
    let builders = [
        ("ClientBuilder", include_str!("../src/rocketmq/builder.rs")),
        ("PushConsumerBuilder", include_str!("../src/rocketmq/consumer/push.rs")),
        ("ProducerBuilder", include_str!("../src/rocketmq/producer/builder.rs")),
    ];
    let others = [
        (
            "Client",
            concat!(include_str!("../src/rocketmq/client.rs"), include_str!("../src/rocketmq/producer/builder.rs")),
        ),
        ("PushConsumer", include_str!("../src/rocketmq/consumer/push.rs")),
        (
            "Producer",
            concat!(
                include_str!("../src/rocketmq/producer/send.rs"),
                include_str!("../src/rocketmq/producer/send_async.rs"),
                include_str!("../src/rocketmq/producer/batch.rs"),
                include_str!("../src/rocketmq/producer/writer.rs"),
            ),
        ),
        ("Batch", include_str!("../src/rocketmq/consumer/delivery.rs")),
        ("Outcome", include_str!("../src/consume/listener.rs")),
        ("StartFrom", include_str!("../src/model/queue.rs")),
    ];
    for (of, name) in named() {
        if of == "crate" {
            continue;
        }
        let sources = builders.iter().chain(&others).find(|(known, _)| *known == of);
        let (_, source) = sources.unwrap_or_else(|| panic!("{of}::{name}: unknown type"));
        let is_there = source.contains(&format!("pub fn {name}(")) || source.contains(&format!("pub fn {name}<"));
        let is_variant = source.lines().any(|line| line.trim_start().starts_with(name));
        assert!(is_there || is_variant, "{of}::{name} is not there");
    }
    for (of, source) in builders {
        let setters =
            source.lines().filter_map(|line| line.trim_start().strip_prefix("pub fn ")?.split_once("(mut self"));
        let mut count = 0;
        for (name, _) in setters {
            let name = name.split('<').next().unwrap();
            // Only tests set it.
            if name != "timing" {
                assert!(named().contains(&(of, name)), "{of}::{name} is not in the table");
                count += 1;
            }
        }
        assert!(count > 5, "{of}: {count} setters");
    }
}
