#!/bin/sh
# Fails when instructions of one kernel file could run on a CPU without them: objects outside the
# *_avx512.cc files must hold no zmm register, those outside both kinds of kernel file no ymm
# either, and kernel files must export no inline function, which the linker might pick for all.
# Usage: check_isa_objects.sh OBJDUMP NM OBJECT...
set -u
objdump=$1
nm=$2
shift 2
failures=0
checked=0
fail() {
  echo "$1"
  failures=$((failures + 1))
}
uses() { "$objdump" -d --no-show-raw-insn "$1" | grep -q "%$2"; }
for object in "$@"; do
  checked=$((checked + 1))
  case $object in
    *_avx512.*) uses "$object" zmm || fail "$object: no zmm register: built without its flags?" ;;
    *_avx2.*)
      uses "$object" ymm || fail "$object: no ymm register: built without its flags?"
      uses "$object" zmm && fail "$object: holds AVX-512 instructions"
      ;;
    *) uses "$object" '[yz]mm' && fail "$object: holds AVX instructions" ;;
  esac
  case $object in
    *_avx512.* | *_avx2.*)
      leaks=$("$nm" -C --defined-only "$object" | grep -E ' [TWVu] ')
      [ -z "$leaks" ] || fail "$object: exports functions compiled for one instruction set: $leaks"
      ;;
  esac
done
[ "$checked" -ge 6 ] || fail "only $checked objects given"
echo "$checked objects checked, $failures failures"
[ "$failures" -eq 0 ]
