//! The process mesh: ranks arranged along named axes.
//!
//! The first axis varies slowest. Ranks that differ only in the coordinate of one axis form a group of that
//! axis; collectives over the axis run within this group. This module knows no communicator.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Error;

/// An axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// Pipeline parallelism: stages of layers.
    Pipeline,
    /// Data parallelism: replicas that train on different rows.
    Data,
    /// Expert parallelism: replicas that train on different rows and hold different experts.
    Expert,
    /// Sequence parallelism by Ulysses or ring attention: shards of one sequence. Megatron: context
    /// parallelism.
    Sequence,
    /// Tensor parallelism: weight shards along the depth of a 3D arrangement. Reserved: no layer uses it yet.
    Depth,
    /// Tensor parallelism: weight shards along the rows of a 2D grid. Reserved: no layer uses it yet.
    Row,
    /// Tensor parallelism: weight shards along the columns of a 2D grid, or all shards of 1D tensor
    /// parallelism.
    Tensor,
}

impl Axis {
    /// Every axis, slowest first.
    pub const ALL: [Self; 7] =
        [Self::Pipeline, Self::Data, Self::Expert, Self::Sequence, Self::Depth, Self::Row, Self::Tensor];

    /// The axes along which weights are sharded.
    pub const TENSOR: [Self; 3] = [Self::Depth, Self::Row, Self::Tensor];

    /// The name of the axis in the configuration and in `plan`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pipeline => "pipeline",
            Self::Data => "data",
            Self::Expert => "expert",
            Self::Sequence => "sequence",
            Self::Depth => "tensor depth",
            Self::Row => "tensor row",
            Self::Tensor => "tensor",
        }
    }
}

/// The size of every axis, and the rank of this process.
/// PyTorch: `DeviceMesh`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    sizes: [usize; 7],
    rank: usize,
}

impl Mesh {
    /// The mesh of a single process.
    pub fn single() -> Self {
        Self { sizes: [1; 7], rank: 0 }
    }

    /// A mesh with the given axis sizes for rank `rank` of `world_size`. All other axes have size 1.
    pub fn new(axis_sizes: &[(Axis, usize)], rank: usize, world_size: usize) -> Result<Self, Error> {
        let mut sizes = [1; 7];
        for &(axis, size) in axis_sizes {
            sizes[axis as usize] = size;
        }
        // An overflowing product saturates, so it can never equal `world_size`.
        let expected_size = sizes.iter().fold(1, |product: usize, &size| product.saturating_mul(size));
        if expected_size != world_size || expected_size == 0 {
            return Err(Error::MeshSize {
                mesh: Self { sizes, rank }.to_string(),
                expected_size,
                world_size,
            });
        }
        if rank >= world_size {
            return Err(Error::RankOutOfRange { rank, size: world_size });
        }
        Ok(Self { sizes, rank })
    }

    /// The rank of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn world_size(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The number of ranks along `axis`.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }

    /// The coordinate of this process along `axis`.
    pub fn coordinate(&self, axis: Axis) -> usize {
        self.rank / self.stride(axis) % self.size(axis)
    }

    /// The same mesh, seen from another rank.
    #[must_use]
    pub fn for_rank(&self, rank: usize) -> Self {
        Self { sizes: self.sizes, rank }
    }

    /// The ranks that differ from this one along `axes` only, in order, including this one.
    pub fn group(&self, axes: &[Axis]) -> Vec<usize> {
        let same = |rank: &usize| {
            let other = self.for_rank(*rank);
            let mut fixed = Axis::ALL.iter().filter(|axis| !axes.contains(axis));
            fixed.all(|&axis| other.coordinate(axis) == self.coordinate(axis))
        };
        (0..self.world_size()).filter(same).collect()
    }

    /// The axes with more than one rank.
    pub fn axes_in_use(&self) -> impl Iterator<Item = Axis> {
        Axis::ALL.into_iter().filter(|&axis| self.size(axis) > 1)
    }

    fn stride(&self, axis: Axis) -> usize {
        self.sizes[axis as usize + 1..].iter().product()
    }
}

/// The axes with their sizes, as in `data 2 x tensor 4`.
impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> =
            self.axes_in_use().map(|axis| format!("{} {}", axis.name(), self.size(axis))).collect();
        f.write_str(if axes.is_empty() { "one process" } else { "" })?;
        f.write_str(&axes.join(" x "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_alone_on_every_axis() {
        for axis in Axis::ALL {
            assert_eq!(Mesh::single().group(&[axis]), [0]);
        }
    }

    #[test]
    fn coordinates_and_groups_of_a_2_x_2_x_3_mesh() {
        // rank = (pipeline * 2 + data) * 3 + tensor; 10 = (1 * 2 + 1) * 3 + 1.
        let mesh = Mesh::new(&[(Axis::Tensor, 3), (Axis::Pipeline, 2), (Axis::Data, 2)], 10, 12).unwrap();
        let coordinates: Vec<usize> = Axis::ALL.iter().map(|&axis| mesh.coordinate(axis)).collect();
        assert_eq!(coordinates, [1, 1, 0, 0, 0, 0, 1]);
        assert_eq!(mesh.group(&[Axis::Tensor]), [9, 10, 11]);
        assert_eq!(mesh.group(&[Axis::Data]), [7, 10]);
        assert_eq!(mesh.group(&[Axis::Pipeline]), [4, 10]);
        assert_eq!(mesh.group(&[Axis::Data, Axis::Tensor]), [6, 7, 8, 9, 10, 11]);
        assert_eq!(mesh.group(&[Axis::Pipeline, Axis::Data]), [1, 4, 7, 10]);
    }

    #[test]
    fn a_cube_of_weights_has_groups_along_each_edge_and_face() {
        // rank = data * 8 + depth * 4 + row * 2 + column; 13 = 8 + 4 + 0 + 1.
        let cube = [(Axis::Data, 2), (Axis::Depth, 2), (Axis::Row, 2), (Axis::Tensor, 2)];
        let mesh = Mesh::new(&cube, 13, 16).unwrap();
        assert_eq!(mesh.group(&[Axis::Depth]), [9, 13]);
        assert_eq!(mesh.group(&[Axis::Row]), [13, 15]);
        assert_eq!(mesh.group(&[Axis::Row, Axis::Tensor]), [12, 13, 14, 15]);
        assert_eq!(mesh.group(&Axis::TENSOR), (8..16).collect::<Vec<_>>());
        assert_eq!(mesh.to_string(), "data 2 x tensor depth 2 x tensor row 2 x tensor 2");
    }

    #[test]
    fn a_mesh_that_does_not_fit_is_refused() {
        let error = Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 2)], 0, 1).unwrap_err().to_string();
        assert!(error.contains("data 2 x tensor 2 = 4 ranks, but 1 is running"), "{error}");
    }
}
