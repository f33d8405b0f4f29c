"""Collectives are read from HLO and counted once for each execution, in any of its notations."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.planning import hlo

TPU = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  ROOT %sum = f32[] add(%x, %y)
}

%all-reduce-scatter.1 (p: f32[64,128]) -> f32[16,128] {
  %p = f32[64,128]{1,0:T(8,128)} parameter(0)
  %all-reduce.9 = f32[64,128]{1,0:T(8,128)} all-reduce(%p), channel_id=5, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %slice = f32[16,128]{1,0:T(8,128)} dynamic-slice(%all-reduce.9), dynamic_slice_sizes={16,128}
}

%inner (arg: (s32[], f32[64,128])) -> (s32[], f32[64,128]) {
  %arg = (s32[], f32[64,128]) parameter(0)
  %all-gather-start.1 = (f32[16,128]{1,0:T(8,128)}, f32[64,128]{1,0:T(8,128)}) all-gather-start(%part), channel_id=1, replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}, dimensions={0}
  %all-gather-done.1 = f32[64,128]{1,0:T(8,128)} all-gather-done(%all-gather-start.1)
  %fusion.1 = f32[16,128]{1,0:T(8,128)} fusion(%all-gather-done.1), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %both = (s32[], f32[64,128]) tuple(%next, %all-gather-done.1)
}

%inner_condition (arg.1: (s32[], f32[64,128])) -> pred[] {
  %constant.3 = s32[]{:T(128)} constant(3)
  ROOT %lt = pred[] compare(%counter, %constant.3), direction=LT
}

%outer (arg.2: (s32[], f32[64,128])) -> (s32[], f32[64,128]) {
  %while.2 = (s32[], f32[64,128]) while(%start), condition=%inner_condition, body=%inner
  %permute-start = (bf16[8,128]{1,0}, bf16[8,128]{1,0}, u32[], u32[]) collective-permute-start(%z), channel_id=7, source_target_pairs={{0,1},{1,0}}
  %permute-done = bf16[8,128]{1,0} collective-permute-done(%permute-start)
  ROOT %out = (s32[], f32[64,128]) tuple(%a, %b)
}

ENTRY %main.1_spmd (param: f32[64,128]) -> f32[] {
  %while.1 = (s32[], f32[64,128]) while(%begin), condition=%inner_condition, body=%outer, backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0"}}
  %reduce-scatter.1 = bf16[8,128]{1,0} reduce-scatter(%v), channel_id=3, replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add
  ROOT %all-reduce.1 = (f32[]{:T(128)}, f32[10]{0:T(128)}) all-reduce(%s, %t), channel_id=2, replica_groups={}, to_apply=%add
}
"""  # noqa: E501, as XLA prints it


def test_every_notation_counts_once_for_each_execution():
    collectives = hlo.summary(hlo.collectives(TPU, 8))
    assert collectives == {
        "all-gather": {"count": 15, "bytes": 15 * 64 * 128 * 4},
        "reduce-scatter": {"count": 16, "bytes": 15 * 64 * 128 * 4 + 4 * 8 * 128 * 2},
        "collective-permute": {"count": 5, "bytes": 5 * 8 * 128 * 2},
        "all-reduce": {"count": 1, "bytes": 44},
    }
    devices = {(one.kind, one.bytes): one.devices for one in hlo.collectives(TPU, 8)}
    assert set(devices.values()) == {2, 4, 8} and devices["all-reduce", 44] == 8


GPU = """HloModule jit_step, is_scheduled=true

ENTRY %main.1_spmd (param: f32[64,128]) -> f32[] {
  %rs-start = ((f32[64,128]{1,0}, bf16[64]{0}), (f32[16,128]{1,0}, bf16[16]{0})) reduce-scatter-start(%p, %q), channel_id=1, replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, dimensions={0}
  %rs-done = (f32[16,128]{1,0}, bf16[16]{0}) reduce-scatter-done(%rs-start)
  %ag-start = (f32[16,128]{1,0}, f32[64,128]{1,0}) all-gather-start(%r), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  %ag-done = f32[64,128]{1,0} all-gather-done(%ag-start)
  %ar = f32[8]{0} all-reduce(%s), channel_id=3, replica_groups=mesh['axis_0'=8] {'axis_0':(2)2}
  %cp = f32[8]{0} collective-permute(%s), channel_id=4, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
}
"""  # noqa: E501, as XLA prints it


