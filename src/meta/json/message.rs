//! Messages about JSON that a hook has sent.

use std::str::Utf8Error;

/// The longest message about a response, in bytes: decoders repeat the value that is wrong.
const MAX_MESSAGE_BYTES: usize = 512;

/// Returns the message about a response that is not UTF-8.
pub(crate) fn not_utf8(error: &Utf8Error) -> String {
    let at = error.valid_up_to();
    format!("its byte {at} is not UTF-8; encode it as UTF-8")
}

/// Shortens a message to [`MAX_MESSAGE_BYTES`].
pub(crate) fn bounded(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        message.push('…');
    }
    message
}
