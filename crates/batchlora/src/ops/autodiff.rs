use std::ops::Range;

use burn::backend::{
    AutodiffBackend,
    autodiff::{
        Autodiff, NodeId,
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::{FloatTensor, IntTensor},
};

use super::{BatchLoraOps, Frozen, Side, dora, reference};
use crate::{Routing, nf4::Nf4Layout};

#[derive(Debug)]
struct LoraLinear;

#[derive(Debug, Clone)]
struct LoraLinearState<B: BatchLoraOps> {
    x: NodeId,
    s: FloatTensor<B>,
    weight: Frozen<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    routing: Routing,
}

impl<B: BatchLoraOps> Backward<B, 3> for LoraLinear {
    type State = LoraLinearState<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let [x_node, a_node, b_node] = ops.parents;
        let LoraLinearState {
            x,
            s,
            weight,
            a,
            b,
            routing,
        } = ops.state;
        // A checkpoint must be retrieved as often as it was made, even if nothing needs it.
        let x: FloatTensor<B> = checkpointer.retrieve_node_output(x);
        let dh = grads.consume::<B>(&ops.node);

        let ds = match (a_node, b_node) {
            (Some(a_node), Some(b_node)) => {
                let (ds, da, db) = B::lora_gradients(x, dh.clone(), s, b, routing.clone());
                grads.register::<B>(a_node.id, da);
                grads.register::<B>(b_node.id, db);
                ds
            }
            (None, Some(node)) if x_node.is_some() => {
                let (ds, db) = B::lora_output_grads(dh.clone(), s, b, routing.clone());
                grads.register::<B>(node.id, db);
                ds
            }
            (None, Some(node)) => {
                let db = B::lora_weight_grad(dh, s, routing, Side::Output);
                return grads.register::<B>(node.id, db);
            }
            (Some(node), None) => {
                let ds = B::lora_shrink(dh.clone(), b, routing.clone(), Side::Output);
                let da = B::lora_weight_grad(x, ds.clone(), routing.clone(), Side::Input);
                grads.register::<B>(node.id, da);
                ds
            }
            (None, None) if x_node.is_some() => {
                B::lora_shrink(dh.clone(), b, routing.clone(), Side::Output)
            }
            (None, None) => return,
        };
        if let Some(node) = x_node {
            let dx = weight.multiply_transposed(dh);
            let dx = B::lora_expand_add(dx, ds, a, routing, Side::Input);
            grads.register::<B>(node.id, dx);
        }
    }
}

#[derive(Debug)]
struct FrozenLinear;

impl<B: BatchLoraOps> Backward<B, 1> for FrozenLinear {
    type State = Frozen<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [x] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        if let Some(x) = x {
            let dx = ops.state.multiply_transposed(gradient);
            grads.register::<B>(x.id, dx);
        }
    }
}

#[derive(Debug)]
struct DoraLinear;

#[derive(Debug, Clone)]
struct DoraLinearState<B: BatchLoraOps> {
    x: NodeId,
    weight: Frozen<B>,
    /// A, B and the scales of columns.
    operands: [FloatTensor<B>; 3],
    norms: FloatTensor<B>,
    /// Output before the scales, rank-r product, and the routing of these.
    forward: (FloatTensor<B>, FloatTensor<B>, Routing),
    routing: Routing,
}

