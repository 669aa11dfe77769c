use burn::backend::{
    autodiff::{
        Autodiff, NodeId,
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::FloatTensor,
};

use super::{Activation, AttentionShape, DecoderOps, Rotation};

#[derive(Debug)]
struct RmsNorm;

impl<B: DecoderOps> Backward<B, 1> for RmsNorm {
    type State = (NodeId, FloatTensor<B>, f64);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let [x_node] = ops.parents;
        let (x, weight, epsilon) = ops.state;
        let x = checkpointer.retrieve_node_output(x);
        let gradient = grads.consume::<B>(&ops.node);
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::rms_norm_backward(x, weight, gradient, epsilon));
        }
    }
}

#[derive(Debug)]
struct Glu;

impl<B: DecoderOps> Backward<B, 2> for Glu {
    type State = (NodeId, NodeId, Activation);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let (gate, up, activation) = ops.state;
        let gate = checkpointer.retrieve_node_output(gate);
        let up = checkpointer.retrieve_node_output(up);
        let gradient = grads.consume::<B>(&ops.node);
        let (d_gate, d_up) = B::glu_backward(gate, up, gradient, activation);
        for (node, gradient) in ops.parents.into_iter().zip([d_gate, d_up]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

#[derive(Debug)]
struct Rotate;

impl<B: DecoderOps> Backward<B, 1> for Rotate {
    type State = (FloatTensor<B>, FloatTensor<B>, Rotation);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let [x_node] = ops.parents;
        let (cos, sin, rotation) = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        let back = match rotation {
            Rotation::Forward => Rotation::Back,
            Rotation::Back => Rotation::Forward,
        };
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::rotate(gradient, cos, sin, back));
        }
    }
}

#[derive(Debug)]
struct SelfAttention;

impl<B: DecoderOps> Backward<B, 3> for SelfAttention {
    type State = ([NodeId; 3], AttentionShape);

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let (saved, shape) = ops.state;
        let [q, k, v] = saved.map(|id| checkpointer.retrieve_node_output(id));
        let gradient = grads.consume::<B>(&ops.node);
        let (dq, dk, dv) = B::self_attention_backward(q, k, v, gradient, shape);
        for (node, gradient) in ops.parents.into_iter().zip([dq, dk, dv]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: DecoderOps, C: CheckpointStrategy> DecoderOps for Autodiff<B, C> {
    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let weight = weight.into_primitive();
        match RmsNorm.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut node) => {
                let state = (node.checkpoint(&x), weight.clone(), epsilon);
                node.finish(state, B::rms_norm(x.into_primitive(), weight, epsilon))
            }
            OpsKind::UnTracked(node) => {
                node.finish(B::rms_norm(x.into_primitive(), weight, epsilon))
            }
        }
    }

    fn glu(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        let forward = |gate: FloatTensor<Self>, up: FloatTensor<Self>| {
            B::glu(gate.into_primitive(), up.into_primitive(), activation)
        };
        match Glu
            .prepare::<C>([gate.node(), up.node()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(mut node) => {
                let state = (node.checkpoint(&gate), node.checkpoint(&up), activation);
                node.finish(state, forward(gate, up))
            }
            OpsKind::UnTracked(node) => node.finish(forward(gate, up)),
        }
    }

    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rotation: Rotation,
    ) -> FloatTensor<Self> {
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        match Rotate.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(node) => {
                let turned = B::rotate(x.into_primitive(), cos.clone(), sin.clone(), rotation);
                node.finish((cos, sin, rotation), turned)
            }
            OpsKind::UnTracked(node) => {
                node.finish(B::rotate(x.into_primitive(), cos, sin, rotation))
            }
        }
    }

    fn self_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        let nodes = [q.node(), k.node(), v.node()];
        match SelfAttention.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut node) => {
                let saved = [
                    node.checkpoint(&q),
                    node.checkpoint(&k),
                    node.checkpoint(&v),
                ];
                let out = B::self_attention(
                    q.into_primitive(),
                    k.into_primitive(),
                    v.into_primitive(),
                    shape.clone(),
                );
                node.finish((saved, shape), out)
            }
            OpsKind::UnTracked(node) => node.finish(B::self_attention(
                q.into_primitive(),
                k.into_primitive(),
                v.into_primitive(),
                shape,
            )),
        }
    }
}
