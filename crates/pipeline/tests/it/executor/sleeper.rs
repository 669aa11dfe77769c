//! A stage that sleeps and records its calls.

use std::{
    sync::{Arc, Mutex},
    thread::{self, ThreadId},
    time::Duration,
};

use batchlora::SlotUpdate;
use burn::tensor::{Device, Tensor};
use loraloom_pipeline::{Forwarded, Microbatch, MicrobatchId, PipelineError, TrainStage};

/// A call of a stage.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Done {
    Forward(MicrobatchId, f32),
    Backward(MicrobatchId, f32),
    Squares(usize, f32),
    Update(usize, f32),
}

#[derive(Debug)]
pub(crate) struct Sleeper {
    device: Device,
    pub(crate) index: usize,
    last: usize,
    pass: Duration,
    done: Arc<Mutex<Vec<Done>>>,
    pub(crate) in_flight: usize,
    pub(crate) most_in_flight: usize,
    /// The forward pass, counted from 1, at which it fails, or panics.
    pub(crate) fails_at: Option<usize>,
    pub(crate) panics: bool,
    pub(crate) has_thread: bool,
    /// The thread that made it.
    home: ThreadId,
    forwards: usize,
}

fn value(tensor: &Tensor<2>) -> f32 {
    tensor.clone().into_scalar::<f32>()
}

fn scalar(value: f32) -> Tensor<2> {
    Tensor::from_data([[value]], &Device::flex())
}

impl Sleeper {
    fn note(&self, done: Done) {
        self.done.lock().expect("no thread panicked").push(done);
    }
}

impl TrainStage for Sleeper {
    fn device(&self) -> &Device {
        &self.device
    }

    fn computes_in_call(&self) -> bool {
        true
    }

    fn may_have_thread(&self) -> bool {
        self.has_thread
    }

    fn forward(
        &mut self,
        at: MicrobatchId,
        _microbatch: &Microbatch,
        hidden: Option<Tensor<2>>,
    ) -> Result<Forwarded, PipelineError> {
        let at_home = thread::current().id() == self.home;
        assert!(self.has_thread || at_home, "another thread runs it");
        self.forwards += 1;
        if self.fails_at == Some(self.forwards) {
            assert!(!self.panics, "a stage's device broke");
            return Err(PipelineError::NoSuchGroup {
                group: 77,
                groups: 0,
            });
        }
        self.in_flight += 1;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
        thread::sleep(self.pass);
        let seen = hidden.as_ref().map_or(0.0, value);
        self.note(Done::Forward(at, seen));
        let out = scalar(seen + 1.0);
        Ok(if self.index == self.last {
            let losses = Some(out.reshape([1]));
            Forwarded {
                hidden: None,
                losses,
            }
        } else {
            let hidden = Some(out);
            Forwarded {
                hidden,
                losses: None,
            }
        })
    }

    fn backward(
        &mut self,
        at: MicrobatchId,
        gradient: Option<Tensor<2>>,
    ) -> Result<Option<Tensor<2>>, PipelineError> {
        self.in_flight -= 1;
        thread::sleep(self.pass);
        let seen = gradient.as_ref().map_or(0.0, value);
        self.note(Done::Backward(at, seen));
        Ok((self.index > 0).then(|| scalar(seen + 1.0)))
    }

    fn add_squares(
        &mut self,
        group: usize,
        above: Option<Tensor<2>>,
    ) -> Result<Tensor<2>, PipelineError> {
        let seen = above.as_ref().map_or(0.0, value);
        self.note(Done::Squares(group, seen));
        Ok(scalar(seen + 1.0))
    }

    fn update(
        &mut self,
        group: usize,
        _updates: &[Option<SlotUpdate>],
        squares: Option<Tensor<2>>,
    ) -> Result<Tensor<1>, PipelineError> {
        let squares = squares.expect("stages of this process");
        self.note(Done::Update(group, value(&squares)));
        Ok(squares.reshape([1]))
    }
}

#[expect(clippy::vec_box, reason = "the executor runs boxed stages")]
pub(crate) fn sleepers(stages: usize, pass: Duration) -> Vec<Box<Sleeper>> {
    let sleeper = |index| {
        Box::new(Sleeper {
            device: Device::flex(),
            index,
            last: stages - 1,
            pass,
            done: Arc::default(),
            in_flight: 0,
            most_in_flight: 0,
            fails_at: None,
            panics: false,
            has_thread: true,
            home: thread::current().id(),
            forwards: 0,
        })
    };
    (0..stages).map(sleeper).collect()
}

pub(crate) fn done(stage: &Sleeper) -> Vec<Done> {
    stage.done.lock().expect("no thread panicked").clone()
}
