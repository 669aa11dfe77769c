use burn::backend::{
    autodiff::{
        Autodiff, NodeId,
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::FloatTensor,
};

use super::{BatchLoraOps, Side, reference};
use crate::Routing;

#[derive(Debug)]
struct LoraLinear;

#[derive(Debug, Clone)]
struct LoraLinearState<B: BatchLoraOps> {
    x: NodeId,
    s: FloatTensor<B>,
    weight: FloatTensor<B>,
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
            let dx = B::frozen_matmul(dh, B::float_transpose(weight));
            let dx = B::lora_expand_add(dx, ds, a, routing, Side::Input);
            grads.register::<B>(node.id, dx);
        }
    }
}

#[derive(Debug)]
struct FrozenMatmul;

impl<B: BatchLoraOps> Backward<B, 1> for FrozenMatmul {
    type State = FloatTensor<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [x] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        if let Some(x) = x {
            let dx = B::frozen_matmul(gradient, B::float_transpose(ops.state));
            grads.register::<B>(x.id, dx);
        }
    }
}

#[derive(Debug)]
struct ScaleColumns;

impl<B: BatchLoraOps> Backward<B, 2> for ScaleColumns {
    type State = (FloatTensor<B>, FloatTensor<B>, Routing);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [wide_node, scales_node] = ops.parents;
        let (wide, scales, routing) = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        if let Some(node) = scales_node {
            let of_scales = B::lora_scale_grad(wide, gradient.clone(), routing.clone());
            grads.register::<B>(node.id, of_scales);
        }
        if let Some(node) = wide_node {
            let of_wide = B::lora_scale_columns(gradient, scales, routing);
            grads.register::<B>(node.id, of_wide);
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
    fn frozen_matmul(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let weight = weight.into_primitive();
        match FrozenMatmul
            .prepare::<C>([x.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(node) => {
                let y = B::frozen_matmul(x.into_primitive(), weight.clone());
                node.finish(weight, y)
            }
            OpsKind::UnTracked(node) => node.finish(B::frozen_matmul(x.into_primitive(), weight)),
        }
    }

    fn lora_scale_columns(
        wide: FloatTensor<Self>,
        scales: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        let node = ScaleColumns
            .prepare::<C>([wide.node(), scales.node()])
            .compute_bound()
            .stateful();
        let (wide, scales) = (wide.into_primitive(), scales.into_primitive());
        let scale = |wide| B::lora_scale_columns(wide, scales.clone(), routing.clone());
        match node {
            OpsKind::Tracked(node) => {
                let output = scale(wide.clone());
                node.finish((wide, scales.clone(), routing.clone()), output)
            }
            OpsKind::UnTracked(node) => node.finish(scale(wide)),
        }
    }

    fn lora_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
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
