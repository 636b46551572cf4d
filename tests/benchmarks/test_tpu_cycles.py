"""Cycles of a compiled TPU program: the compiler's estimates, and a kernel's schedule as libtpu writes it."""

import pytest

from benchmarks.tpu_cycles import call_cycles, kernels_module, read_program, scheduled_cycles, shape_bytes

MODULE = """HloModule jit_step, is_scheduled=true

%product (a: bf16[8,128]) -> f32[8,8] {
  %a = bf16[8,128] parameter(0)
  ROOT %c = f32[8,8] convolution(%a, %a), dim_labels=bf_oi->bf
}

%body (p: (s32[])) -> (s32[]) {
  %p = (s32[]) parameter(0)
  %copy.1 = f32[64]{0} copy(%x), backend_config={"window_config":{"estimated_cycles":"10"}}
  %all-reduce.2 = f32[256]{0} all-reduce(%y), to_apply=%sum
}

ENTRY %main (x: f32[64]) -> f32[8,8] {
  %x = f32[64]{0} parameter(0)
  %fusion = f32[8,8]{1,0:T(8,128)} fusion(%x), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"100"}
  %add = f32[64]{0} add(%x, %x), backend_config={"estimated_cycles":"7"}
  %loop = (s32[]) while(%init), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %ar = (f32[1024]{0:T(1024)}, bf16[4,8]{1,0}) all-reduce-start(%x, %z), to_apply=%sum
  ROOT %done = f32[1024]{0} all-reduce-done(%ar)
}
"""


def test_cycles_and_collectives_of_a_module():
    cycles, sent = read_program(MODULE)
    assert cycles == {"matrix product": 100, "add": 7, "copy": 3 * 10}
    assert sent == {"all-reduce": 4 * 1024 + 2 * 32 + 3 * 4 * 256}


def test_bytes_of_types():
    assert shape_bytes("(f32[2,3]{1,0}, bf16[8], pred[4], s32[])") == 24 + 16 + 4 + 4


SCHEDULE = """
= control target key start
LB: loop body
= control target key end

     0   :  { %s1_s25 = sld [smem:[#allocation0]] /* core id */ }
   0x1   :  { %45893 = sst [smem:[#allocation267_spill]] %s44218_s1 }
   0x2 LB: > { %45902 = sadd.s32 4294967295, %s44 /* iteration index, stage = 1 */ }
   0x3   : > { %420 = sbr.rel (%p3) target bundleno = 6 (0x6), region = 56 } /* iteration index, stage = 2 */
   0x4   : > { %56 = vadd.f32 %v1, %v2 }
   0x5   : > { %57 = vadd.f32 %v3, %v4 }
   0x6 PF: > { %p54_p11 = scmp.ge.s32.totalorder %s5190, 10 /* loop exit test */ } /* Start/End empty region 56 */
   0x7   : > { %56 = sbr.rel (!%p54_p11) target bundleno = 2 (0x2), region = 147 }
   0x8   :  {} /* End region 4 */
"""


def test_bundles_in_the_loop_count_as_often_as_they_run():
    # ten iterations of a pipeline of three stages: eight grid steps
    assert scheduled_cycles(SCHEDULE) == 3 + 10 * 4 + 8 * 2


def test_schedules_of_another_form_are_refused():
    with pytest.raises(ValueError, match="loops within"):
        scheduled_cycles(SCHEDULE.replace("0x3   : >", "0x3   : > >"))
    with pytest.raises(ValueError, match="0 loops with known trip counts"):
        scheduled_cycles(SCHEDULE.replace(" /* loop exit test */", ""))


def call(body: str, name: str) -> str:
    config = f'backend_config = "{{\\22custom_call_config\\22: {{\\22body\\22: \\22{body}\\22}}}}"'
    return f"    %{name} = stablehlo.custom_call @tpu_custom_call(%1, %2) {{{config}}} : "


def test_each_kernel_is_called_once():
    one = call("AAA", "3") + "(tensor<8x4xbf16>, tensor<4x4xbf16>) -> tensor<8x4xbf16>"
    two = call("BBB", "5") + "(tensor<8x4xbf16>) -> tuple<tensor<8x4xbf16>, tensor<2x4xf32>>"
    found = kernels_module("\n".join([one, one.replace("%3", "%4"), two]))
    assert found.count("stablehlo.custom_call") == 2
    assert (
        "func.func @main(%arg0: tensor<8x4xbf16>, %arg1: tensor<4x4xbf16>, %arg2: tensor<8x4xbf16>)" in found
    )
    assert "return %k0, %k1r0, %k1r1 : tensor<8x4xbf16>, tensor<8x4xbf16>, tensor<2x4xf32>" in found
    assert kernels_module("module {}") is None


def test_a_call_takes_its_schedule_or_its_traffic():
    line = (
        '%f = bf16[1000,512]{1,0} custom-call(%a), custom_call_target="tpu_custom_call", '
        'operand_layout_constraints={bf16[1000,512]{1,0}}, backend_config={"custom_call_config":{"body":"AAA"}}'
    )
    traffic = round(2 * 1000 * 512 * 2 / 1.2e12 * 1.05e9)
    assert call_cycles(line, {"AAA": 10}) == traffic
    assert call_cycles(line, {"AAA": 10**6}) == 10**6
