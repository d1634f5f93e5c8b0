//! Effect of a fault on the bytes of a response: decided here, carried out by the body.

use std::{mem, time::Duration};

use bytes::{Bytes, BytesMut};

use super::Action;

/// Next item for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data(Bytes),
    /// Pause of this length.
    Pause(Duration),
    /// Stall without an end.
    Stall,
    /// Clean end, as of the response itself.
    End,
    /// Broken connection.
    Break,
    /// Marker from which on the fault has happened.
    Happened,
}

/// Function from received bytes to delivered pieces.
#[derive(Debug)]
pub(super) enum Effect {
    None,
    /// Passes so many bytes, then these pieces.
    Limit {
        left: usize,
        then: Vec<Piece>,
    },
    Drip {
        bytes: usize,
        every: Duration,
        begun: bool,
    },
    Lines(EditedLines),
    /// Delivers these bytes in place of the response.
    Instead(Bytes),
}

/// Change of one line.
#[derive(Debug)]
pub(super) struct EditedLines {
    change: LineChange,
    /// Number of complete lines so far.
    count: usize,
    /// Begin of an incomplete line.
    partial: BytesMut,
    kept: Option<Bytes>,
}

#[derive(Debug)]
enum LineChange {
    Repeat { event: usize, after: usize },
    Replace { line: usize, bytes: Bytes },
}

impl Effect {
    /// Creates the effect of an action; a stall lasts `at_most` this long.
    pub(super) fn of(action: &Action, at_most: Option<Duration>) -> Self {
        let limit = |left: usize, then: &[Piece]| Self::Limit { left, then: then.to_vec() };
        let lines = |change| {
            Self::Lines(EditedLines { change, count: 0, partial: BytesMut::new(), kept: None })
        };
        match action {
            Action::Cut { after_bytes } => limit(*after_bytes, &[Piece::Break]),
            Action::End { after_bytes } => limit(*after_bytes, &[Piece::End]),
            Action::Stall { after_bytes } => match at_most {
                None => limit(*after_bytes, &[Piece::Stall]),
                Some(long) => limit(*after_bytes, &[Piece::Pause(long), Piece::Break]),
            },
            Action::Drip { bytes, every } => {
                Self::Drip { bytes: (*bytes).max(1), every: *every, begun: false }
            }
            Action::Repeat { event, after } => {
                lines(LineChange::Repeat { event: *event, after: *after })
            }
            Action::Garbage { line: Some(line), bytes } => {
                lines(LineChange::Replace { line: *line, bytes: bytes.clone() })
            }
            Action::Garbage { line: None, bytes } => Self::Instead(bytes.clone()),
            Action::Delay(_)
            | Action::Reply(_)
            | Action::Behind { .. }
            | Action::Stale
            | Action::Partial { .. }
            | Action::Hang
            | Action::Withhold
            | Action::Lose
            | Action::Instead(_)
            | Action::Fail(_)
            | Action::Edit(_) => Self::None,
        }
    }

    /// Returns true if the response may keep its declared length.
    pub(super) fn keeps_length(&self) -> bool {
        match self {
            Self::None | Self::Drip { .. } => true,
            // With the declared length, an early end would look like a cut.
            Self::Limit { then, .. } => then.as_slice() != [Piece::End],
            Self::Lines(_) | Self::Instead(_) => false,
        }
    }

    /// Returns the pieces before the first byte.
    pub(super) fn begin(&mut self) -> Vec<Piece> {
        match self {
            Self::Limit { left: 0, then } => [&[Piece::Happened], then.as_slice()].concat(),
            Self::Instead(bytes) => {
                let bytes = mem::take(bytes);
                vec![Piece::Happened, Piece::Data(bytes), Piece::End]
            }
            Self::None | Self::Limit { .. } | Self::Drip { .. } | Self::Lines(_) => Vec::new(),
        }
    }

    /// Returns the pieces for received bytes.
    pub(super) fn feed(&mut self, mut data: Bytes) -> Vec<Piece> {
        match self {
            Self::None | Self::Instead(_) => vec![Piece::Data(data)],
            Self::Limit { left, then } => {
                data.truncate(*left);
                *left -= data.len();
                let mut pieces = vec![Piece::Data(data)];
                if *left == 0 {
                    pieces.push(Piece::Happened);
                    pieces.append(then);
                }
                pieces
            }
            Self::Drip { bytes, every, begun } => {
                let mut pieces = Vec::new();
                while !data.is_empty() {
                    if mem::replace(begun, true) {
                        pieces.push(Piece::Pause(*every));
                    } else {
                        pieces.push(Piece::Happened);
                    }
                    pieces.push(Piece::Data(data.split_to(data.len().min(*bytes))));
                }
                pieces
            }
            Self::Lines(lines) => lines.feed(&data),
        }
    }