def test_asynchronous_collectives_and_the_hosts_of_a_group():
    collectives = hlo.collectives(GPU, 8, in_host=2)
    assert [(one.kind, one.bytes, one.devices, one.hosts) for one in collectives] == [
        ("reduce-scatter", 64 * 128 * 4 + 64 * 2, 4, 2),  # devices 0 to 3
        ("all-gather", 64 * 128 * 4, 4, 4),  # devices 0, 2, 4, 6
        ("all-reduce", 32, 2, 2),  # devices 0 and 2
        ("collective-permute", 32, 2, 2),  # from 1 to 2
    ]
    reduction = hlo.Collective("all-reduce", 1, 800, 8, hosts=2)
    # 4 devices of a host reduce 800 bytes, and each reduces a quarter of them with another host.
    assert reduction.moved == 2 * 3 / 4 * 800
    assert reduction.moved_between_hosts == 2 * 1 / 2 * 200
    permutation = hlo.Collective("collective-permute", 1, 800, 2, hosts=2)
    assert permutation.moved == 0 and permutation.moved_between_hosts == 800


def test_bytes_that_a_device_sends():
    moved = {kind: hlo.Collective(kind, 1, 800, 4).moved for kind in hlo.KINDS}
    assert moved == {
        "all-gather": 600,
        "reduce-scatter": 600,
        "all-to-all": 600,
        "all-reduce": 1200,
        "collective-permute": 800,
        "collective-broadcast": 800,
        "send": 800,
    }
    assert hlo.Collective("all-reduce", 1, 800, 1).moved == 0


def test_nested_loops_of_a_compiled_program_multiply():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    replicated = NamedSharding(mesh, P())

    def inner(x, w):
        # the contracted axis is split, so the sum goes over the devices
        y = jax.lax.with_sharding_constraint(jnp.sin(x @ w), replicated)
        return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, P(None, "data"))), None

    def step(x, weights):
        return jax.lax.scan(lambda x, ws: (jax.lax.scan(inner, x, ws)[0], None), x, weights)[0]

    x = jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=NamedSharding(mesh, P(None, "data")))
    weights = jax.ShapeDtypeStruct(
        (11, 7, 64, 64), jnp.float32, sharding=NamedSharding(mesh, P(None, None, "data"))
    )
    collectives = hlo.summary(
        hlo.collectives(jax.jit(step).lower(x, weights).compile().as_text(), 8)
    )
    assert collectives["all-reduce"] == {"count": 77, "bytes": 77 * 32 * 64 * 4}


# ------------------------------------------------------------------------------------- the kernels

KERNELS = """
HloModule step

%sliced (a: f32[8,64,32], b: f32[64,32], i: s32[]) -> f32[64,32] {
  %a = f32[8,64,32]{2,1,0} parameter(0)
  %b = f32[64,32]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %layer = f32[1,64,32]{2,1,0} dynamic-slice(%a, %i, %i, %i), dynamic_slice_sizes={1,64,32}
  %flat = f32[64,32]{1,0} bitcast(%layer)
  ROOT %sum = f32[64,32]{1,0} add(%flat, %b)
}

%written (a: f32[8,64,32], b: f32[1,64,32], i: s32[]) -> f32[8,64,32] {
  %a = f32[8,64,32]{2,1,0} parameter(0)
  %b = f32[1,64,32]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %put = f32[8,64,32]{2,1,0} dynamic-update-slice(%a, %b, %i, %i, %i)
}

%product (x: bf16[16,64], w: bf16[64,32]) -> bf16[16,32] {
  %x = bf16[16,64]{1,0} parameter(0)
  %w = bf16[64,32]{1,0} parameter(1)
  ROOT %y = bf16[16,32]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (state: (s32[], f32[8,64,32], f32[64,32])) -> (s32[], f32[8,64,32], f32[64,32]) {
  %state = (s32[], f32[8,64,32]{2,1,0}, f32[64,32]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %a = f32[8,64,32]{2,1,0} get-tuple-element(%state), index=1
  %b = f32[64,32]{1,0} get-tuple-element(%state), index=2
  %read = f32[64,32]{1,0} fusion(%a, %b, %i), kind=kLoop, calls=%sliced
  %one = f32[1,64,32]{2,1,0} bitcast(%read)
  %write = f32[8,64,32]{2,1,0} fusion(%a, %one, %i), kind=kLoop, calls=%written
  ROOT %next = (s32[], f32[8,64,32]{2,1,0}, f32[64,32]{1,0}) tuple(%i, %write, %b)
}

%condition (state: (s32[], f32[8,64,32], f32[64,32])) -> pred[] {
  %state = (s32[], f32[8,64,32]{2,1,0}, f32[64,32]{1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (x: bf16[16,64], w: bf16[64,32], s: (s32[], f32[8,64,32], f32[64,32])) -> bf16[16,32] {
  %x = bf16[16,64]{1,0} parameter(0)
  %w = bf16[64,32]{1,0} parameter(1)
  %s = (s32[], f32[8,64,32]{2,1,0}, f32[64,32]{1,0}) parameter(2)
  %loop = (s32[], f32[8,64,32], f32[64,32]) while(%s), condition=%condition, body=%body, TRIPS
  %q = bf16[2,8,4,16]{3,2,1,0} bitcast(%x)
  %heads = (bf16[2,4,8,16]{3,1,2,0}, u8[0]{0}) custom-call(%q, %q, %q), ATTENTION
  %sent = bf16[16,64]{1,0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%product
  ROOT %y = bf16[16,32]{1,0} fusion(%x, %w), kind=kCustom, calls=%product, SOURCE
}
"""
ATTRIBUTES = {
    "TRIPS": 'backend_config={"known_trip_count":{"n":"8"}}',
    "ATTENTION": 'custom_call_target="__cudnn$fmhaSoftmax", backend_config={'
    '"intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "4", "8", "8"]}, '
    '"mask_type": "CAUSAL"}',
    "SOURCE": 'metadata={op_name="jit(step)/jvp()/dot"}',
}


