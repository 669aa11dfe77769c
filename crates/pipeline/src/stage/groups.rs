//! The adapters of all groups at a stage.

use std::ops::Range;

use batchlora::{AdamWStep, GradientNorms};
use loraloom_model::LayerAdapter;

use super::Stage;
use crate::{PipelineError, StageGradients, stage_adapters::StageAdapters};

impl Stage {
    pub(super) fn group(&self, group: usize) -> Result<&StageAdapters, PipelineError> {
        let groups = self.groups.len();
        let found = self.groups.get(group);
        found.ok_or(PipelineError::NoSuchGroup { group, groups })
    }

    fn group_mut(&mut self, group: usize) -> Result<&mut StageAdapters, PipelineError> {
        let groups = self.groups.len();
        let found = self.groups.get_mut(group);
        found.ok_or(PipelineError::NoSuchGroup { group, groups })
    }

    /// Makes sure that there are groups 0 to `count`, without it; new ones are empty, and take the
    /// layers whose turn it is.
    pub(crate) fn reserve_groups(&mut self, count: usize) {
        while self.groups.len() < count {
            let (layers, device) = (self.layers.of_group(self.groups.len()), &self.device);
            let empty = StageAdapters::new(&self.config, layers, device);
            self.groups.push(empty);
        }
    }

    /// Exchanges the adapters of two groups, which keep their layers.
    ///
    /// # Errors
    /// If there is no such group.
    pub(crate) fn swap_groups(&mut self, first: usize, second: usize) -> Result<(), PipelineError> {
        self.group(first)?;
        self.group(second)?;
        self.groups.swap(first, second);
        Ok(())
    }

    /// Adds an adapter to a group, given by the layers that the group has here in order, and returns
    /// its slot.
    ///
    /// # Errors
    /// If there is no such group, or a part of the adapter does not fit its layer.
    pub(crate) fn push(
        &mut self,
        group: usize,
        adapter: Vec<LayerAdapter>,
    ) -> Result<usize, PipelineError> {
        self.group_mut(group)?.push(adapter)
    }

    /// Takes an adapter out; later slots of its group move down by one.
    ///
    /// # Errors
    /// If there is no such group or slot.
    pub(crate) fn remove(
        &mut self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        self.group_mut(group)?.remove(slot)
    }

    /// A copy of an adapter, by the layers that its group has here in order.
    ///
    /// # Errors
    /// If there is no such group or slot.
    pub(crate) fn extract(
        &self,
        group: usize,
        slot: usize,
    ) -> Result<Vec<LayerAdapter>, PipelineError> {
        self.group(group)?.extract(slot)
    }

    /// The decoder layers that a group has here.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn layers_of(&self, group: usize) -> Result<Range<usize>, PipelineError> {
        Ok(self.group(group)?.layers())
    }

    /// Each slot's squared gradients on top of those of the stages above.
    ///
    /// # Errors
    /// If there is no such group.
    pub(crate) fn add_squares(
        &self,
        group: usize,
        above: Option<GradientNorms>,
        gradients: Option<&StageGradients>,
    ) -> Result<GradientNorms, PipelineError> {
        Ok(self.group(group)?.add_squares(above, gradients))
    }

    /// What is left of a group's gradients for later: those of slots that do not take this step.
    ///
    /// # Errors
    /// If there is no such group.
    pub(crate) fn keep(
        &self,
        group: usize,
        gradients: &StageGradients,
        kept: impl Fn(usize) -> bool + Copy,
    ) -> Result<StageGradients, PipelineError> {
        Ok(self.group(group)?.keep(gradients, kept))
    }

    /// Steps all adapters of a group at this stage.
    ///
    /// # Errors
    /// If there is no such group.
    pub(crate) fn step(
        &mut self,
        group: usize,
        gradients: StageGradients,
        step: &AdamWStep,
    ) -> Result<(), PipelineError> {
        self.group_mut(group)?.step(gradients, step);
        Ok(())
    }
}
