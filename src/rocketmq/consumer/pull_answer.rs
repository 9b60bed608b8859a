//! What an answer to a pull says: its code and header, where its messages are, and whether it leads anywhere.
//!
//! `pull.rs` asks and acts; nothing here knows a claim or sends anything.

use std::sync::Arc;

use crate::error::WireError;
use crate::model::QueueOffset;
use crate::rocketmq::port::{Answer, CallError, refused};
use crate::wire::frame::Frame;
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::command::Command;
use crate::wire::remoting::header::ReadHeader;
use crate::wire::remoting::pull::PullAnswer;

/// How far behind the queue's end an answer may lead. It may do so a little: the end was looked at before the messages
/// were, and what has been removed is skipped by the file.
///
/// Source: apache/rocketmq@rocketmq-all-4.9.3 store/src/main/java/org/apache/rocketmq/store/DefaultMessageStore.java
/// (`getMessage`)
const FAR: i64 = 1 << 20;

/// The messages of an answer: one frame over sockets, several in process.
#[derive(Debug)]
pub(in crate::rocketmq) enum Frames {
    None,
    One(Frame),
    Many(Vec<Frame>),
}

impl Frames {
    pub(super) fn all(&self) -> &[Frame] {
        match self {
            Self::None => &[],
            Self::One(frame) => std::slice::from_ref(frame),
            Self::Many(frames) => frames,
        }
    }
}

/// What an answer to a pull says, and where its messages are.
pub(super) fn opened(answer: Answer) -> Result<(i32, PullAnswer, Frames), CallError> {
    let frame = match answer {
        Answer::Pulled { code, header, frames } => return Ok((code, header, Frames::Many(frames))),
        Answer::Frame(frame) => frame,
        Answer::Sent(_) => {
            return Err(WireError::BadValue { what: "answer", found: i64::from(answer::SUCCESS) }.into());
        }
    };
    let mut command = Command::empty();
    command.fill(&frame)?;
    let code = command.code;
    if !matches!(
        code,
        answer::SUCCESS | answer::PULL_NOT_FOUND | answer::PULL_RETRY_IMMEDIATELY | answer::PULL_OFFSET_MOVED
    ) {
        return Err(refused(&command));
    }
    let header = PullAnswer::read(&command.fields)?;
    let (end, body) = (frame.len(), command.body.len());
    let frames = if code == answer::SUCCESS && body > 0 {
        Frames::One(Frame::new(Arc::new(frame), end - body..end))
    } else {
        Frames::None
    };
    Ok((code, header, frames))
}

/// Refuses an answer that leads back to the pull it answers: asked at once, it would go round without end, and messages
/// that came with it would be delivered each time. And one that leads far beyond the end of the queue that it names: what
/// is stored before that would never be asked for, and the group's offset would be there.
pub(super) fn going_on(
    answer: (i32, PullAnswer, Frames),
    asked: QueueOffset,
) -> Result<(i32, PullAnswer, Frames), CallError> {
    let (code, header, frames) = &answer;
    let next = header.next_begin_offset;
    let end = match *code {
        // What was asked for is what is wrong.
        answer::PULL_OFFSET_MOVED => header.max_offset,
        _ => header.max_offset.max(asked.0),
    };
    if next > end.max(0).saturating_add(FAR).min(i64::MAX - FAR) {
        return Err(WireError::BadValue { what: "nextBeginOffset", found: next }.into());
    }
    match *code {
        answer::SUCCESS if next <= asked.0 && !frames.all().is_empty() => {
            Err(WireError::BadValue { what: "nextBeginOffset", found: next }.into())
        }
        answer::PULL_OFFSET_MOVED if next.max(0) == asked.0 => {
            Err(CallError::Refused { code: *code, remark: "moved to the offset that was asked for".into() })
        }
        _ => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::FrameBuf;
    use crate::wire::remoting::command::{Codec, Head, write};

    fn answered(code: i32, body: &[u8]) -> Answer {
        let mut bytes = Vec::new();
        write(&mut bytes, Codec::Json, &Head::answer(code, 1), &PullAnswer::at(5, 0, 9), body).unwrap();
        Answer::Frame(FrameBuf::from(bytes.split_off(4)))
    }

    #[test]
    fn an_answers_messages_are_the_end_of_its_frame() {
        let (code, header, frames) = opened(answered(answer::SUCCESS, b"messages")).unwrap();
        assert_eq!((code, header.next_begin_offset, header.max_offset), (0, 5, 9));
        assert_eq!(frames.all().first().map(Frame::bytes), Some(b"messages".as_slice()));
        let (code, _, frames) = opened(answered(answer::PULL_NOT_FOUND, b"")).unwrap();
        assert_eq!((code, frames.all().len()), (19, 0));
        assert_eq!(opened(answered(answer::SYSTEM_BUSY, b"")).unwrap_err().code(), Some(2));
    }

    #[test]
    fn an_answer_that_leads_back_to_its_pull_is_a_failure() {
        let at = |code, body: &[u8], asked| going_on(opened(answered(code, body)).unwrap(), QueueOffset(asked));
        // The answer goes on at 5.
        assert!(at(answer::SUCCESS, b"messages", 4).is_ok());
        assert!(at(answer::SUCCESS, b"messages", 5).is_err() && at(answer::SUCCESS, b"messages", 900).is_err());
        assert!(at(answer::SUCCESS, b"", 5).is_ok() && at(answer::PULL_NOT_FOUND, b"", 5).is_ok());
        assert!(at(answer::PULL_OFFSET_MOVED, b"", 700).is_ok());
        assert_eq!(at(answer::PULL_OFFSET_MOVED, b"", 5).unwrap_err().code(), Some(21));
    }

    #[test]
    fn an_answer_that_leads_far_beyond_the_queue_is_a_failure() {
        let at = |code, next, max, asked| {
            let answer = Answer::Pulled { code, header: PullAnswer::at(next, 0, max), frames: Vec::new() };
            going_on(opened(answer).unwrap(), QueueOffset(asked)).is_ok()
        };
        for code in [answer::SUCCESS, answer::PULL_NOT_FOUND, answer::PULL_RETRY_IMMEDIATELY, answer::PULL_OFFSET_MOVED]
        {
            assert!(at(code, 9, 9, 8) && at(code, 9 + FAR, 9, 8) && !at(code, 10 + FAR, 9, 8), "{code}");
            for (next, max) in [(i64::MAX, 9), (i64::MAX, -1), (i64::MAX, i64::MAX), (i64::MAX - 1, i64::MAX)] {
                assert!(!at(code, next, max, 8), "{code} {next} {max}");
            }
        }
        // A slave behind its master holds the pull where it is.
        assert!(at(answer::PULL_NOT_FOUND, FAR * 3, 9, FAR * 3));
        assert!(!at(answer::PULL_OFFSET_MOVED, FAR * 3, 9, FAR * 4));
    }
}
