// The avx2 path: the shared kernel sources, compiled for this instruction set.
#define BD_ISA 1
#define BD_NS path_avx2

#include "kernels.h"
#include "simd.h"

#include "quads.inl"
#include "matmul.inl"
#include "elementwise.inl"
#include "attention.inl"
#include "drafting.inl"
#include "sample_scan.inl"

namespace blockdraft {

const Kernels kAvx2Kernels = {
    "avx2",
    BD_NS::prepare,
    BD_NS::matmul,
    BD_NS::heads,
    BD_NS::store_kv,
    BD_NS::attend_chunk,
    BD_NS::merge,
    BD_NS::finish,
    BD_NS::norm_add,
    BD_NS::scale_cap,
    BD_NS::convolve,
    BD_NS::rank,
    BD_NS::dot,
    BD_NS::kScan,
};

}  // namespace blockdraft
