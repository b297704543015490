//! Messages to other ranks that are under way.

use tch::Tensor;

use crate::Error;
use crate::comm::{PendingCollective, ProcessGroup};

/// Sends that have begun. Their tensors live here until the messages have gone.
#[derive(Debug, Default)]
pub struct PendingSends(Vec<(PendingCollective, Tensor)>);

impl PendingSends {
    /// Begins to send a tensor, which nobody changes any more, to a rank of the group. Lets go of the tensors
    /// that have been sent.
    pub(super) fn send(
        &mut self,
        group: &ProcessGroup,
        tensor: Tensor,
        to: usize,
        tag: usize,
    ) -> Result<(), Error> {
        for (send, tensor) in std::mem::take(&mut self.0) {
            self.0.extend(send.try_wait()?.map(|send| (send, tensor)));
        }
        self.0.push((group.send(&tensor, to, tag)?, tensor));
        Ok(())
    }

    /// Waits until all messages have been sent.
    pub fn wait(&mut self) -> Result<(), Error> {
        self.0.drain(..).try_for_each(|(send, _)| send.wait())
    }
}
