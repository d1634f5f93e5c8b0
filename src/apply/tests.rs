//! Sets on a simulated API server.

mod adoption;
mod conflicts;
mod earlier_owners;
mod fixture;
mod kinds;
mod mistakes;
mod model;
mod proof;
mod purge;
mod replacement;
mod writes;
