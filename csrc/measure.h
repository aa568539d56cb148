// Limits of this machine, measured: what a pass of a network is compared with.
//
// Knows no network. Used by `blockdraft bench` only; nothing is tuned by these numbers.
#pragma once

#include <cstddef>

namespace blockdraft {

// GB/s (1e9 bytes) that `threads` threads read together from a fresh buffer of `bytes` bytes: the
// best of several sweeps. A buffer well beyond the last cache measures memory.
// Throws std::invalid_argument when `threads` is no positive number or `bytes` is too few.
double measure_read_bandwidth(int threads, std::size_t bytes);

// 1e9 multiply-accumulates of 8-bit integers per second that `threads` threads do together in
// vector registers: VPDPBUSD, else VPMADDUBSW + VPMADDWD, else PMADDWD. Matrix units (AMX) are not
// counted: passes of a few rows could not fill them. Throws std::invalid_argument when `threads` is
// no positive number.
double measure_int8_peak(int threads);

}  // namespace blockdraft