impl<B: BatchLoraOps> Backward<B, 4> for DoraLinear {
    type State = DoraLinearState<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 4>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let state = ops.state;
        let x: FloatTensor<B> = checkpointer.retrieve_node_output(state.x);
        let gradient = grads.consume::<B>(&ops.node);
        let found = dora::backward::<B>(
            x,
            &state.weight.opened(),
            state.operands,
            state.forward,
            &state.routing,
            gradient,
        );
        let of_magnitude = B::float_div(found.scales, state.norms);
        let found = [found.x, found.a, found.b, of_magnitude];
        for (node, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

#[derive(Debug)]
struct SeedGradient;

impl<B: BatchLoraOps> Backward<B, 1> for SeedGradient {
    type State = FloatTensor<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [output] = ops.parents;
        let _ones = grads.consume::<B>(&ops.node);
        if let Some(output) = output {
            grads.register::<B>(output.id, ops.state);
        }
    }
}

impl<B: BatchLoraOps, C: CheckpointStrategy> BatchLoraOps for Autodiff<B, C> {
    fn nf4_dequantize(
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        layout: Nf4Layout,
        rows: Range<usize>,
    ) -> FloatTensor<Self> {
        let scales = scales.into_primitive();
        Self::from_inner(B::nf4_dequantize(codes, scales, layout, rows))
    }

    fn frozen_linear(x: FloatTensor<Self>, weight: Frozen<Self>) -> FloatTensor<Self> {
        let weight = weight.into_primitive();
        match FrozenLinear
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => {
                let y = B::frozen_linear(x.into_primitive(), weight.clone());
                node.finish(weight, y)
            }
            OpsKind::UnTracked(node) => node.finish(B::frozen_linear(x.into_primitive(), weight)),
        }
    }

    fn lora_dora(
        x: FloatTensor<Self>,
        weight: Frozen<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        magnitude: FloatTensor<Self>,
        norms: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        let node = DoraLinear
            .prepare::<C>([x.node(), a.node(), b.node(), magnitude.node()])
            .compute_bound()
            .stateful();
        let (weight, norms) = (weight.into_primitive(), norms.into_primitive());
        let (a, b) = (a.into_primitive(), b.into_primitive());
        let scales = B::float_div(magnitude.into_primitive(), norms.clone());
        match node {
            OpsKind::Tracked(mut node) => {
                let saved = node.checkpoint(&x);
                let routing = routing.keeping_mask();
                let operands = [a, b, scales];
                let found = dora::forward::<B>(
                    x.into_primitive(),
                    weight.clone().opened(),
                    operands.clone(),
                    routing.clone(),
                );
                let state = DoraLinearState {
                    x: saved,
                    weight,
                    operands,
                    norms,
                    forward: (found.unscaled, found.s, found.routing),
                    routing,
                };
                node.finish(state, found.h)
            }
            OpsKind::UnTracked(node) => {
                let x = x.into_primitive();
                node.finish(dora::forward::<B>(x, weight.opened(), [a, b, scales], routing).h)
            }
        }
    }

    fn lora_linear(
        x: FloatTensor<Self>,
        weight: Frozen<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        // The frozen weight is no parent of the node: it gets no gradient.
        let weight = weight.into_primitive();
        let node = LoraLinear
            .prepare::<C>([x.node(), a.node(), b.node()])
            .compute_bound()
            .stateful();
        match node {
            OpsKind::Tracked(mut node) => {
                let saved = node.checkpoint(&x);
                let routing = routing.keeping_mask();
                let (a, b) = (a.into_primitive(), b.into_primitive());
                let (h, s) = B::lora_forward(
                    x.into_primitive(),
                    weight.clone(),
                    a.clone(),
                    b.clone(),
                    routing.clone(),
                );
                let state = LoraLinearState {
                    x: saved,
                    s,
                    weight,
                    a,
                    b,
                    routing,
                };
                node.finish(state, h)
            }
            OpsKind::UnTracked(node) => node.finish(B::lora_linear(
                x.into_primitive(),
                weight,
                a.into_primitive(),
                b.into_primitive(),
                routing,
            )),
        }
    }

    fn seed_gradient(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let node = SeedGradient
            .prepare::<C>([output.node()])
            .compute_bound()
            .stateful();
        let root = reference::scalar_root::<B>(&output.into_primitive());
        match node {
            OpsKind::Tracked(node) => node.finish(gradient.into_primitive(), root),
            OpsKind::UnTracked(node) => node.finish(root),
        }
    }
}
