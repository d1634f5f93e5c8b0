//! Pseudorandom numbers that depend on the seed alone, in every version of every dependency.

/// Returns one number of a sequence by its index (SplitMix64).
pub(super) fn mix(seed: u64, place: u64) -> u64 {
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let mut state = seed.wrapping_add(step.wrapping_mul(place.wrapping_add(1)));
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Sequence of such numbers.
#[derive(Debug)]
pub(super) struct Sequence {
    seed: u64,
    place: u64,
}

impl Sequence {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, place: 0 }
    }

    /// Returns a number below `end`; 0 when that is 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.place += 1;
        let number = mix(self.seed, self.place) % (end.max(1) as u64);
        usize::try_from(number).expect("a number below a usize is one")
    }

    pub(super) fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_for_ever() {
        // The reference implementation's first numbers of seed 0.
        assert_eq!(mix(0, 0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0, 1), 0x6e78_9e6a_a1b9_65f4);
        let mut sequence = Sequence::new(3);
        assert!((0..100).all(|_| sequence.below(7) < 7));
        assert_eq!(sequence.below(0), 0);
        assert_eq!(sequence.one_of::<u8>(&[]), None);
    }
}