def test_kernels_move_slices_and_make_products():
    text = functools.reduce(lambda text, item: text.replace(*item), ATTRIBUTES.items(), KERNELS)
    found = {kernel.name: kernel for kernel in hlo.kernels(text)}
    assert {*found} == {"read", "write", "heads", "y"}  # collectives are not among them
    layer = 64 * 32 * 4
    # A slice is read, another array is read, one is written; then a slice alone is written.
    assert found["read"].bytes == 3 * layer + 4 and found["read"].count == 8
    assert found["write"].bytes == 2 * layer + 4 and found["write"].count == 8
    product = found["y"]
    assert (product.kind, product.source) == ("product", "jit(step)/jvp()/dot")
    assert product.bytes == 2 * (16 * 64 + 64 * 32 + 16 * 32)
    assert product.flops == 2 * 16 * 64 * 32
    attention = found["heads"]
    # Two products of 8 queries, 8 keys and 16 features for 2 x 4 heads, of which a half is masked.
    assert (attention.kind, attention.flops) == ("attention", 2 * 2 * 2 * 4 * 8 * 8 * 16 / 2)


def test_a_kernel_takes_the_longer_of_two_times():
    kernel = hlo.Kernel("a", "product", "", count=3, bytes=10, flops=100)
    assert kernel.seconds(flops=10, bandwidth=10) == 30
    assert kernel.seconds(flops=100, bandwidth=1) == 30


@pytest.mark.parametrize(
    "shapes, window, labels, flops",
    [
        ("bf16[8,64] bf16[64,32] bf16[8,32]", "", "bf_io->bf", 2 * 8 * 64 * 32),
        # 12 heads of 50 queries and 114 keys, as a TPU's program writes a product of batches.
        (
            "bf16[50,12,64] bf16[114,12,64] f32[12,50,114]",
            "window={size=12 stride=11 lhs_dilate=12}, ",
            "b0f_o0i->0bf",
            2 * 12 * 50 * 114 * 64,
        ),
        (
            "bf16[50,12,114] bf16[12,114,64] f32[12,50,64]",
            "window={size=12 stride=12 pad=11_11 lhs_dilate=11 rhs_reversal=1}, ",
            "b0f_0io->0bf",
            2 * 12 * 50 * 114 * 64,
        ),
        # patches of 16 x 16 pixels
        (
            "bf16[8,224,224,3] bf16[16,16,3,768] bf16[8,14,14,768]",
            "window={size=16x16 stride=16x16}, ",
            "b01f_01io->b01f",
            2 * 8 * 196 * 768 * 768,
        ),
        # a kernel of 3 over 10 samples, of which the first and the last see padding once
        (
            "f32[1,10,4] f32[3,4,5] f32[1,10,5]",
            "window={size=3 pad=1_1}, ",
            "b0f_0io->b0f",
            2 * 28 * 4 * 5,
        ),
    ],
)
def test_a_convolution_counts_no_padding(shapes, window, labels, flops):
    source, kernel, result = (
        f"{shape}{{{','.join(map(str, range(shape.count(','), -1, -1)))}}}"
        for shape in shapes.split()
    )
    text = f"""
ENTRY %main (x: f32[1], w: f32[1]) -> f32[1] {{
  %x = {source} parameter(0)
  %w = {kernel} parameter(1)
  ROOT %y = {result} convolution(%x, %w), {window}dim_labels={labels}
}}
"""
    (found,) = hlo.kernels(text)
    assert (found.kind, found.flops) == ("product", flops)
