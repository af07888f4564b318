#!/usr/bin/env bash
# Every kernel named here holds the matrix instructions it is written for, in the PTX that nvcc makes of it.   check.sh NVCC ROOT
# That none spills a register is checked by the build itself (ptxas -warn-spills, warnings are errors).
set -euo pipefail
nvcc=$1 root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ptx() {  # ptx SOURCE: its PTX for sm_80, or for sm_120a or sm_100f what is compiled for no other, once
  local into=$work/$(basename "$1").ptx architecture=80
  [ "$1" = float4_kernels.cu ] && architecture=120a
  [ "$(basename "$1")" = float4_tensor_kernels.cu ] && architecture=100f
  [ -e "$into" ] || "$nvcc" -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -I"$root" -I"$root/src" -arch=compute_$architecture --ptx "$root/kernels/cuda/$1" -o "$into"
  echo "$into"
}

# lacking FILE KERNEL INSTRUCTION: entries of that name without the instruction; "none at all" where there is no such entry
lacking() {
  awk -v kernel="$2" -v instruction="$3" '
    /\.entry / { name = $0; if (index(name, kernel)) { entries++; inside = 1; found = 0 } else inside = 0 }
    inside && index($0, instruction) { found = 1 }
    inside && /^}/ { if (!found) print name; inside = 0 }
    END { if (!entries) print "none at all" }' "$1"
}

failed=0
expect() {  # expect SOURCE KERNEL INSTRUCTION
  local missing
  missing=$(lacking "$(ptx "$1")" "$2" "$3")
  [ -z "$missing" ] || { echo "$1: $2 without $3: $missing"; failed=1; }
}

bf16=mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
for form in 0 1 2 3 4; do  # the forms of weights that are multiplied as BF16
  expect linear_kernels.cu "MmaLinearILNS0_10WeightFormE$form" "$bf16"
  expect linear_kernels.cu "MmaLinearILNS0_10WeightFormE$form" cp.async.cg.shared.global
done
expect linear_kernels.cu MmaLinearILNS0_10WeightFormE5 mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32
expect attention_kernels.cu SplitAttention "$bf16"
expect linear_kernels.cu GramBFloat16 "$bf16"
expect linear_kernels.cu GramBFloat16 ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16
for shape in ELi1ELi1ELi4ELb1E ELi2ELi2ELi3ELb1E; do  # kDecoding, kPrefilling
  expect attention_kernels.cu "AttentionShape$shape" cp.async.cg.shared.global
  expect attention_kernels.cu "AttentionShape$shape" ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16
done
expect device_kernels.cu TileProduct cp.async.cg.shared.global
expect device_kernels.cu TileProduct ld.shared.v4
float4=mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec
expect float4_kernels.cu Float4LinearILb0E $float4::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3
expect float4_kernels.cu Float4LinearILb1E $float4::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0
expect float4_kernels.cu Float4Linear cp.async.cg.shared.global
expect float4_kernels.cu Float4Linear ldmatrix.sync.aligned.m8n8.x4.shared.b16
if "$nvcc" --help | grep -q compute_100f; then  # 12.9 and newer
  tensor=tensor_memory/float4_tensor_kernels.cu product=tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale
  expect $tensor Float4TensorLinearILb0E $product.block16
  expect $tensor Float4TensorLinearILb1E $product.block32
  expect $tensor Float4TensorLinear tcgen05.st.sync.aligned.32x32b
  expect $tensor Float4TensorLinear tcgen05.ld.sync.aligned.32x32b
  expect $tensor Float4TensorLinear tcgen05.commit.cta_group::1.mbarrier::arrive::one
  expect $tensor Float4TensorLinear tcgen05.dealloc.cta_group::1
fi
# The check can fail: a product of 8-bit codes multiplies nothing as BF16.
[ -n "$(lacking "$(ptx linear_kernels.cu)" MmaLinearILNS0_10WeightFormE5 "$bf16")" ] || { echo "INT8 products multiply BF16?"; failed=1; }
[ "$failed" -eq 0 ] && echo "all there"
exit "$failed"
