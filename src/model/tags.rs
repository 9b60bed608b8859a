//! Tags and tag expressions: what a subscription lets through. Consumers and the embedded broker share it.

use super::SortedSet;
use crate::error::ConfigError;

/// Java's `String.hashCode`: the number by which a broker compares tags. 0 for the empty text.
pub fn java_hash(text: &str) -> i32 {
    if text.is_ascii() {
        return text.bytes().fold(0, |hash: i32, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)));
    }
    text.encode_utf16().fold(0, |hash: i32, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// A subscription by tags: all messages, or those whose tag is one of a set.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TagExpression {
    tags: Vec<String>,
}

impl TagExpression {
    /// Parses `*`, the empty text (both: everything) or tags joined by `||`, blanks around them ignored.
    ///
    /// # Errors
    /// Text that has separators but no tag, as in `||`.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let text = text.trim();
        if text.is_empty() || text == "*" {
            return Ok(Self::default());
        }
        let (mut tags, mut known) = (Vec::new(), SortedSet::new());
        for tag in text.split("||").map(str::trim).filter(|tag| !tag.is_empty()) {
            if known.insert(tag) {
                tags.push(tag.to_owned());
            }
        }
        if tags.is_empty() {
            return Err(ConfigError { field: "tags", value: text.into(), allowed: "*, or tags joined by ||".into() });
        }
        Ok(Self { tags })
    }

    /// True if every message passes.
    pub fn is_all(&self) -> bool {
        self.tags.is_empty()
    }

    /// The tags, in the order they were written; empty if every message passes.
    pub fn tags(&self) -> &[String] {
        &self.tags
    }

    /// Whether a message with this tag passes. With a set of tags, a message without a tag does not.
    pub fn admits(&self, tag: Option<&str>) -> bool {
        self.is_all() || tag.is_some_and(|tag| self.tags.iter().any(|wanted| wanted == tag))
    }

    /// Whether a message whose tag has this hash may pass. A broker decides by this; two tags may share a hash, so a
    /// consumer asks [`TagExpression::admits`] again.
    pub fn admits_hash(&self, hash: i32) -> bool {
        self.is_all() || self.tags.iter().any(|wanted| java_hash(wanted) == hash)
    }

    /// The expression as it is registered with a broker: `*` or tags joined by `||`.
    pub fn text(&self) -> String {
        if self.is_all() { "*".to_owned() } else { self.tags.join("||") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_javas() {
        for (text, hash) in [
            ("", 0),
            ("TagA", 2_598_919),
            ("polygenelubricants", i32::MIN),
            ("中文", 646_394),
            ("\u{1F600}", 1_772_899),
        ] {
            assert_eq!(java_hash(text), hash, "{text}");
        }
        assert_eq!(java_hash("Aa"), java_hash("BB"));
    }

    #[test]
    fn expressions_parse_as_javas() {
        for all in ["*", "", "  "] {
            assert!(TagExpression::parse(all).unwrap().is_all());
        }
        let two = TagExpression::parse(" a ||  || b||a").unwrap();
        assert_eq!((two.tags(), two.text().as_str()), (["a".to_owned(), "b".to_owned()].as_slice(), "a||b"));
        assert!(two.admits(Some("a")) && !two.admits(Some("c")) && !two.admits(None));
        assert!(TagExpression::parse("||").is_err());
        // A peer's text may be as long as a frame: no tag is compared with all others.
        let many: Vec<String> = (0..300_000).map(|tag| tag.to_string()).collect();
        assert_eq!(TagExpression::parse(&many.join("||")).unwrap().tags(), many);
        let colliding = TagExpression::parse("Aa").unwrap();
        assert!(colliding.admits_hash(java_hash("BB")) && !colliding.admits(Some("BB")));
    }
}
