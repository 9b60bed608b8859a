//! RocketMQ remoting protocol: header and body of each conversation.
