//! Kernels written by hand, against what they have to compute.

use crate::{
    launch::{Grid, launch},
    module::Module,
};

fn run(ptx: &str, grid: &Grid, parameters: &[u64]) -> Result<(), String> {
    let module = Module::parse(ptx)?;
    let entry = module.entry("kernel").expect("it is called so");
    let pointers: Vec<*const u8> = parameters
        .iter()
        .map(|parameter| std::ptr::from_ref(parameter).cast())
        .collect();
    let values = unsafe { entry.values(pointers.as_ptr()) };
    launch(entry, grid, &values)
}

fn one_block(threads: u32) -> Grid {
    Grid {
        blocks: [1, 1, 1],
        threads: [threads, 1, 1],
        shared_bytes: 0,
    }
}

/// Sums 64 numbers by shared memory, a barrier and shuffles; the second warp's threads leave early.
const SUM: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry kernel(
    .param .u64 .ptr .global .align 4 kernel_param_0,
    .param .u64 .ptr .global .align 4 kernel_param_1
)
{
    .reg .pred %p<4>;
    .reg .f32 %f<9>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    .shared .align 4 .b8 part[8];
    ld.param.u64 %rd1, [kernel_param_0];
    ld.param.u64 %rd2, [kernel_param_1];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f1, [%rd4];
    mov.b32 %r2, 16;
$L__loop:
    shfl.sync.down.b32 %f2, %f1, %r2, 31, -1;
    add.rn.f32 %f1, %f1, %f2;
    shr.u32 %r2, %r2, 1;
    setp.ne.s32 %p1, %r2, 0;
    @%p1 bra $L__loop;
    and.b32 %r3, %r1, 31;
    setp.ne.s32 %p2, %r3, 0;
    @%p2 bra $L__wait;
    shr.u32 %r4, %r1, 3;
    mov.u64 %rd5, part;
    cvt.u64.u32 %rd6, %r4;
    add.s64 %rd5, %rd5, %rd6;
    st.shared.f32 [%rd5], %f1;
$L__wait:
    bar.sync 0;
    setp.ne.s32 %p3, %r1, 0;
    @%p3 ret;
    ld.shared.v2.f32 {%f3, %f4}, [part];
    add.rn.f32 %f5, %f3, %f4;
    st.global.f32 [%rd2], %f5;
    ret;
}
";

#[test]
fn a_sum_by_shuffles_and_shared_memory() {
    // `part` is aligned to 4 bytes in the text, and read as 8: the hardware would refuse it.
    let ptx = SUM.replace(".shared .align 4", ".shared .align 8");
    let numbers: Vec<f32> = (0..64).map(|n| n as f32).collect();
    let mut sum = 0.0f32;
    let parameters = [numbers.as_ptr() as u64, &raw mut sum as u64];
    run(&ptx, &one_block(64), &parameters).unwrap();
    assert_eq!(sum, 2016.0);
}

#[test]
fn what_hardware_refuses_is_refused() {
    let store = |address: &str| {
        format!(
            ".visible .entry kernel(.param .u64 kernel_param_0)
            {{
                .reg .b32 %r<2>;
                .shared .align 16 .b8 memory[16];
                mov.b32 %r1, 1;
                st.shared.b32 [memory{address}], %r1;
                ret;
            }}"
        )
    };
    run(&store("+12"), &one_block(32), &[0]).unwrap();
    let outside = run(&store("+16"), &one_block(32), &[0]).unwrap_err();
    assert!(outside.contains("4 bytes at 16 of 16"), "{outside}");
    let crooked = run(&store("+2"), &one_block(32), &[0]).unwrap_err();
    assert!(crooked.contains("not aligned"), "{crooked}");
}

#[test]
fn what_is_not_known_is_refused() {
    let ptx = ".visible .entry kernel(.param .u64 kernel_param_0) { wgmma.mma %r1, %r2; ret; }";
    let error = run(ptx, &one_block(32), &[0]).unwrap_err();
    assert!(error.contains("wgmma"), "{error}");
}

