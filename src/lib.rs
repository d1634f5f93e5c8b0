//! x
#[cfg(feature = "testing")]
pub mod testing;
