//! The least that consumes a topic with rocketmq-client-rust: `consumer HOST:PORT` of a name server.

use std::error::Error;

use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    DefaultMQPushConsumer, MQPushConsumer, MessageListenerConcurrently,
};
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};

struct Printer;

impl MessageListenerConcurrently for Printer {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        for message in messages {
            println!("{} bytes", message.body().map_or(0, |body| body.len()));
        }
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let config = RuntimeConfig { thread_name: "consumer".into(), ..Default::default() };
    let owner = RuntimeOwner::plan(config).expect("a plan").build().expect("a runtime");
    let telemetry = rocketmq_observability::install_global(&Default::default()).expect("telemetry");
    let context = owner.root_context().component("client");
    let runtime = ClientRuntime::try_new(context, ClientRuntimeConfig::default(), telemetry.handle()).expect("a client");
    let mut consumer = DefaultMQPushConsumer::builder(runtime)
        .consumer_group("build-ratio".to_string())
        .name_server_addr(name_server)
        .build();
    consumer.subscribe("build-ratio", "*").await?;
    consumer.register_message_listener_concurrently(Printer);
    consumer.start().await?;
    std::future::pending().await
}