#[test]
fn threads_of_a_warp_part_and_meet_again() {
    // Every thread goes round as often as its number; the ballot afterwards has them all.
    let ptx = "
    .visible .entry kernel(.param .u64 kernel_param_0)
    {
        ld.param.u64 %rd1, [kernel_param_0];
        mov.u32 %r1, %tid.x;
        mov.b32 %r2, 0;
    $L__round:
        setp.ge.u32 %p1, %r2, %r1;
        @%p1 bra $L__end;
        add.s32 %r2, %r2, 1;
        bra.uni $L__round;
    $L__end:
        setp.eq.s32 %p2, %r2, %r1;
        vote.sync.ballot.b32 %r3, %p2, -1;
        mul.wide.u32 %rd2, %r1, 4;
        add.s64 %rd3, %rd1, %rd2;
        st.global.b32 [%rd3], %r3;
        ret;
    }";
    let mut ballots = [0u32; 32];
    run(ptx, &one_block(32), &[ballots.as_mut_ptr() as u64]).unwrap();
    assert_eq!(ballots, [u32::MAX; 32]);
}

#[test]
fn a_product_of_matrices_has_the_manuals_fragments() {
    // A[row][k] = row + 16 k, B[k][column] = 1 where k = column: D is A's first eight columns.
    let ptx = "
    .visible .entry kernel(.param .u64 kernel_param_0)
    {
        ld.param.u64 %rd1, [kernel_param_0];
        mov.u32 %r1, %laneid;
        shr.u32 %r2, %r1, 2;
        and.b32 %r3, %r1, 3;
        cvt.rn.f32.u32 %f1, %r2;
        cvt.rn.f32.u32 %f2, %r3;
        fma.rn.f32 %f3, %f2, 0f41800000, %f1;
        add.rn.f32 %f4, %f3, 0f41000000;
        add.rn.f32 %f5, %f3, 0f42800000;
        add.rn.f32 %f6, %f4, 0f42800000;
        setp.eq.s32 %p1, %r2, %r3;
        add.s32 %r4, %r3, 4;
        setp.eq.s32 %p2, %r2, %r4;
        selp.f32 %f7, 0f3F800000, 0f00000000, %p1;
        selp.f32 %f8, 0f3F800000, 0f00000000, %p2;
        mov.f32 %f9, 0f00000000;
        mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f10, %f11, %f12, %f13},
            {%f3, %f4, %f5, %f6}, {%f7, %f8}, {%f9, %f9, %f9, %f9};
        mul.wide.u32 %rd2, %r1, 16;
        add.s64 %rd3, %rd1, %rd2;
        st.global.v4.f32 [%rd3], {%f10, %f11, %f12, %f13};
        ret;
    }";
    // As the vectors that threads write.
    #[repr(align(16))]
    struct Fragments([[f32; 4]; 32]);
    let mut fragments = Fragments([[0.0; 4]; 32]);
    run(ptx, &one_block(32), &[fragments.0.as_mut_ptr() as u64]).unwrap();
    for (lane, fragment) in fragments.0.iter().enumerate() {
        for (element, &value) in fragment.iter().enumerate() {
            let (row, column) = (lane / 4 + 8 * (element / 2), lane % 4 * 2 + element % 2);
            assert_eq!(
                value,
                (row + 16 * column) as f32,
                "thread {lane}, element {element}"
            );
        }
    }
}

