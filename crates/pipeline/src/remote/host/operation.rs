use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use burn::{
    backend::{
        DispatchKindConversion, DispatchTensor,
        ir::{BackendIr, CustomOpIr, HandleContainer, TensorError, TensorIr},
    },
    server::RemoteServer,
    tensor::{DType, ExecutionError, Tensor},
};

use super::{
    state::Host,
    work::{Done, Output, vector},
};
use crate::remote::{
    WorkerError,
    wire::{Answer, Command, Envelope, OPERATION, StageFailure, answer_to_elements},
};

/// Adds the custom operation that executes a host's commands to a server of backend `B`.
pub(super) fn with_operation<B: BackendIr>(server: RemoteServer, host: Arc<Host>) -> RemoteServer
where
    DispatchTensor: DispatchKindConversion<B>,
{
    server.with_custom_op::<B, _>(OPERATION, move |handles, ir, _| {
        serve::<B>(&host, handles, ir);
    })
}

/// Never panics, which would end the session without an error. The error of a command that is answered
/// is its answer; of any other, it takes the place of every output.
fn serve<B: BackendIr>(host: &Host, handles: &mut HandleContainer<B::Handle>, ir: &CustomOpIr)
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let inputs = inputs::<B>(handles, &ir.inputs);
    let envelope = Envelope::from_scalars(&ir.scalars);
    let (lease, answered, talk) = match &envelope {
        Ok(Envelope { lease, command }) => (*lease, command.is_answered(), command.is_talk()),
        Err(_) => (0, false, false),
    };
    let inherited = inputs.is_err();
    let execute = || {
        let Envelope { lease, command } = envelope?;
        if matches!(command, Command::Deliver { .. }) && inputs.is_err() {
            host.received.fail();
        }
        host.execute(lease, command, inputs?)
    };
    let done = catch_unwind(AssertUnwindSafe(execute)).unwrap_or_else(|panic| {
        let reason = format!("it panicked: {}", message(panic.as_ref()));
        Err(WorkerError::because(reason))
    });
    let (outputs, answer) = match ir.outputs.split_first() {
        Some((answer, outputs)) if answered => (outputs, Some(answer)),
        _ => (ir.outputs.as_slice(), None),
    };
    let done = done.and_then(|done| {
        check(&done.outputs, outputs)?;
        Ok(done)
    });
    let (said, outcome) = match done {
        Ok(Done { answer, outputs }) => (answer.unwrap_or(Answer::Done), Ok(outputs)),
        Err(error) => (Answer::Refused(error.clone()), Err(error)),
    };
    if let Some(answer) = answer {
        let said = Output::Vector(vector(answer_to_elements(&said), &host.device));
        register::<B>(handles, answer, said);
    }
    match outcome {
        Ok(tensors) => {
            for (ir, tensor) in outputs.iter().zip(tensors) {
                register::<B>(handles, ir, tensor);
            }
        }
        Err(error) => {
            let reason = error.to_string();
            if !answered && !talk {
                let reason = reason.clone();
                let inherited = inherited || host.received.is_broken();
                host.fail(lease, StageFailure { reason, inherited });
            }
            let error = TensorError::new(ExecutionError::with_context(reason));
            for ir in outputs {
                handles.set_error(ir.id, error.clone());
            }
        }
    }
}

/// Takes the inputs from the session.
fn inputs<B: BackendIr>(
    handles: &mut HandleContainer<B::Handle>,
    inputs: &[TensorIr],
) -> Result<Vec<Tensor<2>>, WorkerError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let taken = inputs.iter().map(|ir| {
        if let Some(error) = handles.take_error(ir) {
            return Err(WorkerError::because(error.root()));
        }
        if !handles.has_handle(&ir.id) {
            return Err(WorkerError::because("an input tensor did not arrive"));
        }
        let tensor = handles.get_float_tensor::<B>(ir);
        if ir.shape.num_dims() != 2 || !ir.dtype.is_float() {
            let reason = format!("a tensor {:?} {:?}", ir.shape, ir.dtype);
            return Err(WorkerError::because(reason));
        }
        Ok(Tensor::<2>::from_primitive::<B>(tensor))
    });
    // Takes all before the first error returns, so that none stays in the session.
    let taken: Vec<_> = taken.collect();
    taken.into_iter().collect()
}

/// Compares outputs with the shapes and types that the controller expects.
fn check(outputs: &[Output], expected: &[TensorIr]) -> Result<(), WorkerError> {
    let described = |output: &Output| match output {
        Output::Vector(tensor) => (tensor.dims().to_vec(), tensor.dtype()),
        Output::Matrix(tensor) => (tensor.dims().to_vec(), tensor.dtype()),
    };
    let found: Vec<(Vec<usize>, DType)> = outputs.iter().map(described).collect();
    let expected: Vec<(Vec<usize>, DType)> = expected
        .iter()
        .map(|ir| (ir.shape.to_vec(), ir.dtype))
        .collect();
    if found == expected {
        return Ok(());
    }
    let reason = format!("it returns {found:?}, but the controller expects {expected:?}");
    Err(WorkerError::because(reason))
}

fn register<B: BackendIr>(handles: &mut HandleContainer<B::Handle>, ir: &TensorIr, output: Output)
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let primitive = match output {
        Output::Vector(tensor) => tensor.without_autodiff().try_into_primitive::<B>(),
        Output::Matrix(tensor) => tensor.without_autodiff().try_into_primitive::<B>(),
    };
    match primitive {
        Ok(primitive) => handles.register_float_tensor::<B>(&ir.id, primitive),
        Err(error) => {
            let error = ExecutionError::with_context(format!("{error:?}"));
            handles.set_error(ir.id, TensorError::new(error));
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
