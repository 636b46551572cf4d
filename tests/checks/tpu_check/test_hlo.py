"""Reading compiled programs, and what slices are."""

from trm.checks.tpu_check.hlo import Collective, read_program, shape_bytes

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
    program = read_program(MODULE)
    assert program.cycles == 100 + 7 + 3 * 10
    assert program.by_kind == {"matrix product": 100, "add": 7, "copy": 30}
    assert program.collectives == {"all-reduce": Collective(1 + 3, 4 * 1024 + 2 * 32 + 3 * 4 * 256)}


def test_bytes_of_types():
    assert shape_bytes("(f32[2,3]{1,0}, bf16[8], pred[4], s32[])") == 24 + 16 + 4 + 4
