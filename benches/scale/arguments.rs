//! Arguments of the bench.

use std::path::PathBuf;

use crate::process::Program;

pub(crate) const USAGE: &str = "\
cargo bench --bench scale -- [CASE…] [OPTION…]

cases: sharing, no-op, memory, writes, first-sync, types, idle; all by
       default
  --quick                 small sizes, on the simulated server
  --real, --simulated     API server; each case has a default
  --controllers N[,N…]    sizes of sharing
  --foreign N[,N…]        numbers of foreign objects of sharing
  --types N               number of parent types of sharing; one for each controller by default
  --bytes N               size of a child's data in no-op, writes and first-sync; 200 by default
  --rewrites N            changes of the hook in writes; 3 by default
  --peer-binary PATH      measure this program instead; it reads KUBECONFIG, and needs --real
  --peer-argument TEXT    argument of that program; may be repeated";

pub(crate) struct Arguments {
    pub(crate) cases: Vec<String>,
    pub(crate) quick: bool,
    pub(crate) server: Option<ServerKind>,
    pub(crate) controllers: Vec<usize>,
    pub(crate) foreign: Vec<usize>,
    pub(crate) types: Option<usize>,
    pub(crate) bytes: usize,
    pub(crate) rewrites: usize,
    pub(crate) program: Program,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Real,
    Simulated,
}

impl Arguments {
    /// Parses the arguments of the process.
    pub(crate) fn parse() -> Result<Self, String> {
        let mut parsed = Self {
            cases: Vec::new(),
            quick: false,
            server: None,
            controllers: Vec::new(),
            foreign: Vec::new(),
            types: None,
            bytes: 200,
            rewrites: 3,
            program: Program::pilotlight(),
        };
        let mut peer: Option<PathBuf> = None;
        let mut peer_arguments = Vec::new();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value =
                || arguments.next().ok_or_else(|| format!("{argument} takes a value\n\n{USAGE}"));
            match argument.as_str() {
                // Given by `cargo bench`.
                "--bench" => {}
                "--quick" => parsed.quick = true,
                "--real" => parsed.server = Some(ServerKind::Real),
                "--simulated" => parsed.server = Some(ServerKind::Simulated),
                "--controllers" => parsed.controllers = numbers(&value()?)?,
                "--foreign" => parsed.foreign = numbers(&value()?)?,
                "--bytes" => parsed.bytes = numbers(&value()?)?[0],
                "--rewrites" => parsed.rewrites = numbers(&value()?)?[0],
                "--types" => parsed.types = numbers(&value()?)?.first().copied(),
                "--peer-binary" => peer = Some(value()?.into()),
                "--peer-argument" => peer_arguments.push(value()?),
                case if crate::CASES.contains(&case) => parsed.cases.push(argument),
                _ => return Err(format!("unknown argument {argument}\n\n{USAGE}")),
            }
        }
        if let Some(path) = peer {
            if parsed.server != Some(ServerKind::Real) {
                return Err("--peer-binary needs --real".to_owned());
            }
            parsed.program = Program { path, arguments: peer_arguments };
        }
        Ok(parsed)
    }

    /// Returns whether a case was asked for.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| wanted == case)
    }

    /// Returns `small` for `--quick`, else `large`.
    pub(crate) fn size(&self, small: usize, large: usize) -> usize {
        if self.quick { small } else { large }
    }
}

fn numbers(text: &str) -> Result<Vec<usize>, String> {
    let number = |part: &str| part.replace('_', "").parse().map_err(|_| format!("number: {part}"));
    text.split(',').map(number).collect()
}