    /// Returns the pieces at the end of the response.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        match self {
            Self::Lines(lines) if !lines.partial.is_empty() => {
                vec![Piece::Data(mem::take(&mut lines.partial).freeze())]
            }
            Self::None
            | Self::Limit { .. }
            | Self::Drip { .. }
            | Self::Lines(_)
            | Self::Instead(_) => Vec::new(),
        }
    }
}

impl EditedLines {
    fn feed(&mut self, data: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.count += 1;
                let line = mem::take(&mut self.partial).freeze();
                self.line(line, &mut pieces);
            }
        }
        pieces
    }

    fn line(&mut self, line: Bytes, pieces: &mut Vec<Piece>) {
        match &self.change {
            LineChange::Replace { line: wanted, bytes } if *wanted == self.count => {
                let mut garbage = BytesMut::from(bytes.as_ref());
                garbage.extend_from_slice(b"\n");
                pieces.extend([Piece::Happened, Piece::Data(garbage.freeze())]);
            }
            LineChange::Replace { .. } => pieces.push(Piece::Data(line)),
            LineChange::Repeat { event, after } => {
                if *event == self.count {
                    self.kept = Some(line.clone());
                }
                pieces.push(Piece::Data(line));
                if *after == self.count
                    && let Some(kept) = self.kept.take()
                {
                    pieces.extend([Piece::Happened, Piece::Data(kept)]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Compares the reader's view of these chunks, as text: bytes as they are, `~` for a pause, `…`
    /// for a stall, `.` for an end, `!` for a break, `*` where the fault has happened.
    #[track_caller]
    fn check(action: Action, chunks: &[&str], expected: &str) {
        let mut effect = Effect::of(&action, None);
        let mut pieces = effect.begin();
        for chunk in chunks {
            pieces.extend(effect.feed(Bytes::copy_from_slice(chunk.as_bytes())));
        }
        pieces.extend(effect.finish());
        let mut seen = String::new();
        for piece in pieces {
            match piece {
                Piece::Data(data) => seen.push_str(std::str::from_utf8(&data).unwrap()),
                Piece::Pause(_) => seen.push('~'),
                Piece::Happened => seen.push('*'),
                Piece::Stall => seen.push('…'),
                Piece::End => seen.push('.'),
                Piece::Break => seen.push('!'),
            }
            if seen.ends_with(['…', '.', '!']) {
                break;
            }
        }
        assert_eq!(seen, expected, "{action:?} of {chunks:?}");
    }

    #[test]
    fn a_response_is_cut_ended_or_stalled_at_a_byte() {
        check(Action::Cut { after_bytes: 0 }, &["abc"], "*!");
        check(Action::Cut { after_bytes: 2 }, &["abc"], "ab*!");
        check(Action::Cut { after_bytes: 4 }, &["abc", "def"], "abcd*!");
        check(Action::Cut { after_bytes: 3 }, &["abc"], "abc*!");
        // A shorter body is left unchanged.
        check(Action::Cut { after_bytes: 4 }, &["abc"], "abc");
        check(Action::End { after_bytes: 1 }, &["abc"], "a*.");
        check(Action::Stall { after_bytes: 1 }, &["abc"], "a*…");
    }

    #[test]
    fn a_stall_that_is_bounded_breaks() {
        let mut effect = Effect::of(&Action::Stall { after_bytes: 1 }, Some(SECOND));

        let pieces = effect.feed(Bytes::from_static(b"abc"));

        let a = Piece::Data(Bytes::from_static(b"a"));
        assert_eq!(pieces, [a, Piece::Happened, Piece::Pause(SECOND), Piece::Break]);
    }

    #[test]
    fn an_answer_drips() {
        check(Action::Drip { bytes: 2, every: SECOND }, &["abc", "d"], "*ab~c~d");
        check(Action::Drip { bytes: 0, every: SECOND }, &["ab"], "*a~b");
    }

    #[test]
    fn an_event_is_repeated_at_once_or_later() {
        check(Action::duplicate(1), &["a\nb\n"], "a\n*a\nb\n");
        check(Action::duplicate(2), &["a\nb", "b\nc\n"], "a\nbb\n*bb\nc\n");
        check(Action::Repeat { event: 1, after: 3 }, &["a\nb\nc\nd\n"], "a\nb\nc\n*a\nd\n");
        // Too few events, and a repetition before the event itself.
        check(Action::Repeat { event: 1, after: 3 }, &["a\nb\n"], "a\nb\n");
        check(Action::Repeat { event: 2, after: 1 }, &["a\nb\n"], "a\nb\n");
        check(Action::duplicate(1), &["without an end"], "without an end");
    }

    #[test]
    fn garbage_stands_for_an_event_or_for_the_body() {
        let garbage = |line| Action::Garbage { line, bytes: "?".into() };
        check(garbage(Some(2)), &["a\nb", "\nc\n"], "a\n*?\nc\n");
        check(garbage(Some(4)), &["a\nb\n"], "a\nb\n");
        check(garbage(None), &["abc"], "*?.");
    }
}