/// Four matrices of 8 x 8 from registers, and every row of them back by itself.
#[test]
fn matrices_are_stored_where_the_manual_says() {
    let ptx = |transposed: &str| {
        format!(
            ".visible .entry kernel(.param .u64 kernel_param_0)
            {{
                .reg .b32 %r<20>;
                .reg .b64 %rd<9>;
                .shared .align 16 .b8 rows[512];
                ld.param.u64 %rd1, [kernel_param_0];
                mov.u32 %r1, %tid.x;
                mul.lo.s32 %r2, %r1, 524296;
                add.s32 %r3, %r2, 65536;
                add.s32 %r4, %r3, 131074;
                add.s32 %r5, %r4, 131074;
                add.s32 %r6, %r5, 131074;
                mov.u64 %rd2, rows;
                mul.wide.u32 %rd3, %r1, 16;
                add.s64 %rd4, %rd2, %rd3;
                stmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 [%rd4], {{%r3, %r4, %r5, %r6}};
                bar.sync 0;
                ld.shared.v4.b32 {{%r7, %r8, %r9, %r10}}, [%rd4];
                add.s64 %rd5, %rd1, %rd3;
                st.global.v4.b32 [%rd5], {{%r7, %r8, %r9, %r10}};
                ret;
            }}"
        )
    };
    for (form, transposed) in [("", false), (".trans", true)] {
        #[repr(align(16))]
        struct Rows([[[u16; 8]; 8]; 4]);
        let mut rows = Rows([[[0; 8]; 8]; 4]);
        let parameters = [&raw mut rows as u64];
        run(&ptx(form), &one_block(32), &parameters).unwrap();
        for (matrix, rows) in rows.0.iter().enumerate() {
            for (row, elements) in rows.iter().enumerate() {
                for (column, &element) in elements.iter().enumerate() {
                    let (row, column) = if transposed {
                        (column, row)
                    } else {
                        (row, column)
                    };
                    let lane = row * 4 + column / 2;
                    let expected = lane * 8 + matrix * 2 + column % 2;
                    assert_eq!(
                        usize::from(element),
                        expected,
                        "{form} {matrix} {row} {column}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_fragment_begins_at_a_multiple_of_32_bytes() {
    let ptx = |offset: usize| {
        format!(
            ".visible .entry kernel()
            {{
                .reg .b32 %r<9>;
                .shared .align 32 .b8 tile[1024];
                mov.b32 %r1, 16;
                wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {{%r2, %r3, %r4, %r5, %r6, %r7, %r8, %r8}}, [tile+{offset}], %r1;
                ret;
            }}"
        )
    };
    run(&ptx(64), &one_block(32), &[]).unwrap();
    let error = run(&ptx(16), &one_block(32), &[]).expect_err("it is not aligned");
    assert!(error.contains("32 bytes"), "{error}");
}

#[test]
fn what_would_be_rounded_another_way_is_refused() {
    let ptx = |rounding: &str| {
        format!(
            ".visible .entry kernel()
            {{
                .reg .b16 %rs<2>;
                .reg .f32 %f<2>;
                mov.f32 %f1, 0f3F800000;
                cvt.{rounding}.bf16.f32 %rs1, %f1;
                ret;
            }}"
        )
    };
    run(&ptx("rn"), &one_block(1), &[]).unwrap();
    let error = run(&ptx("rz"), &one_block(1), &[]).expect_err("it is not to the nearest");
    assert!(error.contains("cvt"), "{error}");
}

/// The declaration begins as that of a line of the source, `.loc`, does.
#[test]
fn every_thread_has_its_own_local_array() {
    const PTX: &str = "
.visible .entry kernel(
    .param .u64 .ptr .global .align 4 kernel_param_0
)
{
    .local .align 4 .b8 __local_depot0[8];
    .reg .b64 %SP;
    .reg .b64 %SPL;
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    mov.b64 %SPL, __local_depot0;
    cvta.local.u64 %SP, %SPL;
    ld.param.u64 %rd1, [kernel_param_0];
    mov.u32 %r1, %tid.x;
    st.b32 [%SP+4], %r1;
    ld.b32 %r2, [%SP+4];
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.b32 [%rd3], %r2;
    ret;
}";
    let mut found = [u32::MAX; 32];
    run(PTX, &one_block(32), &[found.as_mut_ptr() as u64]).expect("it runs");
    assert_eq!(found, std::array::from_fn(|at| at as u32));
}
